"""The tools in the box: a calculator, and Python.

`python` runs code in a process of its own, under limits. They are for accidents, and they are no
wall against code that attacks. The code runs as the user who trains. It can use the network, and
read and write all files that this user can; also what other processes of the user hold, such as
their environment. The limit on memory holds for each process, and the limit on a file for each
file. A process that leaves its group can outlive a training that is killed by SIGKILL. Run code of
strangers in a container or a virtual machine.

    box.py SIZE DEADLINE MEMORY    runs SIZE bytes of code from stdin, then prints its output
"""

from __future__ import annotations

import ast
import contextlib
import math
import operator
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the folder of rlobj

from rlobj.base.processes import adopt_orphans, descendants, end_with_parent, ending, kill_tree

_CHARACTERS = 1000
_BITS = 4096
"""The largest expression, and the largest numerator and denominator."""
_EXPECTED = "numbers with + - * / // % ** and parentheses"
_LARGE = "a number is too large or too small"
_MOST = 1 << 20
"""The bytes of output after which a program is ended."""
_FILE = 1 << 26
"""The largest file that a program may write, in bytes."""
_PROCESSES = 64
"""More processes than these end a program."""

_VARIABLES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

deadline, memory = 30.0, 1 << 30
"""Limits of `python`: seconds, and bytes of each process. The worker process sets them."""


class ToolError(Exception):
    """A tool failed. The policy reads the message as it is."""


def calculator(expression: str) -> str:
    """Compute the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses, such as (37 + 5) * 46 / 8.

    Returns:
        The exact value, if it is an integer or a decimal of at most 15 digits; else 15 digits.

    Raises:
        ToolError: it is no such expression, a divisor is 0, or a number is too large.
    """
    text = expression.strip()
    try:
        if len(text) > _CHARACTERS:
            raise ValueError(f"the expression has more than {_CHARACTERS} characters")
        value = _value(ast.parse(text, mode="eval").body, text)
    except ZeroDivisionError:
        raise ToolError("error: division by zero") from None
    except (ValueError, OverflowError) as error:
        raise ToolError(f"error: {error}") from None
    except (ArithmeticError, SyntaxError, RecursionError, MemoryError):
        raise ToolError(f"error: expected {_EXPECTED}") from None
    if value.denominator == 1:
        return str(value.numerator)
    quotient = Context(prec=15).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize():g}"


def _value(node: ast.expr, text: str) -> Fraction:
    """The value of an expression.

    Raises:
        ValueError, ArithmeticError: it has none.
    """
    if isinstance(node, ast.Constant):
        number = Decimal((ast.get_source_segment(text, node) or "").replace("_", ""))
        if abs(number.adjusted()) > _BITS:
            raise ValueError(_LARGE)
        value = Fraction(number)
    elif isinstance(node, ast.UnaryOp | ast.BinOp) and type(node.op) in _OPERATORS:
        parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        value = Fraction(_OPERATORS[type(node.op)](*(_value(part, text) for part in parts)))
    else:
        raise ValueError(f"expected {_EXPECTED}")
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _BITS:
        raise ValueError(_LARGE)
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:  # such as a square root
        if base < 0:
            raise ValueError("a root of a negative number")
        return Fraction(float(base) ** float(exponent))
    size = max(abs(base.numerator), base.denominator).bit_length() - 1
    if size * abs(exponent) > _BITS:
        raise ValueError(_LARGE)
    return Fraction(base**exponent)


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def python(code: str) -> str:
    """Run a Python program and return what it prints, and the value of its last expression.

    Each call begins anew, in an empty folder.

    Args:
        code: The program.

    Raises:
        ToolError: the program raised an exception or ended badly. The message is what it printed,
            and the last line of the traceback.

    A program that prints more than 1 MiB is ended. `random` is seeded by the program's text. The
    limits do not stop a program from using the network or the user's files: see the module.
    """
    data = code.encode(errors="replace")
    with tempfile.TemporaryDirectory(prefix="rlobj-", ignore_cleanup_errors=True) as folder:
        limits = map(str, (len(data), deadline, memory))
        with subprocess.Popen(
            [sys.executable, "-P", "-s", "-X", "utf8", __file__, *limits],
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, **_VARIABLES},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(data)
                process.stdin.flush()  # it stays open: its end is the end of the process
                output = process.stdout.read(_MOST + 1)
            finally:
                kill_tree(process.pid)
    text = output[:_MOST].decode(errors="replace").strip("\n")
    if len(output) > _MOST:
        return f"{text}\nerror: the program printed more than {_MOST:,} bytes"
    if process.returncode:
        raise ToolError(text)
    return text


def _keep(data: bytes) -> None:
    """Run code in a child, end all that it started, and exit: 0 if it succeeded."""
    adopt_orphans()
    theirs, ours = os.pipe()
    if (runner := os.fork()) == 0:
        os.setsid()
        os.close(ours)
        end_with_parent(theirs)
        _run(data)
    end, problem = time.monotonic() + deadline + 1, ""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not problem and os.waitid(os.P_PID, runner, flags) is None:
        time.sleep(0.005)
        if len(descendants(os.getpid())) > _PROCESSES:
            problem = f"started more than {_PROCESSES} processes"
        elif time.monotonic() > end:
            problem = f"did not end within {deadline:g} seconds"
    kill_tree(runner)
    status = os.waitpid(runner, 0)[1]
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in descendants(os.getpid()):
                kill_tree(child)
            os.waitpid(-1, 0)
    if not problem and (code := os.waitstatus_to_exitcode(status)) not in (0, 1):
        problem = f"ended with {ending(code)}"
    if problem:
        print(f"\nerror: the program {problem}", flush=True)
    os._exit(bool(problem or status))


def _run(data: bytes) -> None:
    """Run code under limits, and exit: 0 if it succeeded, 1 after an exception."""
    cpu = resource.RLIMIT_CPU, math.ceil(deadline) + 1
    limits = (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_CORE, 0)
    for limit, value in (cpu, *limits):
        with contextlib.suppress(ValueError, OSError):  # an outer limit is lower
            resource.setrlimit(limit, (value, value))
    sys.path[0] = os.getcwd()  # not the folder of rlobj
    sys.argv = [""]
    random.seed(data)
    main = sys.modules["__main__"] = ModuleType("__main__")  # pickle looks for its functions there
    code: Any = 0
    try:
        body = ast.parse(data).body
        last = [node.value for node in body[-1:] if isinstance(node, ast.Expr)]
        body = body[: len(body) - len(last)]
        exec(compile(ast.Module(body, []), "<code>", "exec"), vars(main))
        for expression in last:
            value = eval(compile(ast.Expression(expression), "<code>", "eval"), vars(main))
            if value is not None:
                print(repr(value))
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        code = traceback.format_exception_only(error)[-1].rstrip()
    with contextlib.suppress(BaseException):  # the program may have closed stdout
        if not isinstance(code, int | None):
            print(code)
        sys.stdout.flush()
    os._exit(code & 255 if isinstance(code, int) else int(code is not None))


def _main() -> None:
    global deadline, memory
    size, deadline, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    data = sys.stdin.buffer.read(size)
    end_with_parent()
    _keep(data)


if __name__ == "__main__":
    _main()
