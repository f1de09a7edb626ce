"""The embedded policy: a tiny Qwen3 that rlobj trains on when no model is named.

    embedded_policy(task) -> model folder in the user's cache, made on first use

`rlobj.config.embedded_profile` holds the settings that fit a run to it.
"""

from rlobj.models.embedded.architecture import build_policy
from rlobj.models.embedded.cache import embedded_policy
from rlobj.models.embedded.tokenizer import build_tokenizer
from rlobj.models.embedded.warm_start import RECIPES, WarmStart

__all__ = ["RECIPES", "WarmStart", "build_policy", "build_tokenizer", "embedded_policy"]
