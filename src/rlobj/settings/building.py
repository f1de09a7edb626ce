"""From layers of settings to one configuration, and all errors at once."""

from collections.abc import Sequence
from os.path import commonprefix
from pathlib import Path

from rlobj.base.errors import ConfigError, Message, nearest
from rlobj.base.validation import InvalidFields, UnknownKey
from rlobj.objectives.objective import Objective
from rlobj.settings.layers import Layer, layers_of, merged
from rlobj.settings.presets import FILE_KEYS, flattened
from rlobj.settings.run_config import RunConfig, settings_of


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
        return RunConfig(**settings)
    except InvalidFields as error:
        lines = []
        for path, text in error.problems:
            origin = _origin(path, layers)
            if isinstance(text, UnknownKey):
                text = "unknown key." + _advice(path, text.known, origin)
            lines.append(Message(path, f" (from {origin})" if origin else "", ": ", text))
        raise ConfigError(Message.joined("\n", lines)) from None


def _advice(path: str, known: Sequence[str], origin: str) -> str:
    """The nearest name for an unknown key; at the top, a setting whose name ends with it."""
    section, dot, key = path.rpartition(".")
    if section:
        return nearest(key, known, section=section + dot)
    settings = flattened(settings_of(RunConfig()))
    if meant := [repr(setting) for setting in settings if setting.endswith(f".{key}")]:
        return f" Did you mean {' or '.join(meant)}?"
    in_file = Path(origin.removeprefix("preset ")).is_file()
    return nearest(key, [*known, *FILE_KEYS] if in_file else known)


def _origin(path: str, layers: Sequence[Layer]) -> str:
    """The last of the layers that hold most of the path; "" if none holds a part."""
    held = [
        (len(commonprefix([path.split("."), setting.split(".")])), index)  # noqa: RUF071  # of lists
        for index, (_, layer) in enumerate(layers)
        for setting in flattened(layer)
    ]
    depth, index = max(held, default=(0, 0))
    return layers[index][0] if depth else ""
