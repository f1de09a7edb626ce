"""What says whether a response is right: kinds of rewards, mappings, several rewards."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from custom_rewards import graded, opened, problems

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.rewards import Reward
from rlobj.settings.run_config import RunConfig

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]


def tidy(response: str, answer: str, **_: Any) -> float:
    """1 for right and 0.2 for a tidy length."""
    return 1.0 if response == answer else 0.2 * (len(response) == 2)


def told(response: str, answer: str, **_: Any) -> dict[str, Any]:
    return {"reward": tidy(response, answer), "correct": response == answer}


# The results of a function.


@pytest.mark.parametrize("value", [1, 0.2, -3.0, True, False, np.bool_(True), np.float32(0.5)])
def test_a_number_does_not_say_what_is_right(value: Any) -> None:
    [grade] = graded(lambda response, answer: value, ["a"])
    assert (grade.correct, grade.undecided) == (None, False)
    assert grade.reward == pytest.approx(float(value))


@pytest.mark.parametrize("kind", ["plain", "async", "batched"])
def test_a_mapping_says_what_is_right_whatever_its_reward_is(kind: str) -> None:
    found = {
        "right": {"reward": -1.0, "correct": True},
        "wrong": {"reward": 0.2, "correct": np.bool_(False)},
        "open": {"reward": None, "correct": True},
        "lost": {"reward": math.nan},
    }

    async def asynchronous(response: str, answer: str) -> Any:
        await asyncio.sleep(0)
        return found[response]

    functions = {
        "plain": lambda response, answer: found[response],
        "async": asynchronous,
        "batched": lambda responses, answers: [found[each] for each in responses],
    }
    with opened(functions[kind], batched=kind == "batched") as grader:
        assert not grader.says_right  # before the first call
        grades = grader.score(list(found), problems(*"xxxx"))
        assert grader.says_right
    assert [each.correct for each in grades] == [True, False, None, None]
    assert [each.undecided for each in grades] == [False, False, True, True]
    assert [each.reward for each in grades[:2]] == [-1.0, 0.2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"reward": 1, "corect": True}, "'corect' is no key. Did you mean 'correct'?"),
        (
            {"reward": 1, "correct": True, 3: 4},
            "3 is no key. Known: columns, correct, feedback, reward.",
        ),
        ({"reward": 1, "correct": 0.7}, "whose correct is True, False or left out"),
        ({"correct": True}, 'a mapping such as {"reward": 0.2, "correct": False}'),
        ({}, "or a mapping such as"),
        (math.inf, "expected a finite number"),
    ],
)
def test_another_result_is_refused(value: Any, message: str) -> None:
    with pytest.raises(RunError) as caught:
        graded(lambda response, answer: value, ["a"])
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match="before the run"):
        opened(lambda response, answer: value).check(problems("x"))


def test_either_every_call_says_what_is_right_or_none_does() -> None:
    values = {"a": 1.0, "b": {"reward": 1, "correct": True}, "c": None, "d": {"reward": 2}}
    with opened(lambda response, answer: values[response]) as grader:
        grader.score(["a", "c", "d", "a"], problems(*"xxxx"))
        with pytest.raises(RunError, match=r"others do not\. Return in every call a number"):
            grader.score(["b"], problems("x"))


def test_the_call_before_the_run_shows_the_form() -> None:
    for function, says in ((tidy, False), (told, True)):
        grader = opened(function)
        grader.check(problems("x"))
        assert grader.says_right is says
    late = opened(lambda response, answer: told(response, answer) if response == "y" else None)
    late.check(problems("x"))
    with late, pytest.raises(RunError, match="and others do not"):
        late.score(["y"], problems("x"))


# Kinds, and several rewards.


def several(*rewards: Any) -> Reward:
    return RunConfig(rewards={"kind": "several", "of": rewards}).rewards


NUMBER = {"name": "number", "kind": "custom", "target": "x:y"}
FIRST = {"name": "first", "kind": "custom", "target": "x:y"}
LAST = {"name": "last", "kind": "exact"}
FUNCTIONS = {
    "number": lambda response, answer, **_: 0.5,
    "first": lambda response, answer, **_: {"reward": 0.0, "correct": response == "ab"},
}


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([NUMBER, FIRST, LAST], [True, False]),
        ([NUMBER, LAST, FIRST], [False, True]),
        ([NUMBER, {**NUMBER, "name": "first", "target": "x:z"}], [None, None]),
    ],
)
def test_the_first_of_several_rewards_that_says_what_is_right_decides(
    rewards: list[Any], expected: list[bool | None]
) -> None:
    functions = FUNCTIONS if expected[0] is not None else dict.fromkeys(FUNCTIONS, tidy)
    with several(*rewards).open(functions) as grader:
        grader.check(problems("x"))
        grades = grader.score(["ab", "x"], problems("x", "x"))
    assert grader.says_right is (expected[0] is not None)
    assert [each.correct for each in grades] == expected
    assert not any(each.undecided for each in grades)


# Dynamic sampling.


def test_dynamic_sampling_by_accuracy_needs_a_reward_that_says_what_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("rlobj.training.loop.opening.InitialPolicy.trained", load)
    with pytest.raises(ConfigError, match=r"sampling\.dynamic\.by=reward"):
        rlobj.train("dapo", data=ROWS, reward=tidy, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for reward, settings in ((told, {}), (tidy, {"sampling.dynamic.by": "reward"})):
        with pytest.raises(AssertionError, match="is loaded"):
            rlobj.train("dapo", data=ROWS, reward=reward, settings=settings, out=tmp_path / "run")
