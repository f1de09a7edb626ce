"""The task and the policy of a run without a model: it learns, and STAPO finds spurious tokens."""

from __future__ import annotations

import pytest

import rlobj


@pytest.mark.slow
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
