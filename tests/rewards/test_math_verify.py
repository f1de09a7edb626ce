"""The reward `math_verify`: the real math-verify, in processes that end at a deadline."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest
from runs import ranks

from rlobj.data import Problem
from rlobj.rewards import Graded, MathVerify, math_verify

BOMB = r"\boxed{9^{9^{9^{9}}}}"


def problem(gold: str, name: str = "p", **extra: Any) -> Problem:
    return Problem(name, "?", gold, extra)


def graded(grader: Any, *pairs: tuple[str, str]) -> list[Graded]:
    return grader.score([response for response, _ in pairs], [problem(gold) for _, gold in pairs])


@pytest.fixture(scope="module")
def grader() -> Any:
    with MathVerify(workers=1).open() as opened:
        yield opened


@pytest.mark.parametrize(
    ("response", "gold", "correct", "answer"),
    [
        (r"So \boxed{0.5}", r"\frac{1}{2}", True, r"\frac{1}{2}"),
        (r"\boxed{1/3}", "1/2", False, r"\frac{1}{3}"),
        ("So 3 + 9 = 12, and hence", "12", True, "12"),  # any number of the text
        (r"\boxed{4.5 \times 10^{33}}", "4.5e33", False, r"4.5 \times 10^{33}"),  # Euler's e
        (r"\boxed{(1,2)}", "1<x<2", True, "(1,2)"),  # the gold is the first argument
        (r"\boxed{1<x<2}", "(1,2)", False, "1<x<2"),
        (r"\boxed{5}", "$5$", True, "5"),
        ("no idea", "5", False, None),
        ("", "5", False, None),
    ],
)
def test_verdicts_and_answers_are_those_of_math_verify(
    grader: Any, response: str, gold: str, correct: bool, answer: str | None
) -> None:
    [found] = graded(grader, (response, gold))
    assert (found.correct, found.reward, found.answer) == (correct, float(correct), answer)
    assert found.reason == ("no answer" if answer is None else "math-verify")
    assert found.no_answer is (answer is None)


def test_any_gold_of_several_is_right_and_one_that_cannot_be_read_leaves_no_verdict(
    grader: Any,
) -> None:
    either = problem("5", alternatives=["5", "6"])
    found = grader.score([r"\boxed{6}", r"\boxed{7}"], [either] * 2)
    assert [each.correct for each in found] == [True, False]
    [found] = graded(grader, (r"\boxed{5}", "}"))
    assert (found.correct, found.reason) == (None, "gold not readable")
    assert math.isnan(found.reward)


# Deadlines, and processes that end.


def test_a_response_that_takes_too_long_is_wrong_and_the_next_one_is_graded() -> None:
    """Also on another thread, where the limits of math-verify itself do not work."""
    found: list[Graded] = []
    with MathVerify(deadline=0.5, workers=1).open() as grader:
        graded(grader, (r"\boxed{5}", "5"))  # started
        [worker] = grader._pool.workers
        before = worker.pid
        pairs = (BOMB, "5"), (r"\boxed{5}", "5")
        thread = threading.Thread(target=lambda: found.extend(graded(grader, *pairs)))
        thread.start()
        thread.join()
        assert worker.pid != before
    assert [(each.correct, each.reason) for each in found] == [
        (False, "timeout"),
        (True, "math-verify"),
    ]
    assert found[0].cause == "timeout"
    assert worker.pid is None


@pytest.mark.slow
def test_a_response_that_needs_too_much_memory_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_verify, "_MEMORY", 250 * 2**20)
    with MathVerify(deadline=60, workers=1).open() as grader:
        pairs = (r"\boxed{\lim_{x \to 0} (x+y+z+w+1)^{200}}", "5"), (r"\boxed{5}", "5")
        large, small = graded(grader, *pairs)
    assert (large.correct, large.reason) == (False, "memory")
    assert small.correct is True


@pytest.mark.slow
def test_two_processes_train_and_each_grades_its_share(policy: Any, tmp_path: Any) -> None:
    settings = {
        "training.steps": 1,
        "sampling.prompts_per_step": 4,
        "sampling.group_size": 4,
        "sampling.max_tokens": 6,
        "model.chat_template": "false",
    }
    words = ["train", "--preset", "grpo", "--model", str(policy), "--data", "max-digits"]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    ranks([*words, "--reward", "math_verify", "--out", str(tmp_path / "run")], 2)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    [step] = [line for line in lines if "reward/mean" in line]
    assert step["reward/undecided_share"] == 0
    assert 0 < step["reward/mean"] + step["reward/no_answer_share"] <= 1
