"""Trackers: what is written, where, by which process, and what happens when one is not there."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rlobj.base.errors import MissingExtra, RunError
from rlobj.installation import TRACKERS
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.training.trackers import Trackers, flat, open_trackers, require_trackers


@pytest.fixture
def accelerator():
    from accelerate import Accelerator

    return Accelerator()


def run_with(tracker: str) -> RunConfig:
    return RunConfig.model_validate({"output": {"trackers": [tracker]}})


def opened_in(
    folder: Path, accelerator: Any, tracker: str = "tensorboard", step: int = 0
) -> Trackers:
    return open_trackers(accelerator, run_with(tracker), folder, step)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of everything in a TensorBoard log, as its own reader sees it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in names}


def test_tensorboard_reads_back_what_was_logged(tmp_path, accelerator):
    opened = opened_in(tmp_path, accelerator)
    opened.log({"step": 0, "eval/accuracy": 0.25}, 0)
    opened.log({"step": 1, "eval/accuracy": 0.5, "reward/std": math.nan, "preset": "stapo"}, 1)
    assert scalars(tmp_path)["eval/accuracy"] == [(0, 0.25), (1, 0.5)]  # before the end, too
    opened.close()
    assert scalars(tmp_path) == {"step": [(0, 0), (1, 1)], "eval/accuracy": [(0, 0.25), (1, 0.5)]}
    [file] = (tmp_path / "tensorboard").glob("*/hparams.yml")
    assert yaml.safe_load(file.read_text()) == flat(settings_of(run_with("tensorboard")))


def test_a_resumed_run_hides_the_steps_that_are_repeated(tmp_path, accelerator):
    first = opened_in(tmp_path, accelerator)
    for step in range(1, 6):
        first.log({"reward/mean": float(step)}, step)
    first.close()
    again = opened_in(tmp_path, accelerator, step=3)
    again.log({"reward/mean": 40.0}, 4)
    again.close()
    assert scalars(tmp_path)["reward/mean"] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_only_the_main_process_writes(tmp_path):
    other = SimpleNamespace(is_main_process=False)
    opened = opened_in(tmp_path, other)
    opened.log({"reward/mean": 1.0}, 1)
    opened.close()
    assert list(tmp_path.iterdir()) == []


def test_error_for_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    """Also where a folder of that name lies about, as wandb leaves one."""
    (tmp_path / "absent_tracker").mkdir()
    for path in (None, tmp_path):
        if path is not None:
            monkeypatch.syspath_prepend(path)
        with pytest.raises(MissingExtra, match=r"pip install 'rlobj\[trackers\]'"):
            require_trackers(["absent_tracker"])


def test_a_tracker_that_cannot_start_raises_an_error(tmp_path, accelerator):
    (tmp_path / "tensorboard").write_text("a file where a folder should be")
    with pytest.raises(RunError, match="tensorboard cannot start"):
        opened_in(tmp_path, accelerator)


def test_a_tracker_that_fails_later_is_removed_and_the_others_continue(
    tmp_path, accelerator, caplog
):
    opened = opened_in(tmp_path / "one", accelerator)
    other = opened_in(tmp_path / "two", accelerator)
    both = Trackers([*opened._opened, *other._opened])
    opened._opened[0].writer = None  # as if it had been taken away
    with caplog.at_level(logging.WARNING, "rlobj"):
        both.log({"reward/mean": 1.0}, 1)
        both.log({"reward/mean": 2.0}, 2)
    both.close()
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "tensorboard failed and is not used any more" in caplog.text
    assert scalars(tmp_path / "two")["reward/mean"] == [(1, 1.0), (2, 2.0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TRACKERS) - {"tensorboard"}))
def test_the_other_trackers_log_a_run_without_a_network(name, tmp_path, accelerator, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip(name, reason=f"the extra trackers: {name} is not installed")
    opened = opened_in(tmp_path, accelerator, name)
    opened.log({"reward/mean": 0.5, "reward/std": math.nan}, 1)
    assert opened._opened, "it was given up on"
    opened.close()
    files = {"mlflow": "mlflow.db", "wandb": "wandb/offline-run-*", "trackio": "trackio/rlobj.*"}
    assert list(tmp_path.glob(files[name]))
