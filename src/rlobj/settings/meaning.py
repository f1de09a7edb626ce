"""Which setting an unknown name means."""

import difflib
from functools import cache

from rlobj.base.yaml import packaged_table
from rlobj.settings.presets import flattened
from rlobj.settings.run_config import RunConfig, settings_of

_ITS_OWN_WORDS = ("environment", "evaluation", "rewards", "scores")
"""Sections in which another program's word does not mean a setting of the rollouts or updates."""


@cache
def synonyms() -> dict[str, str]:
    """Settings and a remark, by what other programs call them; see synonyms.yaml."""
    table = packaged_table("rlobj.settings", "synonyms.yaml").items()
    return {word: meaning for words, meaning in table for word in words.split()}


def meaning_of(name: str, section: str = "", keys: tuple[str, ...] = ()) -> str:
    """A question that names the settings that an unknown one can mean; "" = no idea.

    It is what another program calls a setting, or nearly the last part of a setting's name.
    In a section of rlobj, the last part must be exact: `nearest` knows the names that are near.

    Args:
        name: the unknown setting.
        section: the section of rlobj that lacks it; "" = none.
        keys: the names that this section has; they depend on the kind of a primitive.

    Example:
        >>> meaning_of("actor_rollout_ref.actor.optim.lr")
        "Did you mean 'training.learning_rate'?"
        >>> meaning_of("trainig.stepz")
        "Did you mean 'training.steps'?"
    """
    above, _, last = name.rpartition(".")
    ends = (name.split(".", parts)[-1] for parts in range(name.count(".") + 1))
    meant = next((synonyms()[end] for end in ends if end in synonyms()), "")
    # Names in an objective are those of equations.
    if not meant and not section.startswith("objective"):
        paths = [p for p in flattened(settings_of(RunConfig())) if not p.startswith("objective.")]
        lasts = [path.rpartition(".")[2] for path in paths]
        near = [last] if section else difflib.get_close_matches(last, lasts, 1, 0.8)
        close = [path for path, end in zip(paths, lasts, strict=True) if end in near]
        meant = " ".join([path for path in close if path.startswith(f"{above}.")] or close)
    settings, _, remark = meant.partition(";")
    fitting = [setting for setting in settings.split() if _fits(setting, section, keys)]
    question = f"Did you mean {' or '.join(map(repr, fitting))}?" if fitting else ""
    return f"{question}{remark and f'{remark}.'}".strip() if fitting or not settings else ""


def _fits(setting: str, section: str, keys: tuple[str, ...]) -> bool:
    """Whether a word in this section, which has these keys, can mean the setting."""
    place, _, key = setting.rpartition(".")
    return key in keys if section and place == section else not section.startswith(_ITS_OWN_WORDS)
