"""The embedded policy learns: to ask a calculator, and without its spurious tokens."""

from __future__ import annotations

import pytest

import rlobj

pytestmark = pytest.mark.slow


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


def test_stapo_learns_the_default_task_and_drops_almost_only_spurious_tokens(tmp_path):
    settings = {"training.steps": 15, "evaluation.every": 15, "evaluation.problems": 100}
    result = rlobj.train("stapo", out=tmp_path / "run", settings=settings)
    before, after = (line["eval/accuracy"] for line in result.history if "eval/accuracy" in line)
    assert 0.4 < before < 0.7
    assert after > before + 0.05  # 60 steps add 0.31
    steps = [line for line in result.history if "spurious/tokens" in line]
    total = {
        name: sum(line[f"spurious/{name}"] for line in steps)
        for name in ("tokens", "caught", "dropped")
    }
    assert 30 < total["dropped"] < 0.003 * sum(line["tokens/step"] for line in steps)
    assert total["caught"] >= 0.95 * total["dropped"]
    assert total["tokens"] > 3 * total["caught"]
