"""Graded problems, made up by tests."""

from __future__ import annotations

import math
from typing import Any

from rlobj.data import Problem
from rlobj.evaluation.graded import GradedProblem
from rlobj.rewards import Graded
from rlobj.samplers import Response

VERDICTS = {"+": True, "-": False, "?": None}


def graded(problem: Problem, *samples: dict[str, Any]) -> GradedProblem:
    """A problem whose samples have a verdict `correct`, and `answer`, `text`, `tokens`, `finish`,
    `seed`, `reward`, `reason` and `turns` where a test needs them."""
    responses = []
    for i, given in enumerate(samples):
        correct, answer = given["correct"], given.get("answer", problem.answer)
        reason = "no answer" if answer is None else "timeout" if correct is None else "integers"
        reward = math.nan if correct is None else float(correct)
        reward, reason = given.get("reward", reward), given.get("reason", reason)
        facts = {"id": i, "seed": given.get("seed", i), "length": given.get("tokens", 0)}
        facts |= {"turns": given.get("turns", ()), "grade": Graded(reward, correct, reason, answer)}
        text, finish = given.get("text", ""), given.get("finish", "stop")
        responses.append(Response((), (), (), text, finish, 0, **facts))
    return GradedProblem(problem, tuple(responses))
