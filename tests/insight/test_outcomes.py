"""What came out of a run: precision, recall and the first and the last steps."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny import tiny_config

from rlobj.base.errors import ConfigError
from rlobj.insight import Outcome
from rlobj.runs.run_folder import RunFolder


def run(folder: Path, preset: str = "stapo", steps: int = 20, **metrics: float) -> Path:
    """A run whose spurious tokens fall from 10 to 1 per 1,000."""
    directory = RunFolder(folder / preset)
    directory.create(tiny_config(folder, preset).model_copy(update={"preset": preset}))
    directory.append({"step": 0, "eval/accuracy": 0.25, "eval/accuracy_se_samples": 0.01})
    for step in range(1, steps + 1):
        line = {"step": step, "reward/mean": step / 20, "policy/entropy": 1.0, "tokens/step": 1000}
        counts = {"spurious/tokens": 10 - 9 * (step > 10), "tokens/dropped": 4.0}
        directory.append({**line, **counts, "spurious/caught": 1, "spurious/dropped": 4, **metrics})
    directory.append({"step": steps + 1, "eval/accuracy": 0.75, "eval/accuracy_se_samples": None})
    return directory.path


def measures(path: Path) -> dict[str, str]:
    return Outcome.read(path).measures()


def test_precision_and_recall_are_over_the_whole_run(tmp_path: Path) -> None:
    found = measures(run(tmp_path))
    assert found["spurious tokens"] == "110 (0.55%)"
    assert found["precision of the rule"] == "20 (25%) of 80"
    assert found["recall of the rule"] == "20 (18%) of 110"


@pytest.mark.parametrize(("steps", "window"), [(1, 1), (3, 1), (20, 5), (100, 10)])
def test_the_first_and_the_last_steps_are_compared(tmp_path: Path, steps: int, window: int) -> None:
    found = Outcome.read(run(tmp_path, steps=steps))
    assert found.window == window
    name = f"spurious, first/last {window} steps" if window > 1 else "spurious, first/last step"
    end = "0.10%" if steps > 10 else "1.0%"
    assert found.measures()[name] == f"1.0% → {end}"


def test_a_rule_that_dropped_nothing_has_no_precision_and_no_truth_no_spurious_tokens(tmp_path):
    found = measures(run(tmp_path / "a", **{"spurious/dropped": 0, "spurious/caught": 0}))
    assert not {name for name in found if "rule" in name}
    assert found["spurious tokens"] == "110 (0.55%)"
    found = measures(run(tmp_path / "b", **{"spurious/tokens": math.nan}))
    assert not {name for name in found if "spurious" in name}


def test_numbers_that_are_0_at_both_ends_are_shown(tmp_path: Path) -> None:
    calls = {"tools/calls": 1, "response/count": 4, "tools/errors": 0, "tools/accuracy_with": 0.0}
    found = measures(run(tmp_path, **{"policy/entropy": 0.0}, **calls))
    assert found["entropy, first/last 5 steps"] == "0.000 → 0.000"
    assert found["accuracy with a call, first/last 5 steps"] == "0.000 → 0.000"
    assert not {name for name in found if "failed" in name}


def test_a_run_without_a_finished_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        Outcome.read(tmp_path)
    directory = RunFolder(tmp_path / "new")
    directory.create(tiny_config(tmp_path, "stapo"))
    with pytest.raises(ConfigError, match="no finished step"):
        Outcome.read(directory.path)


def test_an_accuracy_that_was_not_measured_after_training_is_said_so(tmp_path: Path) -> None:
    """A run that stopped early has only the evaluation before its first step."""
    path = run(tmp_path)
    lines = RunFolder(path).lines()
    stopped = Outcome(lines[:-1]).measures()
    assert stopped["held-out accuracy before"] == "25.0%  [23.0%, 27.0%]"
    assert stopped["held-out accuracy after"] == "not measured after step 0"
    late = Outcome([*lines[:6], {"step": 5, "eval/accuracy": 0.75}, *lines[6:-1]]).measures()
    assert late["held-out accuracy after"].startswith("75.0%")
    assert late["held-out accuracy after"].endswith(", not measured after step 5")
