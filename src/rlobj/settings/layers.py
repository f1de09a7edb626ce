"""Layers of settings: each is a partial RunConfig with the name of its origin.

Later layers override earlier ones, in the order of `layers_of`. This module does not import torch,
so that an error in a preset, file or setting is reported at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from rlobj.base.errors import Argument, ConfigError
from rlobj.base.paths import path_of
from rlobj.base.targets import object_name, object_text
from rlobj.data.gym import REWARD, is_gym
from rlobj.data.sources import source_names
from rlobj.data.verifiers import is_verifiers
from rlobj.settings.presets import flattened, load_preset, merge, preset_names, read_yaml
from rlobj.settings.profiles import limits, profile_of, profile_of_values, settings_of_task

Layer = tuple[str, Mapping[str, Any]]
"""The origin of settings, as text, and the settings: a partial RunConfig."""

EMBEDDED_LAYER = "embedded profile"
"""The name of the layer that fits a run to the embedded policy."""


def layers_of(
    preset: str | None, overrides: Sequence[tuple[str, Mapping[str, Any]]], *, profile: bool = True
) -> list[Layer]:
    """List the layers of a run, lowest first: above the defaults of the library

        preset              with all that it builds on
        embedded profile    if the policy is the embedded one; else what the task asks for
        rewards of a file   of a preset file that is not the library's
        reasoning-gym       its reward, if the problems are its own
        environment         its reward, if none is set; the tasks of one of verifiers
        overrides           a configuration file, and single settings

    Args:
        preset: name or YAML file; None = the one that an override names as `preset`, if any.
        overrides: (origin, partial RunConfig), later over earlier.
        profile: fit the run to the embedded policy if no layer names another model.

    Raises:
        ConfigError: no such preset, or the embedded policy cannot train on `data.source`.
    """
    above: list[Layer] = [(name, dict(layer)) for name, layer in overrides]
    named = [layer.pop("preset", None) for _, layer in above if isinstance(layer, dict)]
    preset = preset or next((str(name) for name in reversed(named) if name is not None), None)
    recipe = {} if preset is None else _of_preset(preset)
    settings = flattened(merge(recipe, merged(above)))
    source, task, rewards = settings.get("data.source"), EMBEDDED_LAYER, {}
    names = source_names(source)
    if profile and settings.get("model.name") in (None, "embedded"):
        chosen = "model.name" in settings or "objects.data" in settings
        fitted = merge(profile_of(source, chosen=chosen), limits(flattened(recipe)))
        fitted = merge(fitted, profile_of_values(settings))
        rewards = {} if preset is None else _rewards_written_in(preset)
    else:
        task = f"data {source}"
        fitted = settings_of_task(source, bool(settings.get("environment.tools")))
    gym = {"rewards": {"kind": REWARD}} if names and all(map(is_gym, names)) else {}
    target = settings.get("environment.target")
    tasks = {"data": {"source": target}} if is_verifiers(target) else {}
    layers: list[Layer] = [
        (f"preset {preset}", recipe),
        (task, fitted),
        (f"preset {preset}", rewards),
        (f"data {', '.join(names)}", gym),
        ("environment.target", tasks | reward_of_environment(merged(above))),
    ]
    return [*((origin, layer) for origin, layer in layers if layer), *above]


def _of_preset(preset: str) -> dict[str, Any]:
    config = load_preset(preset).config
    if "preset" in config:
        raise ConfigError(
            f"{preset}: a preset builds on another with 'base: {config['preset']}'; "
            "'preset:' belongs in a configuration file"
        )
    return {"preset": preset, **config}


def _rewards_written_in(preset: str) -> dict[str, Any]:
    """The rewards that a person's preset file has itself, without what it builds on."""
    path = path_of(preset)
    if preset in preset_names() or not path.is_file() or "rewards" not in read_yaml(path):
        return {}
    return {"rewards": load_preset(preset).config["rewards"]}


def reward_of_environment(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What follows from the settings that are given: an environment grades, if no reward is set."""
    graded = flattened(settings).get("environment.target") and "rewards" not in settings
    return {"rewards": {"kind": "environment"}} if graded else {}


def file_layer(path: str | Path) -> Layer:
    """Read a configuration file as a layer; it may set `preset`, or build on one with `base`.

    Raises:
        ConfigError: no such file, or it is not a YAML mapping.
    """
    path = path_of(path)
    if not path.is_file():
        what = "is a folder, not a YAML file" if path.is_dir() else "is no file"
        raise ConfigError(Argument("config", path), f" {what if path.exists() else 'is not there'}")
    return str(path), dict(load_preset(path.absolute()).config)


def parse_setting(text: str) -> dict[str, Any]:
    """Read `training.steps=50` as a nested mapping; the value is YAML, or text if YAML fails.

    Quotes around the whole value make a text of it: `name="010"`. Other text stays as it is typed.

    Raises:
        ConfigError: no '=' or an empty key.
    """
    key, equals, value = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names) or names[0] == "objects":
        expected = ": expected key=value, such as training.steps=50"
        raise ConfigError(Argument("settings", text), expected)
    key, value = key.strip(), value.strip()
    read = _value(value)
    if key in _TEMPLATES and read is not None and not isinstance(read, str):
        read = value  # a template is text also where it looks like a mapping
    return nested(key, read)


_TEMPLATES = ("data.template", "data.test_template", "data.system")


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a partial configuration with one setting.

    Example:
        >>> nested("training.steps", 50)
        {'training': {'steps': 50}}
    """
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def given_layers(settings: Mapping[str, Any] | Sequence[Layer] | None) -> list[Layer]:
    """The layers of single settings by dotted name, or the layers that are given."""
    if isinstance(settings, Mapping):
        return [("settings", nested(path, value)) for path, value in settings.items()]
    return [*(settings or ())]


def reward_settings(reward: str | Callable[..., Any]) -> dict[str, Any]:
    """The settings of a reward that is given as a kind, as the path of a function, or as one.

    Example:
        >>> reward_settings("exact"), reward_settings("mine.py:score")
        ({'kind': 'exact'}, {'kind': 'custom', 'target': 'mine.py:score'})
    """
    if not isinstance(reward, str):
        return {"kind": "custom", "target": object_text(object_name(reward))}
    return {"kind": "custom", "target": reward} if ":" in reward else {"kind": reward}


def _value(text: str) -> Any:
    from rlobj.base.yaml import load_yaml

    try:
        value = load_yaml(text)
    except ValueError:
        return text
    if isinstance(value, dict) and all(entry is None for entry in value.values()):
        return text  # {prompt} is a template, not a mapping without values
    quoted = text[:1] in ("'", '"') and text[:1] == text[-1:]
    return text if isinstance(value, str) and not quoted else value


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    """Merge the settings of all layers, lowest first."""
    return reduce(merge, (dict(layer) for _, layer in layers), {})


def origins(layers: Sequence[Layer]) -> dict[str, str]:
    """Return the layer that each setting comes from, by dotted path, without the defaults.

    Example:
        >>> origins([("a", {"x": {"y": 1, "z": 1}}), ("b", {"x": {"z": 2}})])
        {'x.y': 'a', 'x.z': 'b'}
    """
    names = {path: name for name, layer in layers for path in flattened(layer)}
    return {path: names[path] for path in flattened(merged(layers)) if path in names}
