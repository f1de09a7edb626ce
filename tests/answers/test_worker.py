"""`rlobj.answers` stays independent of the rest of rlobj."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(str(importlib.import_module("rlobj.answers").__file__)).parent


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return found


OTHERS = {"numeric.py": {"mpmath"}, "symbolic.py": {"math_verify", "sympy"}}
"""What a file needs besides the standard library."""


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_answers_imports_of_rlobj_only_base_and_workers(path: Path) -> None:
    modules = imported_modules(path)
    own = {name for name in modules if name.partition(".")[0] == "rlobj"}
    allowed = ("rlobj.answers", "rlobj.base", "rlobj.workers")
    assert {name for name in own if not name.startswith(allowed)} == set()
    tops = {name.partition(".")[0] for name in modules - own}
    assert tops - sys.stdlib_module_names == OTHERS.get(path.name, set())
