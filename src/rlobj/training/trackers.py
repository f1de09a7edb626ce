"""Send a run's metrics and settings to TensorBoard, Weights & Biases, MLflow and trackio.

The tracker classes are Accelerate's. Set their own environment variables to configure them
(`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`, ...). TensorBoard and Weights & Biases write to the
run's folder. A resumed run continues its TensorBoard log; in the other trackers it is a new run
with the same name.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import MissingExtra, RunError
from rlobj.settings.layers import flattened
from rlobj.settings.run_config import RunConfig, settings_of

logger = logging.getLogger(__name__)


PROJECT = "rlobj"
"""Name of the project or experiment, for trackers that have them."""


class Trackers:
    """The trackers of a run; empty on all processes but the main one.

    A tracker that fails is removed with a warning. metrics.jsonl still has all metrics.

    Args:
        opened: started trackers of Accelerate.
    """

    def __init__(self, opened: Sequence[Any] = ()) -> None:
        self._opened = list(opened)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a step's metrics.

        Args:
            metrics: numbers by name; other values and numbers that are not finite are left out.
            step: number of finished steps; 0 before the first.
        """
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for tracker in list(self._opened):
            try:
                tracker.log(numbers, step=step)
            except Exception as error:  # a tracker's error must not stop the run
                logger.warning("%s failed and is not used any more: %s", tracker.name, error)
                self._opened.remove(tracker)

    def close(self) -> None:
        """Write all pending data, and close the trackers."""
        for tracker in self._opened:
            try:
                tracker.finish()
            except Exception as error:
                logger.warning("%s could not be closed: %s", tracker.name, error)
        self._opened.clear()


def open_trackers(accelerator: Any, config: RunConfig, folder: Path, step: int = 0) -> Trackers:
    """Start the trackers of `output.trackers` on the main process, and send them the settings.

    Args:
        accelerator: Accelerate's Accelerator, which knows the main process.
        config: of the run.
        folder: the run directory; its name is the name of the run.
        step: number of steps that a resumed run has finished; TensorBoard hides later ones.

    Raises:
        RunError: a tracker cannot be started, for example because its server does not answer.
    """
    opened: list[Any] = []
    names = dict.fromkeys(config.output.trackers) if accelerator.is_main_process else ()
    for name in names:
        try:
            tracker = _tracker(name, folder, step)
            tracker.start()
            opened.append(tracker)
            tracker.store_init_configuration(flat(settings_of(config)))
        except Exception as error:
            Trackers(opened).close()
            raise RunError(f"the tracker {name} cannot start: {error}") from error
    return Trackers(opened)


def require_trackers(names: Sequence[str]) -> None:
    """Check that the packages are installed.

    Raises:
        MissingExtra: a package is not installed.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # no origin: only a folder, such as ./wandb
            raise MissingExtra(name, "trackers", f"the tracker {name}")


def _tracker(name: str, folder: Path, step: int) -> Any:
    """Create Accelerate's tracker without starting it."""
    from accelerate import tracking

    run = folder.name
    if name == "tensorboard":
        later = {"purge_step": step + 1} if step else {}
        return tracking.TensorBoardTracker("tensorboard", folder, **later)
    if name == "wandb":
        return tracking.WandBTracker(PROJECT, name=run, dir=str(folder))
    if name == "mlflow":
        return tracking.MLflowTracker(PROJECT, run_name=run)
    return tracking.TrackioTracker(PROJECT, name=run)


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
