"""Which setting an unknown name means."""

from __future__ import annotations

import difflib
from functools import cache

from rlobj.base.yaml import packaged_table
from rlobj.settings.presets import flattened
from rlobj.settings.run_config import RunConfig, settings_of


@cache
def synonyms() -> dict[str, str]:
    """Settings and a remark, by what other programs call them; see synonyms.yaml."""
    table = packaged_table("rlobj.settings", "synonyms.yaml").items()
    return {word: meaning for words, meaning in table for word in words.split()}


def meaning_of(name: str) -> str:
    """A question that names the settings that an unknown one can mean; "" = no idea.

    It is what another program calls a setting, or nearly the last part of a setting's name.

    Example:
        >>> meaning_of("actor_rollout_ref.actor.optim.lr")
        "Did you mean 'training.learning_rate'?"
        >>> meaning_of("trainig.stepz")
        "Did you mean 'training.steps'?"
    """
    section, _, last = name.rpartition(".")
    ends = (name.split(".", parts)[-1] for parts in range(name.count(".") + 1))
    meant = next((synonyms()[end] for end in ends if end in synonyms()), "")
    if not meant:  # names in an objective are those of equations
        paths = [p for p in flattened(settings_of(RunConfig())) if not p.startswith("objective.")]
        lasts = [path.rpartition(".")[2] for path in paths]
        near = [last] if last in lasts else difflib.get_close_matches(last, lasts, 1, 0.8)
        close = [path for path, end in zip(paths, lasts, strict=True) if end in near]
        meant = " ".join([path for path in close if path.startswith(f"{section}.")] or close)
    settings, _, remark = meant.partition(";")
    question = settings and f"Did you mean {' or '.join(map(repr, settings.split()))}?"
    return f"{question}{remark and f'{remark}.'}".strip()
