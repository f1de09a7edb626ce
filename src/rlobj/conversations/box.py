"""The tools in the box: a calculator, and Python.

`python` runs code in a process of its own, under limits. They are for accidents, and they are no
wall against code that attacks. The code runs as the user who trains. It can use the network, and
read and write all files that this user can; also what other processes of the user hold, such as
their environment. The limit on memory holds for each process, and the limit on a file for each
file. A process that leaves its group and its parent can outlive its program. Run code of strangers
in a container or a virtual machine.
"""

import ast
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from rlobj.base.processes import descendants, ending, kill_tree
from rlobj.conversations import program

_CHARACTERS = 1000
_BITS = 4096
"""The largest expression, and the largest numerator and denominator."""
_EXPECTED = "numbers with + - * / // % ** and parentheses"
_LARGE = "a number is too large or too small"
_MOST = 1 << 20
"""The bytes of output that are read."""
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

    Of what it prints, 1 MiB is read. `random` is seeded by the program's text. The
    limits do not stop a program from using the network or the user's files: see the module.
    """
    data = code.encode(errors="replace")
    words = map(str, (program.__file__, len(data), deadline, memory))
    with (
        tempfile.TemporaryDirectory(prefix="rlobj-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            [sys.executable, "-P", "-s", "-X", "utf8", *words],
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, **_VARIABLES},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None
        try:
            process.stdin.write(data)
            process.stdin.flush()  # it stays open: its end is the end of the process
            problem = _problem(process)
        finally:
            kill_tree(process.pid)
        output.seek(0)
        text = output.read(_MOST).decode(errors="replace").strip("\n")
    if problem or process.returncode not in (0, 1):
        problem = problem or f"ended with {ending(process.returncode)}"
        raise ToolError(f"{text}\nerror: the program {problem}".lstrip())
    if process.returncode:
        raise ToolError(text)
    return text


def _problem(process: subprocess.Popen[bytes]) -> str:
    """Wait for a program: which limit it reached, or "" if it has ended."""
    end = time.monotonic() + deadline
    while process.poll() is None:
        time.sleep(0.005)
        if time.monotonic() > end:
            return f"did not end within {deadline:g} seconds"
        if len(descendants(process.pid)) > _PROCESSES:
            return f"started more than {_PROCESSES} processes"
    return ""
