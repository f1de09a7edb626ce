"""SmolLM2's answers to sums, graded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlobj

SUMS = [{"problem": f"{a} + {b}", "answer": str(a + b)} for a in (30, 40, 53) for b in (20, 35)]
TEMPLATE = "3 + 14 = 17, \\boxed{17}\n25 + 36 = 61, \\boxed{61}\n{prompt} ="


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["math", "math_verify"])
def test_an_answer_is_right_if_the_number_in_its_box_is(smollm2: Path, reward: str) -> None:
    result = rlobj.evaluate(
        smollm2,
        SUMS,
        n=1,
        temperature=0,
        max_tokens=14,
        template=TEMPLATE,
        reward=reward,
        settings={"model.chat_template": False},
        progress=False,
    )
    for row in result.rows:
        [box] = re.findall(r"\\boxed\{(\d+)\}", row["responses"][0])
        assert row["answers"] == [box]
        assert row["correct"] == [box == row["gold"]]
    assert 0 < result.accuracy < 1
