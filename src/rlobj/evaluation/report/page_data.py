"""The data inside report.html: problems, verdicts, and the responses that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlobj.evaluation.records import GradedProblem, ResponseRecord
from rlobj.evaluation.summary import BenchmarkResult
from rlobj.reporting import script_safe
from rlobj.rewards import Graded

VERDICTS = {
    "r": "right",
    "w": "wrong",
    "t": "truncated",
    "n": "ended without an answer",
    "u": "undecided",
}
"""Letter in the data -> verdict."""


def verdict(response: ResponseRecord, grade: Graded) -> str:
    """The letter of a response; one that was cut and is not right is truncated."""
    if grade.correct is None:
        return "u"
    if grade.correct:
        return "r"
    if response.finish == "length":
        return "t"
    return "n" if grade.reason == "no answer" else "w"


def problem_data(each: GradedProblem) -> Mapping[str, Any]:
    """Everything about a problem but the texts of its responses."""
    return {
        "id": each.problem.id,
        "prompt": each.problem.prompt,
        "gold": each.problem.answer,
        "share": each.correct / each.decided if each.decided else None,
        "verdicts": "".join(map(verdict, each.responses, each.grades)),
        "answers": [grade.answer for grade in each.grades],
        "reasons": [grade.reason for grade in each.grades],
        "samples": [response.sample for response in each.responses],
        "seeds": [str(response.seed) for response in each.responses],  # too large for JavaScript
        "tokens": [response.tokens for response in each.responses],
        "finishes": [response.finish for response in each.responses],
    }


def kept_texts(
    results: Sequence[BenchmarkResult], budget: int
) -> tuple[dict[tuple[int, int], list[str]], int, int]:
    """The responses that fit: all first ones, then all second ones, and so on.

    Args:
        results: the benchmarks.
        budget: bytes of JSON.

    Returns:
        (texts by index of benchmark and problem, number of texts, number of responses).
    """
    problems = {
        (b, p): each
        for b, result in enumerate(results)
        for p, each in enumerate(result.graded.problems)
    }
    total = sum(len(each.responses) for each in problems.values())
    kept: dict[tuple[int, int], list[str]] = {index: [] for index in problems}
    count = used = 0
    for sample in range(max((len(each.responses) for each in problems.values()), default=0)):
        for index, each in problems.items():
            if sample < len(each.responses):
                text = each.responses[sample].text
                used += len(script_safe(text))
                if used > budget:
                    return kept, count, total
                kept[index].append(text)
                count += 1
    return kept, count, total
