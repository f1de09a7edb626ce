"""Evaluations of responses that tests write themselves, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.data import Problem
from rlobj.evaluation import EvaluationResult
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.responses import sample_and_grade
from rlobj.rewards import Reward
from rlobj.runs.evaluation_samples import Samples
from rlobj.samplers import Response


def stored(
    folder: Path,
    rows: Mapping[str, Sequence[str]],
    reward: str | Mapping[str, Any] = "exact",
    *,
    grade: bool = True,
) -> EvaluationResult | None:
    """Store the responses to problems `gold` -> responses, and grade them.

    The benchmark is named r, and its problems are named by their golds.
    """
    problems = {gold: Problem(gold, f"{gold}?", gold) for gold in rows}
    responses = {
        ("r", gold, i): Response((), (), (), text, "stop", 0, id=i, seed=i, length=len(text))
        for gold, texts in rows.items()
        for i, text in enumerate(texts)
    }
    samples, built = Samples(folder), Reward.build(reward)
    most = max(map(len, rows.values()))
    own = {"problems": len(rows), "samples": most, "reward": built.recorded()}
    model, engine = {"name": "m"}, {"name": "transformers"}
    with samples.locked():
        samples.write_problems({"r": list(problems.values())})
        samples.add(responses)
        samples.write_settings(
            {"format": 1, "model": model, "engine": engine, "benchmarks": {"r": own}}
        )
        if not grade:
            return None
        with built.open() as grader:
            asked = list(problems.values())
            sample_and_grade(
                None, None, asked, grader, None, count=0, seed=0, benchmark="r", samples=samples
            )
    return publish(Samples.open(folder), EvaluationCallback())
