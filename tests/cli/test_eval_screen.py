"""The numbers of an evaluation on screen."""

from __future__ import annotations

from screens import console, text_of

from rlobj.data import Problem
from rlobj.evaluation import (
    EvaluationResult,
    GradedBenchmark,
    GradedProblem,
    ResponseRecord,
    summarise,
)
from rlobj.evaluation.summary import BenchmarkResult
from rlobj.rewards import Graded
from rlobj_cli.screen.evaluating import EvaluationScreen


def shown(samples: int) -> tuple[EvaluationResult, str]:
    """An evaluation with four responses to one problem, three of them right, and its screen."""
    responses = tuple(ResponseRecord(i, 0, "4", 1, "stop") for i in range(4))
    grades = tuple(Graded(float(i > 0), i > 0, "", "4") for i in range(4))
    graded = GradedBenchmark("a", (GradedProblem(Problem("1", "2+2=", "4"), responses, grades),))
    settings = {"problems": 1, "samples": samples}
    benchmark = BenchmarkResult(graded, summarise(graded), settings)
    result = EvaluationResult({"a": benchmark}, {"model": {"name": "tiny"}, "engine": {}})
    screen = console()
    EvaluationScreen(screen).finished(result)
    return result, text_of(screen)


def test_the_screen_and_the_markdown_show_the_same_numbers() -> None:
    result, text = shown(samples=4)
    assert ["avg@n", "75.0"] in [line.split() for line in text.splitlines()]
    assert "| avg@n | 75.0 |" in result.to_markdown()
    assert "Not finished" not in text


def test_what_is_missing_stands_above_the_results() -> None:
    _, text = shown(samples=5)
    assert 0 <= text.index("Not finished: a: 4 of 5") < text.index("avg@n")
