"""The data inside a page: what a browser needs, as JSON that no text can break out of.

Responses are written by a model and count as hostile: a response may hold `</script>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlobj.evaluation.records import GradedProblem, ResponseRecord
from rlobj.evaluation.summary import BenchmarkResult
from rlobj.rewards import Graded

__all__ = ["VERDICTS", "index_of", "kept_texts", "script_safe", "verdict"]

VERDICTS = {
    "r": "right",
    "w": "wrong",
    "t": "truncated",
    "n": "ended without an answer",
    "u": "undecided",
}
"""What became of a response: a letter in the data, and its name."""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def verdict(response: ResponseRecord, grade: Graded) -> str:
    """The letter of a graded response: of one that was cut, and is not right, `truncated`."""
    if grade.correct is None:
        return "u"
    if grade.correct:
        return "r"
    if response.finish == "length":
        return "t"
    return "n" if grade.reason == "no answer" else "w"


def index_of(entries: Sequence[BenchmarkResult]) -> list[dict[str, Any]]:
    """Everything but the responses' texts."""
    return [
        {
            "name": entry.summary.benchmark,
            "problems": [_problem(each) for each in entry.graded.problems],
        }
        for entry in entries
    ]


def kept_texts(
    entries: Sequence[BenchmarkResult], budget: int
) -> tuple[dict[tuple[int, int], list[str]], int, int]:
    """The responses that fit: all first ones, then all second ones, and so on.

    Args:
        entries: the benchmarks.
        budget: bytes of JSON.

    Returns:
        (texts by places of benchmark and problem, how many there are, how many there would be).
    """
    problems = {
        (b, p): each
        for b, entry in enumerate(entries)
        for p, each in enumerate(entry.graded.problems)
    }
    total = sum(len(each.responses) for each in problems.values())
    kept: dict[tuple[int, int], list[str]] = {place: [] for place in problems}
    count = used = 0
    for sample in range(max((len(each.responses) for each in problems.values()), default=0)):
        for place, each in problems.items():
            if sample < len(each.responses):
                text = each.responses[sample].text
                used += len(script_safe(text))
                if used > budget:
                    return kept, count, total
                kept[place].append(text)
                count += 1
    return kept, count, total


def script_safe(value: Any) -> bytes:
    """JSON for a <script> element: no `<`, `>` or `&` in it, whatever the text.

    Lone surrogates, which UTF-8 lacks, become JSON's own escapes.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark, escape in _ESCAPES.items():
        text = text.replace(mark, escape)
    return text.encode("utf-8", "backslashreplace")


def _problem(each: GradedProblem) -> Mapping[str, Any]:
    return {
        "id": each.problem.id,
        "prompt": each.problem.prompt,
        "gold": each.problem.answer,
        "share": each.correct / each.decided if each.decided else None,
        "verdicts": "".join(map(verdict, each.responses, each.grades)),
        "answers": [grade.answer for grade in each.grades],
        "reasons": [grade.reason for grade in each.grades],
        "samples": [response.sample for response in each.responses],
        "seeds": [str(response.seed) for response in each.responses],  # past what JS counts exactly
        "tokens": [response.tokens for response in each.responses],
        "finishes": [response.finish for response in each.responses],
    }
