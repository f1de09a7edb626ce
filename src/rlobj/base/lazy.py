"""Lazy names: names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def load(package: str, modules: Mapping[str, str], name: str) -> Any:
    """The value of a lazy name of a package, for the package's `__getattr__`.

    Args:
        package: the full name of the package.
        modules: for each lazy name, the module that defines it; `package.name` for a submodule.
        name: the name to load.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in modules:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    module = importlib.import_module(modules[name])
    value = module if modules[name].endswith(f".{name}") else getattr(module, name)
    setattr(sys.modules[package], name, value)
    return value
