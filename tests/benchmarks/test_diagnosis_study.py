"""The study of the diagnosis: it trains what is missing, and judges runs by their findings."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from benchmarks import diagnosis
from benchmarks.harness import ROOT
from benchmarks.sick_runs import SICK
from tiny import WITHOUT_SCORES

from rlobj.config.run_config import FindingName


def test_the_study_has_every_preset_without_scores_and_every_sick_run() -> None:
    study = diagnosis.planned(None, 3, sick=True)
    assert len(study) == len(set(study)) == 3 * len(WITHOUT_SCORES) + len(SICK)
    assert diagnosis.planned("grpo,dapo", 1, sick=False) == [
        ("healthy", "grpo", 0),
        ("healthy", "dapo", 0),
    ]


def test_what_sick_runs_must_have_are_findings() -> None:
    names = {name for run in SICK.values() for name in (*run.must, *run.never)}
    assert names <= set(FindingName.__args__)
    assert all(not set(run.must) & set(run.never) for run in SICK.values())


@pytest.mark.slow
def test_a_run_that_is_done_is_not_repeated(tmp_path: Path) -> None:
    words = ["--task", "max-digits", "--steps", "3", "--presets", "grpo", "--seeds", "1"]
    words += ["--no-sick", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    words = ["-m", "benchmarks.diagnosis", *words]
    first, second = (forked.run(words, cwd=ROOT) for _ in range(2))
    assert "healthy/grpo-0: done" in first.stderr
    assert second.stderr == ""
    assert "1 of 1 healthy runs have no finding." in second.stdout
    kept = {entry.name for entry in (tmp_path / "runs" / "healthy" / "grpo-0").iterdir()}
    assert kept == {"config.resolved.yaml", "metrics.jsonl", "done"}
    [row] = json.loads((tmp_path / "out" / "diagnosis.json").read_text())["rows"]
    assert (row["name"], row["steps"], row["findings"], row["right"]) == ("grpo", 3, {}, "yes")
