"""Evaluations with a reward that does not say which responses are right."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import pytest
from graded import graded

import rlobj
from rlobj.base.errors import DataError
from rlobj.data import Problem
from rlobj.evaluation import compare, summarise_folder
from rlobj.evaluation.comparing import compare_benchmark
from rlobj.evaluation.estimators import macro_average
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.results import results_json, results_markdown
from rlobj.rewards.kinds import NO_REWARD

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(3) for b in range(4)]
OF_RIGHT = "avg@|pass@|maj@|right|accuracy|solve|wrong"


def benchmark(rewards: dict[str, list[float]], right: bool = False) -> GradedBenchmark:
    """Problems by id with the rewards of their responses; nan = undecided."""
    problems = []
    custom = {"reason": "custom", "answer": None, "tokens": 3, "finish": "stop"}
    for name, values in rewards.items():
        verdicts = [each > 0 if right and not math.isnan(each) else None for each in values]
        pairs = zip(values, verdicts, strict=True)
        samples = [{"reward": reward, "correct": verdict, **custom} for reward, verdict in pairs]
        problems.append(graded(Problem(name, "?", "1"), *samples))
    return GradedBenchmark("mine", tuple(problems))


A = {"a": [1.0, -3.0, 0.2], "b": [0.2, math.nan, 0.4], "c": [math.nan] * 3, "d": [5.0, 5.0, 6.0]}
B = {"a": [2.0, 2.0, 2.0], "b": [0.0, 0.0, 0.0], "c": [1.0] * 3, "d": [1.0, 1.0, 1.0]}


def test_the_mean_reward_is_over_problems_and_decided_responses() -> None:
    rewarded = benchmark(A)
    decided = [[1.0, -3.0, 0.2], [0.2, 0.4], [5.0, 5.0, 6.0]]
    means = [fmean(each) for each in decided]
    sampling = math.sqrt(sum(variance(each) / len(each) for each in decided)) / 3
    problems = math.sqrt(variance(means) / 3)
    assert math.isnan(rewarded.accuracy)
    assert rewarded.metrics() == pytest.approx(
        {
            "eval/reward": fmean(means),
            "eval/reward_se_samples": sampling,
            "eval/reward_se_problems": problems,
            "eval/problems": 4.0,
            "eval/undecided": 4.0,
            "eval/length_mean": 3.0,
            "eval/truncated": 0.0,
        }
    )
    low, high, _ = rewarded.estimate.interval
    assert low < fmean(means) < high
    assert not [name for name in rewarded.numbers if re.search(OF_RIGHT, name)]


def test_nobody_averages_accuracies_with_rewards() -> None:
    mixed = [benchmark(B, right=right) for right in (False, True)]
    numbers, verdicts = (each.estimate for each in mixed)
    assert macro_average([numbers, numbers]).mean == pytest.approx(1.0)
    assert math.isnan(macro_average([numbers, verdicts]).mean)
    assert "mean of 2" not in results_markdown(mixed, {})
    assert "macro_average" not in results_json(mixed, {})


def number(response: str, answer: str, **_: Any) -> float:
    return 1.0 if response == answer else 0.2 * (len(response) == 1)


def told(response: str, answer: str, **_: Any) -> dict[str, Any]:
    return {"reward": number(response, answer), "correct": response == answer}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("evals")
    for name, reward in (("number", number), ("told", told)):
        rlobj.evaluate("embedded", on=ROWS, n=4, reward=reward, out=found / name)
    return found


def test_results_have_the_mean_reward_and_nothing_of_right_responses(folder: Path) -> None:
    numbers = json.loads((folder / "number" / "results.json").read_text())["results"]["problems"]
    assert not [name for name in numbers if name != "settings" and re.search(OF_RIGHT, name)]
    assert numbers["reward_interval"][0] <= numbers["reward"] <= numbers["reward_interval"][1]
    assert min(numbers["reward_stderr"], numbers["reward_stderr_sampling"]) > 0
    table, *notes = (folder / "number" / "results.md").read_text().split("\n\n")
    assert f"| mean reward | {numbers['reward']:.3f} |" in table
    assert not re.search(OF_RIGHT, table)
    assert '{"reward": 0.2, "correct": False}' in notes[1]
    page = (folder / "number" / "report.html").read_text()
    assert re.findall(r"checkbox value=(\w)", page) == ["g"]
    result, decided = (summarise_folder(folder / name) for name in ("number", "told"))
    assert (math.isnan(result.accuracy), math.isnan(decided.reward)) == (True, True)
    assert f"rewards={{'problems': {round(result.reward, 4)}}}" in repr(result)
    assert (math.isnan(result.rows[0]["accuracy"]), result.rows[0]["correct"]) == (True, [None] * 4)
    assert decided.accuracy == fmean(row["accuracy"] for row in decided.rows) < result.reward


def test_a_comparison_of_rewards_says_what_it_compares(folder: Path) -> None:
    text = compare(folder / "number", folder / "number").to_markdown()
    assert "Mean rewards of problems, else percent of right responses" in text
    with pytest.raises(DataError, match="only one side says which responses are right"):
        compare(folder / "number", folder / "told")


def undecided(response: str, answer: str, **_: Any) -> None:
    return None


def test_a_function_that_decides_nothing_gives_no_accuracy(folder: Path, tmp_path: Path) -> None:
    rlobj.evaluate("embedded", on=ROWS, n=4, reward=undecided, out=tmp_path / "open")
    result = summarise_folder(tmp_path / "open")
    assert (math.isnan(result.accuracy), math.isnan(result.reward)) == (True, True)
    table, *notes = (tmp_path / "open" / "results.md").read_text().split("\n\n")
    assert "| mean reward | – |" in table
    assert not re.search(OF_RIGHT, table)
    reason = (
        "Undecided responses enter no mean reward: problems 48 (the reward returned None or NaN)"
    )
    assert any(reason in note for note in notes)
    with pytest.raises(DataError, match="Nothing to compare"):
        compare(tmp_path / "open", folder / "number")
    for reason, known in (
        ("a: custom", False),
        (f"a: {NO_REWARD}", False),
        ("gold not readable", True),
    ):
        whole = graded(Problem("1", "?", "1"), {"correct": None, "reason": reason, "answer": None})
        assert GradedBenchmark("mine", (whole,)).says_right is known


# Comparisons.


def test_rewards_are_compared_where_both_sides_have_one() -> None:
    found = compare_benchmark(benchmark(A), benchmark(B))
    differences = [fmean([1.0, -3.0, 0.2]) - 2, 0.3, fmean([5, 5, 6.0]) - 1]
    assert [change.difference for change in found.compared] == pytest.approx(differences)
    assert found.left_out == 1
    assert found.means == pytest.approx((found.difference + 1, 1.0))
