"""Packages whose public names load their modules when they are first used."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any


def names_of(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """The `__getattr__` and the public names of a package: those that its `__init__.pyi` imports.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    with open(f"{file}i", encoding="utf-8") as stub:
        lines = re.findall(r"^from (\S+) import (\w+) as \w+$", stub.read(), re.MULTILINE)
    homes = {name: home for home, name in lines}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(__import__(homes[name], fromlist=[name]), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return load, list(homes)
