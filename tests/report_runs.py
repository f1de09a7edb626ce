"""Run folders for reports, made up by tests."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.yaml import dump_yaml

OBJECTIVE = {"surrogate": {"kind": "clip", "low": 0.2, "high": 0.28, "dual": None}, "drop": None}
HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=2>\u202e\x1b[31m"
)


def step_line(step: int, **more: Any) -> dict[str, Any]:
    """The metrics of a step of a made-up run."""
    return {
        "step": step,
        "reward/mean": 0.5 + 0.4 * math.sin(step / 300),
        "reward/std": 0.4,
        "reward/groups": 16.0,
        "reward/accuracy": 0.5,
        "policy/entropy": 1 / (1 + step / 50),
        "tokens/step": 100.0,
        "tokens/sampled": 100.0,
        "tokens/per_second": 50.0,
        "time/sampling": 2.0,
        "time/forward": 1.0,
        "time/backward": 0.75,
        "time/grading": 0.0,
        "time/other": 0.25,
        "time/step": 4.0,
        "time/grading_hidden": 0.5,
        "tokens/useful_share": 0.975,
        **more,
    }


def evaluation(step: int, accuracy: float) -> dict[str, Any]:
    """The metrics of an evaluation."""
    errors = {"eval/accuracy_se_samples": 0.01, "eval/accuracy_se_problems": 0.02}
    return {"step": step, "eval/accuracy": accuracy, **errors}


def write_run(
    folder: Path,
    lines: Sequence[Mapping[str, Any]] = (),
    objective: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run with these metrics and settings; by default five steps."""
    folder.mkdir(parents=True)
    settings = {"preset": "grpo", "objective": {**OBJECTIVE, **(objective or {})}, **settings}
    (folder / "config.resolved.yaml").write_text(dump_yaml(settings), encoding="utf-8")
    lines = lines or [evaluation(0, 0.25), *map(step_line, range(1, 6))]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    return folder
