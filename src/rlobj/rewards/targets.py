"""A user's function by name: from an importable module or from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from rlobj.errors import ConfigError, nearest

__all__ = ["import_function"]

_EXPECTED = 'Expected "package.module:function" or "path/to/file.py:function".'


def import_function(target: str) -> Callable[..., Any]:
    """The function that `package.module:function` or `path/to/file.py:function` names.

    Raises:
        ConfigError: there is no such module, file or function, or it cannot be imported.

    Example:
        >>> import_function("math:sqrt")(9)
        3.0
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ConfigError(f"target {target!r} has no function. {_EXPECTED}")
    try:
        from_file = place.endswith(".py")
        module = _load_file(target, place) if from_file else importlib.import_module(place)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"target {target!r}: importing {place!r} failed: {type(error).__name__}: {error}. "
            f"{_EXPECTED}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f"target {target!r}: no function {name!r}.{nearest(name, functions)}")
    return function


def _load_file(target: str, place: str) -> ModuleType:
    path = Path(place).expanduser()
    if not path.is_file():
        raise ConfigError(f"target {target!r}: there is no file {str(path)!r}.")
    name = f"_rlobj_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module
