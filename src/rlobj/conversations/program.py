"""What the tool `python` starts: `program.py SIZE SECONDS MEMORY`.

It runs SIZE bytes of code from stdin under limits, and prints the value of the last expression, or
the last line of the traceback. The exit status is 0 if the code succeeded, 1 after an exception.
"""

import ast
import contextlib
import math
import os
import random
import resource
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

_FILE = 1 << 26
"""The largest file that a program may write, in bytes."""


def run(data: bytes) -> int:
    """Run code; the exit status."""
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
    return code & 255 if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the folder of rlobj
    from rlobj.base.processes import end_with_parent

    size, seconds, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    program = sys.stdin.buffer.read(size)
    end_with_parent()
    cpu = resource.RLIMIT_CPU, math.ceil(seconds) + 1
    files = (resource.RLIMIT_FSIZE, _FILE), (resource.RLIMIT_CORE, 0)
    for limit, value in (cpu, (resource.RLIMIT_AS, memory), *files):
        with contextlib.suppress(ValueError, OSError):  # an outer limit is lower
            resource.setrlimit(limit, (value, value))
    sys.path[0] = os.getcwd()
    sys.argv = [""]
    random.seed(program)
    os._exit(run(program))
