"""Graded problems, made up by tests."""

from __future__ import annotations

import math
from typing import Any

from rlobj.data import Problem
from rlobj.evaluation.samples import GradedProblem, ResponseRecord
from rlobj.rewards import Graded

VERDICTS = {"+": True, "-": False, "?": None}


def graded(problem: Problem, *samples: dict[str, Any]) -> GradedProblem:
    """A problem whose samples have a verdict `correct`, and `answer`, `text`, `tokens`, `finish`,
    `seed`, `reward`, `reason` and `turns` where a test needs them."""
    responses, grades = [], []
    for i, given in enumerate(samples):
        correct, answer = given["correct"], given.get("answer", problem.answer)
        text, tokens, finish = (given.get(name) for name in ("text", "tokens", "finish"))
        row = (i, given.get("seed", i), text or "", tokens, finish, given.get("turns", ()))
        responses.append(ResponseRecord(*row))
        reason = "no answer" if answer is None else "timeout" if correct is None else "integers"
        reward = math.nan if correct is None else float(correct)
        reward, reason = given.get("reward", reward), given.get("reason", reason)
        grades.append(Graded(reward, correct, reason, answer))
    return GradedProblem(problem, tuple(responses), tuple(grades))
