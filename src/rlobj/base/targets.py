"""Importing a user's class or function by name, from a module or from a file.

The file and line of a user's function, and texts of any length, in messages.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from rlobj.base.errors import Argument, ConfigError, nearest
from rlobj.base.files import path_of

PYTHON_OBJECT = "<Python object"
"""The beginning of the text for a Python object in a configuration."""


def object_text(name: str) -> str:
    """The text for a Python object in a configuration."""
    return f"{PYTHON_OBJECT}: {name}>"


def object_name(value: Any) -> str:
    """The name of a function or class; of another object, that of its type."""
    return getattr(value, "__qualname__", type(value).__name__)


_FILES: dict[tuple[str, int], ModuleType] = {}
"""The imported files, by path and time of the last change."""

_IMPORTING: ContextVar[bool | str] = ContextVar("_IMPORTING", default=True)

_EXPECTED = 'Expected "package.module:name" or "path/to/file.py:name".'


@contextlib.contextmanager
def importing(allowed: bool | str) -> Iterator[None]:
    """Allow or refuse imports in the block: settings of a file are not trusted.

    A text, such as the settings of a command line, allows what it has between quotes.
    """
    token = _IMPORTING.set(allowed)
    try:
        yield
    finally:
        _IMPORTING.reset(token)


def trusted_target(target: str | None) -> tuple[str, str]:
    """Split the name of an object that may be imported into its module or file, and its name.

    Raises:
        ConfigError: the target is not of this form, or `importing` refuses it.
    """
    if target is not None and target.startswith(PYTHON_OBJECT):
        raise ConfigError(
            f"target {target!r} was passed from Python, and no configuration can name it. "
            "Pass the object again, such as reward=FUNCTION"
        )
    source, _, name = (target or "").rpartition(":")
    if not source or not name:
        raise ConfigError(f"target is {target!r}. {_EXPECTED}")
    assert target is not None
    allowed = _IMPORTING.get()
    if isinstance(allowed, str):
        allowed = any(f"{quote}{target}{quote}" in allowed for quote in "'\"")
    if not allowed:
        raise ConfigError(
            f"the settings name code by its path, {target!r}. It is imported only if you trust it: "
            "add ",
            Argument("trust"),
        )
    return source, name


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
        raise ConfigError(
            f"target {target!r}: importing {source!r} failed: {type(error).__name__}: {error}. "
            f"{_EXPECTED}"
        ) from error
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


_SHOWN = 300
"""Characters of a text in a message."""


def place_of(
    function: Callable[..., Any], frames: Iterable[tuple[FrameType, int | None]] = ()
) -> str:
    """A line of a message: the user's file and line, with the text of the line.

    Args:
        function: the user's.
        frames: where an exception passed, or what is running, with the line numbers. The last line
            in the function's own file counts, and without one the definition of the function.
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    if code is None:  # of C
        return ""
    file = code.co_filename
    for frame, line in reversed([*frames]):
        if frame.f_code.co_filename == file and line is not None:
            return place_at(file, line)
    return f"\n  at {file}, line {code.co_firstlineno}"


def place_at(file: str, line: int) -> str:
    """A line of a message: a file and a line, with the text of the line."""
    return f"\n  at {file}, line {line}: {shown(linecache.getline(file, line).strip(), str)}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """The first characters of the text of a value."""
    try:
        text = write(value)
    except BaseException:
        text = f"<unprintable {type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
