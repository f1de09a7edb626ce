"""From layers of settings to one configuration, and all errors at once."""

from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path

from rlobj.base.errors import ConfigError, Message, nearest
from rlobj.base.validation import InvalidFields, UnknownKey, half_surrogates
from rlobj.objectives.objective import Objective
from rlobj.settings.layers import Layer, layers_of, merged
from rlobj.settings.meaning import meaning_of
from rlobj.settings.presets import FILE_KEYS, flattened
from rlobj.settings.run_config import RunConfig


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
