"""Columns of one's own in TRL: of the data set, or logged by a reward function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from integrations.trl_runs import PROMPTS, config, reward, trainer
from tiny import save_tiny_policy
from transformers import AutoModelForCausalLM

import rlobj
from rlobj import Objective, read_tables
from rlobj.base.errors import ConfigError
from rlobj.integrations.trl import ObjectiveTrainer
from rlobj.scoring import PolicyScorer, score_samples

OWN = {"hard": "data", "digits": "reward"}
RULE = "when(hard > 0.5, 2, 1) + digits"
OBJECTIVE = Objective(columns=tuple(OWN), reweight=RULE)
DATA = Dataset.from_dict({"prompt": PROMPTS, "hard": [i % 4 / 3 for i in range(len(PROMPTS))]})


def logged(completions: Sequence[str], log_extra: Any, **_: Any) -> list[float]:
    """The reward; it also logs the share of digits."""
    digits = [sum(map(str.isdigit, text)) / (len(text) or 1) for text in completions]
    log_extra("digits", digits)
    return reward(completions)


def own(folder: Path, objective: Any = OBJECTIVE, args: Any = None, **named: Any) -> Any:
    """A trainer whose objective reads both columns."""
    given = {"train_dataset": DATA, "reward_funcs": logged, "output": {"tables_every": 1}, **named}
    return trainer(
        ObjectiveTrainer, args or config(folder, max_steps=2), None, objective=objective, **given
    )


def test_columns_are_named_in_a_preset(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text(
        f"base: grpo\ncolumns: {{hard: data, digits: reward}}\nobjective:\n  reweight: {RULE}"
    )
    assert own(tmp_path, preset)._own == OWN


def test_rules_read_the_data_set_and_the_reward(tmp_path: Path) -> None:
    own(tmp_path, columns=OWN).train()
    run = tmp_path / "_rlobj"
    hard = dict(zip(PROMPTS, DATA["hard"], strict=True))
    tokenizer = own(tmp_path, columns=OWN, record=False).processing_class
    for update in read_tables(run):
        table = update.table
        texts = [[tokenizer.decode(x) for x in pair] for pair in update.sequences]
        expected = [hard[prompt] for prompt, _ in texts]
        assert table.columns["hard"][table.positions == 0].tolist() == [
            of for of, (_, response) in zip(expected, update.sequences, strict=True) if response
        ]
        shares = [sum(map(str.isdigit, text)) / (len(text) or 1) for _, text in texts]
        spread = table.spread(torch.tensor(shares, dtype=torch.float64))
        assert torch.allclose(table.columns["digits"], spread)
        plain = update.objective.replace(reweight=None).plan([table], update.state).weights[0]
        weight = torch.where(table.columns["hard"] > 0.5, 2.0, 1.0) + table.columns["digits"]
        assert torch.allclose(update.weights, plain * weight.float())
    assert "to the bit" in repr(rlobj.replay(run, "digits > 0.5"))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"train_dataset": DATA.remove_columns("hard")},
            "hard=data: expected a number for",
        ),
        ({"reward_funcs": reward}, r"digits=reward: expected .* log_extra\('digits', values\)"),
    ],
)
def test_a_column_without_values_ends_it(tmp_path: Path, named: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own(tmp_path, columns=OWN, **named).train()


SCORED = Objective(scores=["teacher"], shape="advantage + clip(teacher_gap, -2, 2)")


def test_a_frozen_model_scores_the_rollouts(tmp_path: Path) -> None:
    teacher = save_tiny_policy(tmp_path / "teacher", seed=5)
    args = config(tmp_path, max_steps=2, num_iterations=2, learning_rate=1e-2)
    scores = {"teacher": {"model": str(teacher)}}
    own(tmp_path, SCORED, args, columns={}, reward_funcs=reward, scores=scores).train()
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    for update in read_tables(tmp_path / "_rlobj"):
        with torch.no_grad():
            expected = score_samples(PolicyScorer(model), update.sequences).logprobs
        torch.testing.assert_close(update.table.columns["teacher_logprob"], expected)
        assert update.table.columns["teacher_logprob"].abs().sum() > 0
