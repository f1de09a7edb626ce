"""The embedded policy: a tiny Qwen3 that rlobj trains on when no model is named.

    embedded_policy(task) -> model folder, a part of this package

`rlobj.settings.profiles` holds the settings that fit a run to it. Its tokenizer has one token per
character, and its model the Qwen3 architecture at 83,648 or 108,160 parameters. It was trained with
supervision, which leaves something to learn: benchmarks/embedded_policy.py has the recipe.
"""

import string
from pathlib import Path

ALPHABET = "0123456789+-*,= "
"""Every character that the policies of `addition` and `max-digits` read and write."""

SCRATCHPAD_ALPHABET = ALPHABET + ";#" + string.ascii_lowercase
"""Those of the policy of `scratchpad`; the letters mean nothing."""

ALPHABETS = {
    "scratchpad": SCRATCHPAD_ALPHABET,
    "calculator": SCRATCHPAD_ALPHABET + "?",
    "addition": ALPHABET,
    "max-digits": ALPHABET,
}
"""The characters of the policy of each task."""


def embedded_policy(task: str) -> Path:
    """The Hugging Face model folder, with tokenizer, of the policy for a task of `ALPHABETS`."""
    return Path(__file__).with_name("policies") / task
