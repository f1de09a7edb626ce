"""Grade the stored responses of an evaluation again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.identity import environment, now
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.result import EvaluationResult, GradeChange
from rlobj.evaluation.samples import Samples
from rlobj.evaluation.sampling import grade_all
from rlobj.rewards import Reward


def regrade(
    path: Path | str,
    *,
    reward: str | None = None,
    deadline: float | None = None,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Grade the stored responses of an evaluation again; its grades and results are replaced.

    The result's `changes` are the responses whose verdict changed.

    Args:
        path: folder of the evaluation.
        reward: "math" or "exact"; None = as before.
        deadline: seconds that one answer may take (math); None = as before.
        callback: receives the events.

    Raises:
        ConfigError: no evaluation there, or settings that the reward does not have.
    """
    callback, samples = callback or EvaluationCallback(), Samples.open(path)
    given = {"kind": reward, "deadline": deadline}
    change = {name: value for name, value in given.items() if value is not None}
    with samples.locked():
        settings, problems = samples.settings(), samples.problems()
        again = Samples()
        again.responses = samples.responses
        for name, own in settings["benchmarks"].items():
            changed = _changed(own["reward"], change)
            with changed.open() as grader:
                known = problems.get(name, [])
                grade_all(grader, known, name, again, block=256, callback=callback)
            own["reward"] = changed.recorded()
        before = samples.grades
        samples.rewrite_grades(again.grades)
        settings.setdefault("sessions", []).append({"regraded": now(), **environment()})
        samples.write_settings(settings)
    changes = tuple(
        GradeChange(key, old, samples.grades[key])
        for key, old in before.items()
        if key in samples.grades and samples.grades[key].correct != old.correct
    )
    return publish(samples, callback, changes)


def _changed(reward: Mapping[str, Any], change: Mapping[str, Any]) -> Reward:
    """The reward with those changes that its kind has."""
    kind = change.get("kind", reward["kind"])
    fields = Reward.registry[kind].model_fields if kind in Reward.registry else change
    below = reward if kind == reward["kind"] else {}
    return Reward.build({**below, **{k: v for k, v in change.items() if k in ("kind", *fields)}})
