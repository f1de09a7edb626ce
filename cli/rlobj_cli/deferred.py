"""torch, imported at the first use of a name in it: mistakes and explanations do without."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """A module that runs its own code when a name in it is used; then it is an ordinary one."""

    def __getattribute__(self, name: str) -> Any:
        spec = ModuleType.__getattribute__(self, "__spec__")
        if name == "__spec__":  # all that `import torch` asks of a module that is known
            return spec
        object.__setattr__(self, "__class__", ModuleType)
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(name: str) -> None:
    """Let `import` of a package only note its name until it is used."""
    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[name] = module
