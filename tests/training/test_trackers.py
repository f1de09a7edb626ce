"""Trackers: what is written, where, and what happens when one is not there."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import MissingExtra, RunError
from rlobj.base.yaml import load_yaml
from rlobj.installation import TRACKERS
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.training.trackers import (
    close_trackers,
    flat,
    log_metrics,
    open_trackers,
    require_trackers,
)


def run_with(tracker: str) -> RunConfig:
    return RunConfig.model_validate({"output": {"trackers": [tracker]}})


def opened_in(folder: Path, tracker: str = "tensorboard", step: int = 0) -> Any:
    """An Accelerator with a tracker."""
    from accelerate import Accelerator

    accelerator = Accelerator()
    open_trackers(accelerator, run_with(tracker), folder, step)
    return accelerator


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of everything in a TensorBoard log, as its own reader sees it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard" / "rlobj"))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    opened = opened_in(tmp_path)
    log_metrics(opened, {"step": 0, "eval/accuracy": 0.25}, 0)
    second = {"step": 1, "eval/accuracy": 0.5, "reward/std": math.nan, "preset": "stapo"}
    log_metrics(opened, second, 1)
    assert scalars(tmp_path)["eval/accuracy"] == [(0, 0.25), (1, 0.5)]  # before the end, too
    close_trackers(opened)
    assert scalars(tmp_path) == {"step": [(0, 0), (1, 1)], "eval/accuracy": [(0, 0.25), (1, 0.5)]}
    [file] = (tmp_path / "tensorboard").glob("*/*/hparams.yml")
    assert load_yaml(file.read_text()) == flat(settings_of(run_with("tensorboard")))


def test_a_resumed_run_hides_the_steps_that_are_repeated(tmp_path):
    first = opened_in(tmp_path)
    for step in range(1, 6):
        log_metrics(first, {"reward/mean": float(step)}, step)
    close_trackers(first)
    again = opened_in(tmp_path, step=3)
    log_metrics(again, {"reward/mean": 40.0}, 4)
    close_trackers(again)
    assert scalars(tmp_path)["reward/mean"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_error_for_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    """Also where a folder of that name lies about, as wandb leaves one."""
    (tmp_path / "absent_tracker").mkdir()
    for path in (None, tmp_path):
        if path is not None:
            monkeypatch.syspath_prepend(path)
        with pytest.raises(MissingExtra, match=r"pip install -e '\.\[trackers\]'"):
            require_trackers(["absent_tracker"])


def test_a_tracker_that_cannot_start_raises_an_error(tmp_path):
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    with pytest.raises(RunError, match="tensorboard cannot start"):
        opened_in(tmp_path)


def test_the_run_goes_on_without_trackers_after_a_failure(tmp_path, caplog):
    opened = opened_in(tmp_path)
    opened.trackers[0].writer = None  # as if it had been taken away
    with caplog.at_level(logging.WARNING, "rlobj"):
        log_metrics(opened, {"reward/mean": 1.0}, 1)
        log_metrics(opened, {"reward/mean": 2.0}, 2)
    assert len(caplog.records) == 1
    assert "the trackers failed and are not used any more" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TRACKERS) - {"tensorboard"}))
def test_the_other_trackers_log_a_run_without_a_network(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip(name, reason=f"the extra trackers: {name} is not installed")
    opened = opened_in(tmp_path, name)
    log_metrics(opened, {"reward/mean": 0.5, "reward/std": math.nan}, 1)
    assert opened.trackers, "it was given up on"
    close_trackers(opened)
    files = {"mlflow": "mlflow.db", "wandb": "wandb/offline-run-*", "trackio": "trackio/rlobj.*"}
    assert list(tmp_path.glob(files[name]))
