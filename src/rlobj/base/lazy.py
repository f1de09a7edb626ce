"""Packages whose public names load their modules when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_of(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the public names of a package.

    Args:
        package: its `__name__`.
        homes: by module below the package, the names that it has, separated by blanks.
    """
    known = {name: f"{package}.{home}" for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(known[name])
        value = module if known[name].endswith(f".{name}") else getattr(module, name)
        setattr(importlib.import_module(package), name, value)
        return value

    return load, list(known)
