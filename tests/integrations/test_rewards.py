"""The verifier as TRL's reward, in TRL's own trainer; tests/verl_plugin has the test with verl."""

from __future__ import annotations

import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.embedded_policy import build_policy, build_tokenizer
from datasets import Dataset
from integrations.trl_runs import config
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import ConfigError
from rlobj.integrations.rewards import accuracy_reward, compute_score

LETTERS = string.digits + string.ascii_letters + string.punctuation + " "
SAID = [r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{3}", "I do not know"]
"""The completions of each prompt."""


def completions(prompts: list[str], trainer: Any) -> dict[str, Any]:
    encode = trainer.processing_class
    ids = [encode(SAID[index % len(SAID)])["input_ids"] for index in range(len(prompts))]
    asked = [encode(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None}


@pytest.mark.parametrize(("gold", "mean", "undecided"), [(r"$\frac12$", 0.5, 0.0), ("", None, 1.0)])
def test_trl_trains_with_the_verifier(
    tmp_path: Path, gold: str, mean: float | None, undecided: float
) -> None:
    one = GRPOTrainer(
        build_policy(0, LETTERS),
        reward_funcs=accuracy_reward,
        args=config(tmp_path, max_steps=1, max_completion_length=16),
        train_dataset=Dataset.from_dict({"prompt": ["1/2"] * 8, "solution": [gold] * 8}),
        processing_class=build_tokenizer(LETTERS),
        rollout_func=completions,
    )
    one.train()
    [line] = [line for line in one.state.log_history if "reward/undecided" in line]
    assert line["reward/undecided"] == undecided
    if mean is not None:
        assert line["rewards/accuracy_reward/mean"] == mean
        assert line["grad_norm"] > 0


def test_an_undecided_completion_has_no_reward_in_trl() -> None:
    said = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": r"\boxed{5}"}]]
    assert accuracy_reward(said * 2, solution=["5", ""]) == [1.0, None]
    assert accuracy_reward(said, answer=[["4", "5"]]) == [1.0]
    assert accuracy_reward(said * 2, answer=[5, None]) == [1.0, None]  # columns of numbers
    with pytest.raises(ConfigError, match="expects a column solution or answer"):
        accuracy_reward(said)


def test_an_undecided_response_has_the_score_0_in_verl_and_is_marked() -> None:
    found = compute_score("", r"\boxed{5}", "", {})
    assert found == {"score": 0.0, "acc": 0.0, "undecided": 1.0, "pred": "5"}
    assert compute_score("", r"\boxed{5}", ["4", "5"])["score"] == 1.0


def test_the_reward_functions_load_neither_torch_nor_trl() -> None:
    program = "import sys, rlobj.integrations.rewards; print({'torch', 'trl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
