"""The second task family: make a target from four digits, each used once, with + and -.

prompt `7,3,5,2=7`, response `7+3+5-2=13;7+3-5+2=7#7+3-5+2`: attempts, and after # the answer, which
alone is graded. The target can be made in the order of the problem, so that only signs are looked
for; any other answer that makes the target from these digits is right, too. No judge says which
tokens of a right response are spurious, so that runs of this family have no metrics of these.
"""

from __future__ import annotations

import itertools
import random
import re
from functools import cache
from typing import Any

from rlobj.data.problems import digest
from rlobj.data.scratchpad import MARK

COUNTDOWN = "countdown"
"""The name of the family."""
DIGITS = 4
MAX_TOKENS = 48
WARM_STEPS = 700
"""Steps of the supervised training of its policy."""


def value(answer: str) -> int | None:
    """The value of an answer; None if it is none.

    Example:
        >>> value("3+5-7+2"), value("3+5-7")
        (3, None)
    """
    if not re.fullmatch(rf"\d([+-]\d){{{DIGITS - 1}}}", answer):
        return None
    return sum(map(int, re.findall(r"[+-]?\d", answer)))


def reward(response: str, answer: str, numbers: str, **columns: Any) -> dict[str, Any]:
    """Right if the text after the last # makes the target from the digits of the problem."""
    written = response.rpartition(MARK)[2]
    right = value(written) == int(answer)
    right = right and sorted(re.findall(r"\d", written)) == sorted(numbers.split(","))
    return {"reward": float(right), "correct": right}


@cache
def _values() -> dict[str, dict[str, int]]:
    """Digits in order with commas -> answers in this order -> their values, none negative."""
    found: dict[str, dict[str, int]] = {}
    for digits in itertools.product("123456789", repeat=DIGITS):
        for signs in itertools.product("+-", repeat=DIGITS - 1):
            answer = digits[0] + "".join(map("".join, zip(signs, digits[1:], strict=True)))
            if (made := value(answer)) is not None and made >= 0:
                found.setdefault(",".join(digits), {})[answer] = made
    return found


def rows(split: str) -> list[dict[str, str]]:
    """The problems of a split, train or test, in a fixed shuffled order, one for each four digits.

    All orders of the same digits are in the same split.
    """
    draw, found = random.Random(0), []
    for numbers, values in _values().items():
        family = "".join(sorted(numbers))
        held_out = int(digest(f"countdown/{family}")[:8], 16) % 5 == 0
        target = str(draw.choice([*values.values()]))
        if held_out == (split == "test"):
            found.append({"prompt": f"{numbers}={target}", "answer": target, "numbers": numbers})
    draw.shuffle(found)
    return found


def demonstrations() -> list[tuple[str, str]]:
    """(prompt, right response) of each training problem, after none to two attempts that fail."""
    draw, pairs = random.Random(0), []
    for row in rows("train"):
        values, target = _values()[row["numbers"]], int(row["answer"])
        wrong = [answer for answer, made in values.items() if made != target]
        right = draw.choice([answer for answer, made in values.items() if made == target])
        tried = [*draw.sample(wrong, min(draw.randrange(3), len(wrong))), right]
        steps = ";".join(f"{answer}={values[answer]}" for answer in tried)
        pairs.append((row["prompt"], f"{steps}{MARK}{right}"))
    return pairs
