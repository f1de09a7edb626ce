"""Importing a user's class or function by name, from a module or from a file."""

import ast
import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from rlobj.base.errors import Argument, ConfigError, nearest
from rlobj.base.paths import path_of


def object_text(name: str) -> str:
    """What a record says of a Python object. Without a colon it names no code."""
    return f"<Python object {name}>"


def object_name(value: Any) -> str:
    """The name of a function or class; of another object, that of its type."""
    return getattr(value, "__qualname__", type(value).__name__)


_FILES: dict[tuple[str, int], ModuleType] = {}
"""The imported files, by path and time of the last change."""
_TRUSTED: ContextVar[Collection[str] | None] = ContextVar("_TRUSTED", default=None)
"""The targets that may be imported; None = all."""
_STAND_INS: ContextVar[bool] = ContextVar("_STAND_INS", default=False)
"""Whether another one has a stand-in."""
_EXPECTED = 'Expected "package.module:name" or "path/to/file.py:name".'


@contextlib.contextmanager
def held(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Inside, a variable has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def importing(targets: Collection[str] | None) -> Iterator[None]:
    """Inside, only these targets are imported, and another one is an error; None = all of them.

    What is not trusted outside is not trusted inside either.
    """
    outside = _TRUSTED.get()
    if outside is not None:
        targets = outside if targets is None else [name for name in targets if name in outside]
    with held(_TRUSTED, targets):
        yield


@contextlib.contextmanager
def without_imports(but: Collection[str] = ()) -> Iterator[None]:
    """Inside, nothing is imported but these targets: settings are read, and not used.

    Another class or rule that an objective names has a stand-in, which keeps its settings.
    """
    with held(_STAND_INS, True), importing(but):
        yield


def reads_only() -> bool:
    """Whether settings are only read, as inside `without_imports`."""
    return _STAND_INS.get()


def importable(target: str) -> bool:
    """Whether a target may be imported."""
    trusted = _TRUSTED.get()
    return trusted is None or target in trusted


def has_stand_in(target: str | None) -> bool:
    """Whether a class or rule has a stand-in, because settings are only read.

    Raises:
        ConfigError: as `split_target`.
    """
    return reads_only() and bool(split_target(target)) and not importable(str(target))


def trusted_target(target: str | None) -> tuple[str, str]:
    """Split the name of an object that may be imported into its module or file, and its name.

    Raises:
        ConfigError: as `split_target`, or `importing` refuses it.
    """
    source, name = split_target(target)
    if not importable(str(target)):
        what = f"the settings name code by its path, {target!r}. If you trust it, add "
        raise ConfigError(what, Argument("trust"))
    return source, name


def split_target(target: str | None) -> tuple[str, str]:
    """Split the name of an object into its module or file, and its name.

    Raises:
        ConfigError: the target is not of this form.
    """
    source, _, name = (target or "").rpartition(":")
    if not source or not name:
        raise ConfigError(f"target is {target!r}.{names_in_file(target or '') or f' {_EXPECTED}'}")
    return source, name


_FILE = re.compile(r"(\A|\bcustom\(\s*['\"])([\w.][^'\"\n]{0,200}\.py)(?=:\w)")
"""The relative path of a file of code in a setting: a whole target, or in a rule."""


def with_files(setting: Any, moved: Callable[[str], str]) -> Any:
    """A setting with `moved(path)` for the relative path of each file of code; `data` has none."""
    if isinstance(setting, dict):
        return {
            key: value if key == "data" else with_files(value, moved)
            for key, value in setting.items()
        }
    if isinstance(setting, list):
        return [with_files(value, moved) for value in setting]
    if not isinstance(setting, str):
        return setting
    return _FILE.sub(lambda target: f"{target[1]}{moved(target[2])}", setting)


def names_in_file(text: str, noun: str = "function") -> str:
    """Advice for a Python file that is named without one of its functions or classes.

    The file is parsed, and not executed.

    Args:
        text: what was named.
        noun: `function` or `class`.

    Returns:
        ` Name the function: r.py:good, r.py:later.`; "" if the text is the name of no Python file.
    """
    file = text.removesuffix(":")
    if not file.endswith(".py"):
        return ""
    if not (path := path_of(file)).is_file():
        return f" There is no file {file!r}."
    kinds = ast.ClassDef if noun == "class" else (ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
        return f" {file} cannot be read as Python: {error}."
    names = [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    listed = ", ".join(f"{file}:{name}" for name in names)
    return f" Name the {noun}: {listed}." if names else f" {file} defines no public {noun}."


def import_target(target: str | None) -> Any:
    """Import an object.

    Args:
        target: `package.module:name` or `path/to/file.py:name`.

    Raises:
        ConfigError: the module, file or name does not exist, importing it fails, or
            `trusted_target` refuses it.

    Example:
        >>> import_target("math:sqrt")(9)
        3.0
    """
    source, name = trusted_target(target)
    assert target is not None
    try:
        from_file = source.endswith(".py")
        module = _load_file(target) if from_file else importlib.import_module(source)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        what = f"target {target!r}: importing {source!r} failed: {type(error).__name__}: {error}"
        raise ConfigError(f"{what}. {_EXPECTED}") from error
    if not hasattr(module, name):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"target {target!r}: no such name.{nearest(name, public)}")
    return getattr(module, name)


def require_file(target: str) -> Path:
    """The file that a target names.

    Raises:
        ConfigError: it does not exist.
    """
    path = path_of(target.rpartition(":")[0])
    if not path.is_file():
        raise ConfigError(f"target {target!r}: there is no file {str(path)!r}.")
    return path


def _load_file(target: str) -> ModuleType:
    path = require_file(target)
    written = (str(path.resolve()), path.stat().st_mtime_ns)
    if written in _FILES:  # importing it again would make other classes, unequal to the first
        return _FILES[written]
    name = f"_rlobj_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle find a module by its name
    spec.loader.exec_module(module)
    _FILES[written] = module
    return module
