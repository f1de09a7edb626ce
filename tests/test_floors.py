"""The floors: what may import what, what `import rlobj` loads, how long code gets."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import rlobj
from rlobj import MissingExtra
from rlobj.base.primitives import Primitive
from rlobj.objectives.rules.nodes import Column

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])

FLOORS = (
    {"base"},
    {"workers"},
    {"answers", "installation", "objectives", "reporting"},
    {"data", "scoring"},
    {"rewards"},
    {"samplers"},
    {"conversations"},
    {"ranks", "settings"},
    {"runs"},
    {"models"},
    {"insight", "sizing"},
    {"evaluation"},
    {"integrations", "training"},
    {"rlobj_cli"},
)
"""Rooms from the ground up: a module or package of rlobj, or the command line. A room may use the
floors below it, and itself, never its neighbours."""

LEVEL = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
HEAVY = {
    *("transformers", "accelerate", "vllm", "datasets", "pyarrow", "math_verify", "safetensors"),
    *("yaml", "typer", "rich", "platformdirs", "rlobj_cli", "torch", "pydantic"),
}
LONGEST_FUNCTION = 60
WHOLE = (
    *("advantages", "controllers", "divisors", "mismatch", "penalties", "surrogates"),
    "rules.operators",
)
"""The modules of `rlobj.objectives` whose parts and names are all importable from `rlobj`."""


def module_of(path: Path) -> str:
    """The dotted name of a file; `rlobj.data` for rlobj/data/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "benchmarks" else parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a module of ours; "" for the front door, `rlobj` itself."""
    top, _, rest = module.partition(".")
    if top == "rlobj_cli":
        return top
    return rest.partition(".")[0] if top == "rlobj" else None


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, also those in functions and those for the type checker."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            module = str(node.module)
            bare = module == "rlobj"  # `from rlobj import statistics` names a room
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if bare else module


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_import_from_floors_below_only():
    wrong = []
    for path in FILES:
        own = room_of(module_of(path))
        for line, module in imports(path) if own else ():  # the front door gathers names for users
            room = room_of(module)
            if room is None or room == own:
                continue
            if room not in LEVEL and own != "rlobj_cli":
                wrong.append(f"{relative(path)}:{line} goes through the front door")
            elif room in LEVEL and LEVEL[room] >= LEVEL[own]:
                wrong.append(f"{relative(path)}:{line}: {own} may not import {room}")
    assert wrong == []


def test_modules_do_not_import_one_another_in_circles():
    """Imports inside functions and those for the type checker count as well."""
    paths = {module_of(path): path for path in [*FILES, *(ROOT / "benchmarks").rglob("*.py")]}
    graph = {module: set(imported(path, set(paths))) for module, path in paths.items()}
    del graph["rlobj"]  # the public names, loaded lazily
    assert cycles(graph) == []


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    """The modules of ours that a file and its stub import; `from package import module` is that."""
    files = [each for each in (path, path.with_suffix(".pyi")) if each.exists()]
    trees = [parsed(each) for each in files]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            package = f"{module_of(path)}." if node.level else ""  # stubs import relative to theirs
            source = f"{package}{node.module}"
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield submodule if submodule in modules else source


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that reach one another (strongly connected components)."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        found, todo = set(), [start]
        while todo:
            for after in graph.get(todo.pop(), set()) - found:
                found.add(after)
                todo.append(after)
        reached[start] = found
    inside = [{b for b in reached[a] if a in reached.get(b, ())} for a in graph if a in reached[a]]
    return [group for i, group in enumerate(inside) if group not in inside[:i]]


def test_every_room_of_the_floors_exists():
    assert {room_of(module_of(path)) for path in FILES} - {""} == set(LEVEL)


def test_the_contributing_page_draws_the_same_floors():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawn = text.partition("```text\n")[2].partition("```")[0].splitlines()
    assert [set(line.split()) for line in reversed(drawn)] == list(FLOORS)


@pytest.mark.parametrize(
    ("use", "loaded"),
    [
        ("", []),
        ("rlobj.parse('prob < 0.1')", ["pydantic"]),
        ("rlobj.Objective(surrogate=rlobj.Clip())", ["pydantic", "torch"]),
    ],
)
def test_the_library_loads_only_what_is_used(use, loaded):
    code = f"import sys, rlobj; {use}\nprint(*[n for n in {sorted(HEAVY)!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == loaded


def test_public_names_exist():
    for path in FILES:
        name = module_of(path)
        if path.name == "__main__.py":  # a program
            continue
        try:
            module = importlib.import_module(name)
        except MissingExtra:  # verl has its own environment
            continue
        names = getattr(module, "__all__", [])
        assert len(names) == len(set(names)), name
        assert [each for each in names if not hasattr(module, each)] == [], name


@pytest.mark.parametrize("name", WHOLE)
def test_all_parts_of_objectives_and_of_the_rule_language_are_importable_from_rlobj(name):
    module = importlib.import_module(f"rlobj.objectives.{name}")
    families = {part for part in vars(module).values() if isinstance(part, type)}
    parts = {part.__name__ for part in families if issubclass(part, Primitive)} - {"Primitive"}
    for key, value in vars(module).items():
        function = isinstance(value, FunctionType) and value.__module__ == module.__name__
        if isinstance(value, Column) or function:
            parts.add(key)
    public = {part for part in parts if not part.startswith("_")}
    assert public
    assert public <= {*dir(rlobj)}


def test_functions_are_short():
    """Their bodies: a signature and a docstring may be as long as they need."""
    found = {}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node) is not None and len(node.body) > 1
                first = node.body[1 if documented else 0].lineno
                length = int(node.end_lineno or 0) - first + 1
                if length > LONGEST_FUNCTION:
                    found[f"{relative(path)}:{node.name}"] = length
    assert found == {}


def test_no_two_test_files_have_one_name():
    """pytest imports each from its own folder, and another process finds only the first."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))


def test_no_file_of_a_run_can_run_code() -> None:
    """Nothing is unpickled, and YAML is read as data. Ranks of one job may exchange objects of
    Python, and a worker process gets those of its parent."""
    unsafe = r"(pickle|marshal|dill|joblib)\.loads?|read_pickle|allow_pickle|shelve|unsafe_load"
    for path in FILES:
        if path.parts[-2:] == ("workers", "child.py"):
            continue
        found = re.search(rf"{unsafe}|torch\.load|weights_only", path.read_text("utf-8"))
        assert found is None, (path, found)
