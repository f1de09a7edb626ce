"""The embedded default: a tiny Qwen3 policy, its built-in task and the settings that fit it.

    embedded_policy(task) -> model folder in the user's cache, warm-started on first use
    PROFILES[task]        -> partial RunConfig that replaces the paper's scale

The profiles are plain data; what needs transformers is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlobj.base.lazy import load
from rlobj.config.embedded_profile import EMBEDDED_PROFILE, PROFILES, SCRATCH_PROFILE

if TYPE_CHECKING:
    from rlobj.models.embedded.architecture import build_policy
    from rlobj.models.embedded.cache import embedded_policy
    from rlobj.models.embedded.tokenizer import build_tokenizer
    from rlobj.models.embedded.warm_start import RECIPES, WarmStart

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
    "RECIPES": "rlobj.models.embedded.warm_start",
    "WarmStart": "rlobj.models.embedded.warm_start",
    "build_policy": "rlobj.models.embedded.architecture",
    "build_tokenizer": "rlobj.models.embedded.tokenizer",
    "embedded_policy": "rlobj.models.embedded.cache",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
