"""What came out of runs: precision and recall, tenths of a run, two runs side by side."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny import tiny_config

from rlobj.base.errors import ConfigError
from rlobj.insight import Outcome, compare_runs
from rlobj.insight.outcomes import share
from rlobj.training import RunDirectory


def run(folder: Path, preset: str = "stapo", steps: int = 20, **metrics: float) -> Path:
    """A run whose spurious tokens fall from 10 to 1 per 1,000."""
    directory = RunDirectory(folder / preset)
    directory.create(tiny_config(folder, preset).model_copy(update={"preset": preset}))
    directory.append({"step": 0, "eval/accuracy": 0.25, "eval/accuracy_se_samples": 0.01})
    for step in range(1, steps + 1):
        line = {"step": step, "reward/mean": step / 20, "policy/entropy": 1.0, "tokens/step": 1000}
        counts = {"spurious/tokens": 10 - 9 * (step > 10), "tokens/dropped": 4.0}
        directory.append({**line, **counts, "spurious/caught": 1, "spurious/dropped": 4, **metrics})
    directory.append({"step": steps + 1, "eval/accuracy": 0.75, "eval/accuracy_se_samples": None})
    return directory.path


def test_precision_and_recall_are_over_the_whole_run(tmp_path: Path) -> None:
    spurious = Outcome.read(run(tmp_path)).spurious
    assert spurious is not None
    assert (spurious.tokens, spurious.caught, spurious.dropped) == (110, 20, 80)
    assert (spurious.precision, spurious.recall) == (0.25, 20 / 110)


def test_the_share_is_that_of_the_first_and_the_last_tenth(tmp_path: Path) -> None:
    spurious = Outcome.read(run(tmp_path)).spurious
    assert spurious is not None
    assert spurious.ends == ((20, 2000), (2, 2000))
    assert spurious.shares == (0.01,) * 5 + (0.001,) * 5


@pytest.mark.parametrize("steps", [1, 3, 10, 25])
def test_tenths_hold_every_step_once(tmp_path: Path, steps: int) -> None:
    parts = Outcome.read(run(tmp_path, steps=steps)).tenths()
    assert len(parts) == min(steps, 10)
    assert [line["step"] for part in parts for line in part] == list(range(1, steps + 1))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_rule_that_dropped_nothing_has_no_precision(tmp_path: Path) -> None:
    nothing = {"spurious/dropped": 0, "spurious/caught": 0, "spurious/tokens": 0}
    spurious = Outcome.read(run(tmp_path, **nothing)).spurious
    assert spurious is not None
    assert math.isnan(spurious.precision)
    assert math.isnan(spurious.recall)


def test_a_task_without_truth_has_no_spurious_tokens(tmp_path: Path) -> None:
    path = run(tmp_path, **{"spurious/tokens": math.nan})
    assert Outcome.read(path).spurious is None


def test_two_runs_are_compared_number_by_number(tmp_path: Path) -> None:
    a = run(tmp_path)
    b = run(tmp_path, "justrl", **{"tokens/dropped": 0.0})
    found = compare_runs(a, b)
    rows = {name: (left, right) for name, left, right in found.rows()}
    assert rows["held-out accuracy before"] == ("0.250  [0.230, 0.270]",) * 2
    assert rows["tokens left out"] == ("80 (0.40%)", "0")
    assert rows["spurious, last tenth"] == ("2 (0.10%)",) * 2
    assert [name for name, *_ in found.settings] == []
    assert str(found).splitlines()[0].split() == ["stapo", "justrl"]


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    a, b = run(tmp_path), run(tmp_path / "other", "dapo")
    changed = {name for name, *_ in compare_runs(a, b).settings}
    assert "sampling.dynamic" in changed
    assert not {name for name in changed if name.startswith("objective")}


def test_a_run_without_a_finished_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        compare_runs(tmp_path, tmp_path)
    directory = RunDirectory(tmp_path / "new")
    directory.create(tiny_config(tmp_path, "stapo"))
    with pytest.raises(ConfigError, match="no finished step"):
        Outcome.read(directory.path)


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (358, 389_544, "358 (0.092%)"),
        (0, 5, "0"),
        (5, 5, "5 (100%)"),
        (1, 3, "1 (33%)"),
        (394, 395, "394 (99.7%)"),
        (1, 10**9, "1 (0.0000%)"),
        (311_000, 389_544, "311,000 (80%)"),
    ],
)
def test_shares_have_two_digits(part: float, whole: float, text: str) -> None:
    assert share(part, whole) == text
