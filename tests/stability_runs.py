"""Runs of a stability study whose truth is known, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from benchmarks.stability.conditions import objective
from benchmarks.stability.plan import Run


def write_run(
    runs: Path,
    run: Run,
    accuracies: Sequence[float],
    *,
    tokens: float = 1000.0,
    entropy: float = 0.1,
    more: Mapping[str, Any] | None = None,
    failed: str = "",
) -> Path:
    """A run with an evaluation every ten steps and after the last one.

    Args:
        runs: folder of the study.
        run: the run.
        accuracies: of its evaluations, the first one before training.
        tokens: generated in each step.
        entropy: of each step, nats.
        more: metrics of each step.
        failed: how its process ended; "" = it finished.
    """
    folder = run.folder(runs)
    folder.mkdir(parents=True)
    loss = objective(run.arm.condition).model_dump(mode="json", by_alias=True)
    nested: dict[str, Any] = {"objective": loss}
    for path, value in run.settings().items():
        path, value = (f"{path}.by", "accuracy") if value == {} else (path, value)  # the default
        *parents, name = path.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(nested))
    lines: list[dict[str, Any]] = [{"step": 0}]
    end = min(10 * (len(accuracies) - 1), run.arm.steps)
    for step in range(1, end + 1):
        line = {"step": step, "policy/entropy": entropy, "tokens/sampled": tokens}
        line |= {"tokens/step": tokens, "time/step": 1.0, "time/evaluating": 0.25}
        lines.append(line | dict(more or {}))
    for place, accuracy in enumerate(accuracies):
        lines[min(10 * place, end)]["eval/accuracy"] = accuracy
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = {"cpu_seconds": 50.0, "wall_seconds": 100.0, "commit": "abc"}
    (folder / ("failed" if failed else "done")).write_text(failed or json.dumps(facts))
    return folder
