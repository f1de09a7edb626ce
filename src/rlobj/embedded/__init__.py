"""The embedded default: a tiny Qwen3 policy, its built-in task and the settings that fit it.

    embedded_policy(task) -> model folder in the user's cache, warm-started on first use
    PROFILES[task]        -> partial RunConfig that replaces the paper's scale

The profiles are plain data; what needs transformers is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlobj.embedded.profile import EMBEDDED_PROFILE, PROFILES, SCRATCH_PROFILE

if TYPE_CHECKING:
    from rlobj.embedded.cache import embedded_policy
    from rlobj.embedded.policy import build_policy
    from rlobj.embedded.tokenizer import build_tokenizer
    from rlobj.embedded.warm_start import RECIPES, WarmStart

__all__ = [
    "EMBEDDED_PROFILE",
    "PROFILES",
    "RECIPES",
    "SCRATCH_PROFILE",
    "WarmStart",
    "build_policy",
    "build_tokenizer",
    "embedded_policy",
]

_HOMES = {
    "RECIPES": "warm_start",
    "WarmStart": "warm_start",
    "build_policy": "policy",
    "build_tokenizer": "tokenizer",
    "embedded_policy": "cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
