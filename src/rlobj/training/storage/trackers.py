"""A run's metrics and settings in TensorBoard, Weights & Biases, MLflow and trackio.

The classes are Accelerate's. Where they keep things is said by their own environment variables
(`WANDB_MODE=offline`, `MLFLOW_TRACKING_URI`, ...); TensorBoard and Weights & Biases write under the
run's folder. A resumed run goes on in the same TensorBoard log; elsewhere it is a new run of the
same name.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlobj.base.errors import ConfigError, MissingExtra, RunError, nearest

__all__ = ["TRACKERS", "TrackerName", "Trackers", "flat", "open_trackers", "require_trackers"]

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
TRACKERS: tuple[TrackerName, ...] = ("tensorboard", "wandb", "mlflow", "trackio")
PROJECT = "rlobj"
"""What the runs are filed under, where a tracker has projects or experiments."""

logger = logging.getLogger(__name__)


class Trackers:
    """The trackers of a run; none on a process that is not the main one.

    A tracker that fails is dropped with a warning: metrics.jsonl has everything anyway.

    Args:
        opened: trackers of Accelerate, started.
    """

    def __init__(self, opened: Sequence[Any] = ()) -> None:
        self._opened = list(opened)

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write a step's metrics.

        Args:
            metrics: numbers by name; what is no finite number is left out.
            step: steps done, from 1; 0 before the first.
        """
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for tracker in list(self._opened):
            try:
                tracker.log(numbers, step=step)
            except Exception as error:  # another program's troubles are no reason to stop
                logger.warning("%s failed and is not used any more: %s", tracker.name, error)
                self._opened.remove(tracker)

    def close(self) -> None:
        """Have everything written, and end them."""
        for tracker in self._opened:
            try:
                tracker.finish()
            except Exception as error:
                logger.warning("%s could not be closed: %s", tracker.name, error)
        self._opened.clear()


def open_trackers(
    accelerator: Any,
    names: Sequence[TrackerName],
    folder: Path,
    config: Mapping[str, Any],
    *,
    step: int = 0,
) -> Trackers:
    """Start trackers on the main process, and tell them the run's settings.

    Args:
        accelerator: says which process is the main one.
        names: of `TRACKERS`.
        folder: the run directory; its name is the run's.
        config: settings, nested as they are in the configuration file.
        step: steps that a resumed run has done; TensorBoard hides what it had of later ones.

    Raises:
        ConfigError: an unknown name.
        MissingExtra: a package that is not installed; on every process.
        RunError: a tracker cannot be started: its server does not answer, say.
    """
    require_trackers(names)
    opened: list[Any] = []
    if not (names and accelerator.is_main_process):
        return Trackers()
    settings = flat(config)
    for name in dict.fromkeys(names):
        try:
            tracker = _tracker(name, folder, step)
            tracker.start()
            opened.append(tracker)
            tracker.store_init_configuration(settings)
        except Exception as error:
            Trackers(opened).close()
            raise RunError(f"the tracker {name} cannot start: {error}") from error
    return Trackers(opened)


def require_trackers(names: Sequence[str]) -> None:
    """Check that trackers are known and installed.

    Raises:
        ConfigError: an unknown name.
        MissingExtra: a package that is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"{name!r} is not a tracker.{nearest(name, TRACKERS)}")
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # without origin: a mere folder, such as ./wandb
            raise MissingExtra(name, "trackers", f"the tracker {name}")


def _tracker(name: TrackerName, folder: Path, step: int) -> Any:
    """Accelerate's tracker, not yet started."""
    from accelerate import tracking

    run = folder.absolute().name
    if name == "tensorboard":
        later = {"purge_step": step + 1} if step else {}
        return tracking.TensorBoardTracker("tensorboard", folder, **later)
    if name == "wandb":
        return tracking.WandBTracker(PROJECT, name=run, dir=str(folder))
    if name == "mlflow":
        return tracking.MLflowTracker(PROJECT, run_name=run)
    return tracking.TrackioTracker(PROJECT, name=run)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Nested settings as dotted names with plain values: the most that every tracker takes.

    >>> flat({"seed": 0, "training": {"steps": 3, "betas": [0.9, 0.95], "clip": None}})
    {'seed': 0, 'training.steps': 3, 'training.betas': '[0.9, 0.95]'}
    """
    plain: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            plain.update(flat(value, f"{prefix}{key}."))
        elif isinstance(value, bool | int | float | str):
            plain[f"{prefix}{key}"] = value
        elif value is not None:
            plain[f"{prefix}{key}"] = str(value)
    return plain
