"""Knights and Knaves: an answer is right only if every role is right."""

from __future__ import annotations

import math
import time

import pytest

from rlobj.data import Problem
from rlobj.rewards.kinds import Reward
from rlobj.rewards.knights_and_knaves import KnightsAndKnaves, grade_roles, parse_roles

GOLD = "(1) Ella is a knight\n(2) Zoey is a knave\n(3) Henry is a knight"


@pytest.mark.parametrize(
    "response",
    [
        f"<think>Assume Ella lies.</think>\n<answer>{GOLD}</answer>",
        f"Assume Ella lies.</think><answer>\n{GOLD}\n</answer>",  # the prompt opened the thought
        f"<answer>{GOLD}</answer>",
        f"<answer>{GOLD}</answer>\nI hope this helps.",
        f"<answer>Ella is a knave</answer> No, wait.\n<answer>{GOLD}</answer>",
        f"<think><answer>Ella is a knave</answer></think><answer>{GOLD}</answer>",
        "<answer>(3) Henry is a knight\n(1) Ella is a knight\n(2) Zoey is a knave</answer>",
        "<answer>Ella is a knight, Zoey is a knave, and Henry is a knight.</answer>",
        "<answer>1. **Ella** is a Knight\n2. **Zoey** is a KNAVE\n3. Henry is a knight</answer>",
        "<answer>(1) ella is knight <br> (2) zoey is knave <br/> (3) henry is knight</answer>",
        "<answer>- Ella is a knight\n- Zoey is a knave\n* Henry is a knight\n</answer>",
    ],
)
def test_right_roles_are_right_in_any_allowed_form(response):
    grade = grade_roles(response, GOLD)
    assert (grade.correct, grade.reward, grade.reason) == (True, 1.0, "same roles")
    assert grade.answer is not None
    assert "<" not in grade.answer.replace("<br", "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (GOLD.replace("Zoey is a knave", "Zoey is a knight"), "other roles"),
        ("(1) Ella is a knight\n(2) Zoey is a knave", "not everybody is named"),
        (f"{GOLD}\n(4) Liam is a knight", "other people"),
        (GOLD.replace("Henry", "Harry"), "other people"),
        (f"{GOLD}\n(4) Ella is a knave", "not a list of statements"),
        (GOLD.replace("a knave", "a knave or a knight"), "not a list of statements"),
        (GOLD.replace("is a knave", "is not a knight"), "not a list of statements"),
        (f"It is false that:\n{GOLD}", "not a list of statements"),
        (f"{GOLD}\nor all of them are knaves", "not a list of statements"),
        ("Ella, Henry: knight\nZoey: knave", "not a list of statements"),
    ],
)
def test_missing_extra_ambiguous_or_contradictory_statements_are_wrong(answer, reason):
    grade = grade_roles(f"<think>hm</think><answer>{answer}</answer>", GOLD)
    assert (grade.correct, grade.reward, grade.reason) == (False, 0.0, reason)
    assert grade.answer == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        GOLD,  # no tags
        f"<answer>{GOLD}",  # cut off
        f"{GOLD}</answer>",
        "<answer> </answer>",
        f"<think>So <answer>{GOLD}</answer>",  # an unfinished thought
        f"<think>So <answer>{GOLD}</answer></think> They are all knights.",
        f"</think><answer>{GOLD}</answer><think>Wait",
    ],
)
def test_response_without_a_closed_answer_tag_after_thinking_has_no_answer(response):
    grade = grade_roles(response, GOLD)
    assert (grade.correct, grade.reward, grade.reason, grade.answer) == (
        False,
        0.0,
        "no answer",
        None,
    )


@pytest.mark.parametrize("gold", ["", "42", "Ella is a wizard"])
def test_gold_without_statements_is_undecided(gold):
    grade = grade_roles(f"<answer>{GOLD}</answer>", gold)
    assert grade.correct is None
    assert math.isnan(grade.reward)
    assert grade.reason == "gold not parsed"


def test_reward_is_found_by_kind_and_counts_undecided_responses():
    reward = Reward.build({"kind": "knights_and_knaves", "overlong": {"cache": 0.2}})
    assert isinstance(reward, KnightsAndKnaves)
    problems = [Problem("a", "Who?", GOLD), Problem("b", "Who?", "?")]
    with reward.open() as grader:
        grades = grader.score([f"<answer>{GOLD}</answer>"] * 2, problems)
    assert [grade.correct for grade in grades] == [True, None]
    assert grader.undecided == {"gold not parsed": 1}


@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 20_000,
        "(" * 100_000,
        "Ella is " * 20_000,
        " " * 100_000 + "x",
        "1" + " " * 100_000 + "x",
        "1" * 100_000,
    ],
)
def test_long_nonsense_is_graded_in_half_a_second(text):
    start = time.process_time()
    assert grade_roles(f"<answer>{text}</answer>", GOLD).correct is False
    assert time.process_time() - start < 0.5


def test_roles_of_published_golds_are_parsed():
    assert parse_roles(GOLD) == {"ella": "knight", "zoey": "knave", "henry": "knight"}
