"""The numbers of one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import driver
from benchmarks.stability.conditions import TARGETS
from benchmarks.stability.plan import GOAL, Run
from rlobj.base.errors import RunError
from rlobj.runs.metrics import read_metrics

WINDOW = 3
"""Evaluations whose mean is the accuracy: one at the beginning, then two, then three."""
EVERY = 10
"""Steps whose mean entropy is one number of the curve."""
AGAIN = "Delete the folder of this run; the command of the study trains it again"
NEAR = 0.2
"""A step is in the band if its entropy is within this share of the target."""


@dataclass(frozen=True)
class Outcome:
    """The numbers of one run that ended.

    Attributes:
        part, condition, sampling, rate, seed: which run it is.
        failed: how its process ended; "" if it finished. A failed run has the numbers of its steps.
        steps, tokens, seconds: at each evaluation: steps, generated tokens, and CPU seconds of
            sampling and training without evaluations, up to there.
        accuracies: held-out accuracies at these steps, the first one before training.
        entropies: mean entropy of the policy in nats, one number for ten steps.
        in_band: share of the steps whose entropy is within 20% of each target.
        weight_on: share of the steps in which STARE's weight is not 1.
        without_signal: mean share of the sampled groups whose responses have equal rewards.
        counts: sums over the steps: trained and dropped tokens, and those that are spurious.
        made: CPU seconds, wall seconds, commit.
    """

    part: str
    condition: str
    sampling: str
    rate: float
    seed: int
    failed: str
    steps: Sequence[int]
    tokens: Sequence[float]
    seconds: Sequence[float]
    accuracies: Sequence[float]
    entropies: Sequence[float]
    in_band: Mapping[str, float] = field(default_factory=dict)
    weight_on: float = 0.0
    without_signal: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def smooth(self) -> list[float]:
        """The mean of each evaluation and the two before it."""
        ends = range(1, len(self.accuracies) + 1)
        return [mean(self.accuracies[max(end - WINDOW, 0) : end]) for end in ends]

    @property
    def last(self) -> float:
        """The accuracy at the end; 0 for a failed run."""
        return 0.0 if self.failed else self.smooth[-1]

    @property
    def collapsed(self) -> bool:
        """Whether the run ended below half of the accuracy before training."""
        return self.last < self.accuracies[0] / 2

    def reached(self, unit: str = "tokens", goal: float = GOAL) -> float | None:
        """What the run had spent when its accuracy reached the goal; None if it did not.

        Args:
            unit: "steps", "tokens" or "seconds".
            goal: the accuracy.
        """
        pairs = zip(self.smooth, getattr(self, unit), strict=True)
        return next((spent for accuracy, spent in pairs if accuracy >= goal), None)

    def accuracy_at(self, tokens: float) -> float:
        """The accuracy of the last evaluation before so many tokens were generated."""
        pairs = zip(self.smooth, self.tokens, strict=True)
        return [accuracy for accuracy, each in pairs if each <= tokens][-1]


def outcome(run: Run, runs: Path) -> Outcome | None:
    """The numbers of a run below a folder; None if it has not ended.

    Raises:
        RunError: a run that finished lacks facts, steps, or its first or last evaluation; or one
            that failed has no evaluation.
    """
    folder = run.folder(runs)
    if not (state := driver.ended(folder)):
        return None
    lines = read_metrics(folder)
    made = facts(folder) if state == driver.DONE else {}
    why = "" if made else (folder / driver.FAILED).read_text().strip() or "failed"
    whole = [line.get("step") for line in lines] == [*range(run.arm.steps + 1)]
    judged = [line.get("eval/accuracy") is not None for line in lines]
    if not any(judged) or (made and not (whole and judged[0] and judged[-1])):
        raise RunError(
            f"{folder}: metrics.jsonl lacks steps or evaluations; expected {run.arm.steps} steps. "
            f"{AGAIN}"
        )
    share = made["cpu_seconds"] / made["wall_seconds"] if made else 1.0
    steps = [line for line in lines if line["step"] > 0]
    entropies = [line["policy/entropy"] for line in steps]
    spent, tokens, seconds, accuracies = _curve(lines, share)
    return Outcome(
        part=run.part,
        condition=run.arm.condition,
        sampling=run.arm.sampling,
        rate=run.arm.rate,
        seed=run.seed,
        failed=why,
        steps=spent,
        tokens=tokens,
        seconds=seconds,
        accuracies=accuracies,
        entropies=[mean(entropies[at : at + EVERY]) for at in range(0, len(entropies), EVERY)],
        in_band={f"{t:g}": _share(abs(h / t - 1) <= NEAR for h in entropies) for t in TARGETS},
        weight_on=_share(line.get("controller/W", 1.0) != 1.0 for line in steps),
        without_signal=_share(line.get("groups/without_signal_share") or 0.0 for line in steps),
        counts=_counts(steps),
        made=made,
    )


def facts(folder: Path) -> dict[str, Any]:
    """What a run that finished says about its making.

    Raises:
        RunError: its file is damaged.
    """
    wanted = {"cpu_seconds": 60.0, "wall_seconds": 61.0, "commit": "abc1234"}
    try:
        made = json.loads((folder / driver.DONE).read_text("utf-8"))
    except ValueError:
        made = None
    if not isinstance(made, dict) or not made.keys() >= wanted.keys():
        file = folder / driver.DONE
        raise RunError(f"{file} is damaged: expected JSON such as {json.dumps(wanted)}. {AGAIN}")
    return made


def _curve(lines: Sequence[Mapping[str, Any]], share: float) -> list[list[Any]]:
    """Steps, tokens, CPU seconds and accuracies of the evaluations.

    Args:
        lines: all steps.
        share: CPU seconds of the run / its wall seconds.
    """
    tokens, seconds, rows = 0.0, 0.0, []
    for line in lines:
        tokens += line.get("tokens/sampled", 0.0)
        if line["step"]:
            seconds += share * (line["time/step"] - line.get("time/evaluating", 0.0))
        if (accuracy := line.get("eval/accuracy")) is not None:
            rows.append((line["step"], tokens, seconds, accuracy))
    return [*map(list, zip(*rows, strict=True))]


def _share(hits: Iterable[float]) -> float:
    """The mean; 0 without a step."""
    hits = list(hits)
    return sum(hits) / len(hits) if hits else 0.0


def _counts(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = {
        "trained": "tokens/step",
        "dropped": "tokens/dropped",
        "judged dropped": "spurious/dropped",
        "caught": "spurious/caught",
    }
    return {key: sum(line.get(name) or 0.0 for line in steps) for key, name in names.items()}
