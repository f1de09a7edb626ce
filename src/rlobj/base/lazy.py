"""Names of a package that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["load"]


def load(package: str, homes: Mapping[str, str], name: str) -> Any:
    """The value of a package's lazy name; the package's `__getattr__` calls this.

    Args:
        package: the dotted name of the package.
        homes: the module of each lazy name, or the module that the name stands for.
        name: the name that was asked for.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in homes:
        raise AttributeError(f"module '{package}' has no attribute '{name}'")
    module = importlib.import_module(homes[name])
    value = module if homes[name].endswith(f".{name}") else getattr(module, name)
    setattr(sys.modules[package], name, value)
    return value
