"""Send a run's metrics and settings to TensorBoard, Weights & Biases, MLflow and trackio.

The trackers are Accelerate's. Set their own environment variables to configure them
(`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`, ...). TensorBoard and Weights & Biases write to the
run's folder. A resumed run continues its TensorBoard log; in the other trackers it is a new run
with the same name.
"""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import MissingExtra, RunError, reported, warn
from rlobj.settings.layers import flattened
from rlobj.settings.run_config import RunConfig, settings_of

PROJECT = "rlobj"
"""Name of the project or experiment."""


def open_trackers(accelerator: Any, config: RunConfig, folder: Path, step: int = 0) -> None:
    """Start the trackers of `output.trackers` on the main process, and send them the settings.

    Args:
        accelerator: Accelerate's Accelerator, which has the trackers.
        config: of the run.
        folder: the run directory; its name is the name of the run.
        step: number of steps that a resumed run has finished; TensorBoard hides later ones.

    Raises:
        RunError: a tracker cannot be started, for example because its server does not answer.
    """
    from accelerate.tracking import filter_trackers

    accelerator.project_configuration.logging_dir = str(folder / "tensorboard")
    accelerator.log_with = filter_trackers([*config.output.trackers], folder)
    arguments = {
        "tensorboard": {"purge_step": step + 1} if step else {},
        "wandb": {"name": folder.name, "dir": str(folder)},
        "mlflow": {"run_name": folder.name},
        "trackio": {"name": folder.name},
    }
    with reported(RunError, f"{', '.join(config.output.trackers)} cannot start", Exception):
        accelerator.init_trackers(PROJECT, flat(settings_of(config)), arguments)


def log_metrics(accelerator: Any, metrics: Mapping[str, Any], step: int) -> None:
    """Write a step's metrics. After a failure the run has no trackers; metrics.jsonl has all.

    Args:
        accelerator: as in `open_trackers`.
        metrics: numbers by name; other values and numbers that are not finite are left out.
        step: number of finished steps; 0 before the first.
    """
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    try:
        accelerator.log(numbers, step=step)
    except Exception as error:  # a tracker's error must not stop the run
        warn("the trackers failed and are not used any more: %s", error)
        accelerator.trackers.clear()


def close_trackers(accelerator: Any) -> None:
    """Write all pending data, and close the trackers."""
    for tracker in accelerator.trackers:
        try:
            tracker.finish()
        except Exception as error:  # the run is done
            warn("%s could not be closed: %s", tracker.name, error)
    accelerator.trackers.clear()


def require_trackers(names: Sequence[str]) -> None:
    """Check that the packages are installed.

    Raises:
        MissingExtra: a package is not installed.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: only a folder, such as ./wandb
            raise MissingExtra(name, "trackers", f"the tracker {name}")


def flat(config: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Nested settings under dotted names, with plain values, which every tracker accepts.

    >>> flat({"seed": 0, "training": {"steps": 3, "betas": [0.9, 0.95], "clip": None}})
    {'seed': 0, 'training.steps': 3, 'training.betas': '[0.9, 0.95]'}
    """
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in flattened(config).items()
        if value not in (None, {})
    }
