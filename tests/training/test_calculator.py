"""The tasks with a calculator: the embedded policy learns to ask."""

from __future__ import annotations

import pytest

import rlobj


@pytest.mark.slow
def test_the_policy_learns_to_call_the_calculator(tmp_path):
    settings = {"training.steps": 12, "evaluation.every": 12, "evaluation.problems": 100}
    result = rlobj.train("stare", data="calculator", out=tmp_path / "run", settings=settings)
    before, after = (line["eval/accuracy"] for line in result.history if "eval/accuracy" in line)
    assert 0.2 < before < 0.4
    assert after > before + 0.2
    steps = [line for line in result.history if "turns/mean" in line]
    assert steps[0]["tools/used_share"] < 0.4
    assert steps[-1]["tools/used_share"] > 0.8
    assert steps[0]["tools/accuracy_with"] > 0.8
    assert steps[0]["tools/accuracy_without"] < 0.02  # it cannot multiply
