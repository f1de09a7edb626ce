"""Files of a run's folder that no run has written."""

from __future__ import annotations

import json
from pathlib import Path

from rlobj.config.run_folder import (
    best_checkpoint,
    read_changes,
    read_metrics,
    read_sessions,
    read_stop,
)

DEEP = "[" * 100_000


def test_lines_that_are_nested_deeply_or_too_large_are_damage(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n' + DEEP)
    (tmp_path / "sessions.jsonl").write_text(DEEP + '\n{"step": 0, "changed": {"a": 1}}\n')
    assert read_metrics(tmp_path) == [{"step": 0, "a": 1}]
    assert len(read_sessions(tmp_path)) == 1
    assert read_changes(tmp_path) == []
    for step in (DEEP, "1e999", "null"):
        (tmp_path / "stopped.json").write_text(
            f'{{"step": {step}, "finding": null, "message": ""}}'
        )
        assert read_stop(tmp_path) is None


def test_an_accuracy_that_is_no_number_is_none(tmp_path: Path) -> None:
    lines = [{"step": step, "eval/accuracy": found} for step, found in enumerate(["x", [1], 0.5])]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for step in range(3):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.name == "step-000002"
