"""From layers of settings to one configuration, and all errors at once."""

import difflib
from collections.abc import Sequence
from functools import cache
from os.path import commonprefix
from pathlib import Path

from rlobj.base.errors import ConfigError, Message, nearest
from rlobj.base.validation import InvalidFields, UnknownKey, half_surrogates
from rlobj.base.yaml import packaged_table
from rlobj.objectives.objective import Objective
from rlobj.settings.layers import Layer, layers_of, merged
from rlobj.settings.presets import FILE_KEYS, flattened
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


def compose(preset: str | None, overrides: Sequence[Layer] = ()) -> RunConfig:
    """Return the configuration of a preset and what overrides it; see `build_config`.

    Args:
        preset: name or YAML file; None = the `preset` of an override, if any.
        overrides: (origin, partial RunConfig), later over earlier.

    Example:
        >>> compose("stapo", [("here", {"training": {"steps": 5}})]).training.steps
        5
    """
    return build_config(layers_of(preset, overrides))


def build_config(layers: Sequence[Layer]) -> RunConfig:
    """Merge layers of settings, lowest first, to one configuration.

    Raises:
        ConfigError: all errors at once, each with its path and layer.
    """
    default = Objective()
    kinds = {name: getattr(default, name).kind for name in ("advantage", "surrogate", "divisor")}
    settings = merged([("defaults", {"objective": kinds}), *layers])
    try:
        if broken := [*half_surrogates(settings)]:
            raise InvalidFields(broken)
        return RunConfig(**settings)
    except InvalidFields as error:
        lines = []
        for path, text in error.problems:
            origin = _origin(path, layers)
            if isinstance(text, UnknownKey):
                text = "unknown key." + _meant(path, text.known, origin, layers)
            lines.append(Message(path, f" (from {origin})" if origin else "", ": ", text))
        raise ConfigError(Message.joined("\n", lines)) from None


def _meant(path: str, known: Sequence[str], origin: str, layers: Sequence[Layer]) -> str:
    """Advice for an unknown key: what it, or the settings below it, can mean; else near names.

    Below the top, names in its section are listed; at the top of a file, keys that are no settings.
    """
    section, dot, key = path.rpartition(".")
    if any(part.isdigit() for part in path.split(".")):  # in an entry of a list
        return nearest(key, known)
    names = [name for name in flattened(merged(layers)) if f"{name}.".startswith(f"{path}.")]
    keys = ("kind", *known)
    pairs = [(name[len(path) + 1 :], meaning_of(name, section, keys)) for name in names or [path]]
    answers = [f" {name}: {said}" if len(names) > 1 else f" {said}" for name, said in pairs if said]
    if answers:
        listed = f" Known: {', '.join(sorted(known))}." if section else ""
        return "".join(answers) + listed
    if not section and Path(origin.removeprefix("preset ")).is_file():
        known = [*known, *FILE_KEYS]
    return nearest(key, known, section=section + dot)


def _origin(path: str, layers: Sequence[Layer]) -> str:
    """The last of the layers that hold most of the path; "" if none holds a part."""
    held = [
        (len(commonprefix([path.split("."), setting.split(".")])), index)  # noqa: RUF071  # of lists
        for index, (_, layer) in enumerate(layers)
        for setting in flattened(layer)
    ]
    depth, index = max(held, default=(0, 0))
    return layers[index][0] if depth else ""
