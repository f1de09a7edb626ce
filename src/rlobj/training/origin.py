"""A new run that starts from the policy of another run's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.base.files import step_of
from rlobj.config import run_folder
from rlobj.config.layers import FromFile, Layer, flattened, merged
from rlobj.config.presets import load_preset
from rlobj.config.resuming import require_trust
from rlobj.training.storage.checkpoint import newest_sound, require_sound
from rlobj.training.storage.run_directory import RunDirectory


def layers_from(
    origin: str | Path, preset: str | None, above: Sequence[Layer], *, trust: bool
) -> list[Layer]:
    """The layers of a new run with the settings of another one, and with its policy.

    Args:
        origin: `RUN`, its newest checkpoint, or its own model before the first one; `RUN@STEP`, or
            `RUN@best`.
        preset: whose objective replaces the run's; None = the one of `above`, if any.
        above: what the caller sets: (origin, partial RunConfig), later over earlier.
        trust: import the code that the run's settings name.

    Raises:
        ConfigError: no such run or checkpoint, a damaged one, another model as well, or code
            without `trust`.
    """
    text = str(origin)
    whole = run_folder.is_run(Path(text).expanduser())  # a folder whose name may have an @
    name, _, step = (text, "", "") if whole else text.rpartition("@")
    path = Path(name or text).expanduser().absolute()
    settings = run_folder.read_settings(path)
    given = [(layer, dict(values)) for layer, values in above]
    named = [values.pop("preset", None) for _, values in given]
    preset = preset or next((each for each in reversed(named) if each is not None), None)
    if model := flattened(merged(given)).get("model.name"):
        raise ConfigError(f"from_run={text} and the model {model} both name a policy: give one")
    if preset is not None:
        objective = dict(load_preset(preset).config.get("objective", {}))
        given = [(FromFile(f"preset {preset}"), {"preset": preset, "objective": objective}), *given]
        settings.pop("objective", None)
    layer = FromFile(f"run {path.name}")
    if step or run_folder.checkpoints(path) or run_folder.in_another_trainer(path):
        checkpoint = run_folder.named_checkpoint(path, step or None)
        if step:
            require_sound(checkpoint)
        else:
            checkpoint = newest_sound(RunDirectory(path)) or checkpoint
        settings["model"] = {**settings["model"], "name": str(checkpoint / "model")}
        settings["origin"] = f"{path}@{step_of(checkpoint)}"
        layer = FromFile(f"{layer}@{step_of(checkpoint)}")
    layers = [(layer, settings), *given]
    if not trust:
        named = merged(layer for layer in given if not isinstance(layer[0], FromFile))
        require_trust(path, merged(layers), named)
    return layers
