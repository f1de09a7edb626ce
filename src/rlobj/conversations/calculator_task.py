"""The environment of the task `calculator`: the policy writes `?37*46;`, and reads `1702;`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlobj.conversations.environment import Message, ToolUse, Turn

_CALL = re.compile(r"\?(\d{1,9})([+*-])(\d{1,9});")
_MARK = "#"


class Calculator:
    """Computes a sum, difference or product of two whole numbers, and judges the answer after `#`.

    A turn that ends with `;` is a call, all others are answers: the reward is 1 if the text after
    the last `#` is the answer of the problem, else 0. A call that cannot be read is answered with
    `error;`.
    """

    def __init__(self) -> None:
        self.answer = ""

    def reset(self, problem: Any) -> None:
        """Begin with the problem as it is."""
        self.answer = problem.answer

    def step(self, messages: Sequence[Message]) -> Turn:
        """Compute, or judge the answer."""
        text = messages[-1]["content"]
        if not text.endswith(";"):
            right = text.rpartition(_MARK)[2] == self.answer
            return Turn(reward=float(right), done=True, correct=right)
        if call := _CALL.fullmatch(text):
            a, b = int(call[1]), int(call[3])
            found = {"+": a + b, "-": a - b, "*": a * b}[call[2]]
            return Turn(f"{found};", uses=(ToolUse("calculator"),))
        return Turn("error;", uses=(ToolUse("calculator", "error"),))
