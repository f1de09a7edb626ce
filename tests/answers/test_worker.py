"""`rlobj.answers` needs the standard library only, except in a worker process."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from rlobj import answers


def test_two_modules_need_packages() -> None:
    needed: dict[str, set[str]] = {}
    for path in Path(answers.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            tops = {name.partition(".")[0] for name in names}
            needed.setdefault(path.name, set()).update(tops - sys.stdlib_module_names - {"rlobj"})
    named = {name: packages for name, packages in needed.items() if packages}
    assert named == {"numeric.py": {"mpmath"}, "worker.py": {"math_verify", "sympy"}}
