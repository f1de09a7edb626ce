"""ObjectiveTrainer against TRL's own losses and against rlobj alone, in the first update."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from integrations.trl_runs import (
    GRPOTrainer,
    alone,
    behind,
    changed,
    config,
    gradients,
    off,
    planned,
    policy,
    taken,
    train,
    trainer,
    weights,
)
from peft import LoraConfig
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from rlobj import RunError, load_preset
from rlobj.integrations.trl import ObjectiveTrainer

DAPO = {"epsilon_high": 0.28}
slow = partial(pytest.param, marks=pytest.mark.slow)
OTHERS = (
    "20-entropy stare archer gspo gmpo reinforce-pp kl-cov clip-cov fipo entropy-shaped opsm "
    "ce-gppo tpo"
)
PRESETS = ("stapo", "lopti", "gdpo", *map(slow, OTHERS.split()))
"""One for each kind of part: rules, controllers, phases, KLs, ratios of responses, advantages."""


def moe() -> Qwen3MoeForCausalLM:
    """A mixture of experts, whose router has a loss of its own."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    router = {"output_router_logits": True, "router_aux_loss_coef": 0.1}
    size = len(build_tokenizer())
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(vocab_size=size, num_hidden_layers=2, **sizes, **heads, **experts, **router)
    )


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        pytest.param({}, policy, id="usual"),
        slow({"num_iterations": 2, "learning_rate": 1e-2}, policy, id="two rounds"),
        slow({"gradient_checkpointing": True}, policy, id="checkpointing"),
        slow({}, moe, id="experts"),
    ],
)
def test_dapo_is_trls_dapo_to_the_bit(tmp_path: Path, settings: dict[str, Any], model: Any) -> None:
    args = {**DAPO, "max_steps": 2, **settings}
    theirs = trainer(GRPOTrainer, config(tmp_path, **args), model())
    theirs.train()
    ours = trainer(
        ObjectiveTrainer,
        config(tmp_path, **args),
        model(),
        objective="dapo-loss",
        advantages="trl",
    )
    before = weights(ours)
    ours.train()
    assert torch.equal(weights(theirs), weights(ours))
    assert not torch.equal(before, weights(ours))


@pytest.mark.slow
@pytest.mark.parametrize("peft", [False, True])
def test_beta_adds_trls_kl(tmp_path: Path, peft: bool) -> None:
    found = []
    for kind, named in ((GRPOTrainer, {}), (ObjectiveTrainer, {"objective": "dapo-loss"})):
        if peft:
            lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            named = {**named, "peft_config": lora}
        args = config(tmp_path, beta=0.04, max_steps=2, **DAPO)
        found.append(gradients(kind, args, **named))
    for theirs, ours in zip(*found, strict=True):
        assert off(ours, theirs) < 1e-3


@pytest.mark.parametrize("preset", PRESETS)
def test_the_gradient_of_a_preset_is_that_of_rlobj_alone(tmp_path: Path, preset: str) -> None:
    """Four micro-batches in TRL, one table in rlobj."""
    objective = load_preset(preset).resolved(8)
    reference = {"beta": 0.01} if "ref_logprobs" in objective.needs.ever else {}
    rounds = {"num_iterations": len(objective.phases)}
    one, found = train(tmp_path, preset, max_steps=1, **reference, **rounds)
    assert off(found[0], alone(one, 0, objective.phases[0])) < 1e-4


@pytest.mark.parametrize("preset", ["20-entropy", slow("stapo")])
def test_the_size_of_micro_batches_changes_nothing(tmp_path: Path, preset: str) -> None:
    found = []
    for size in (32, 8, 1):
        split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size}
        one, gradients = train(tmp_path, preset, max_steps=1, **split)
        found.append((gradients[0], one.state.log_history[0]["rlobj/objective/dropped_tokens"]))
    (whole, dropped), *parts = found
    assert dropped > 0
    for part, count in parts:
        assert count == dropped
        assert off(part, whole) < 1e-4


def test_a_subclass_of_ones_own_gets_an_objective(tmp_path: Path) -> None:
    halved = changed(GRPOTrainer, lambda o: {**o, "advantages": o["advantages"] / 2})
    args, given = config(tmp_path, max_steps=1), {"objective": "dapo-loss", "record": False}
    half, whole = (gradients(k, args, **given)[0] for k in (behind(halved), ObjectiveTrainer))
    assert off(half * 2, whole) < 1e-5


def backwards(output: Any) -> Any:
    """The rows of a rollout from its end."""
    return taken(output, torch.arange(31, -1, -1))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(behind(changed(GRPOTrainer, backwards)), id="behind"),
        slow(changed(ObjectiveTrainer, backwards), id="before"),
    ],
)
@pytest.mark.parametrize("advantages", ["objective", slow("trl")])
def test_a_trainer_that_reorders_the_rollout_trains_the_same(
    tmp_path: Path, kind: Any, advantages: str
) -> None:
    args = config(tmp_path, max_steps=1)
    named = {"objective": "stapo", "advantages": advantages, "record": False}
    usual, found = (gradients(each, args, **named)[0] for each in (ObjectiveTrainer, kind))
    assert off(found, usual) < 1e-5


def documented(output: Any) -> Any:
    """The entries of a rollout that TRL documents."""
    return {name: value for name, value in output.items() if "rlobj" not in name}


@pytest.mark.parametrize(
    "change",
    [
        lambda o: {**o, **backwards(documented(o))},
        documented,
    ],
    ids=["moved", "dropped"],
)
def test_rows_that_cannot_be_followed_are_refused(tmp_path: Path, change: Any) -> None:
    kind, args = behind(changed(GRPOTrainer, change)), config(tmp_path, max_steps=1)
    with pytest.raises(RunError, match="not those that were sampled"):
        trainer(kind, args, objective="grpo", record=False).train()


@pytest.mark.parametrize("calls_super", [True, False])
def test_rewards_are_those_that_a_trainer_of_ones_own_calculates(
    tmp_path: Path, calls_super: bool
) -> None:
    class Own(GRPOTrainer):
        """Rewards the place in the group."""

        def _calculate_rewards(self, inputs: Any, *more: Any) -> Any:
            if calls_super:
                super()._calculate_rewards(inputs, *more)
            return torch.arange(len(inputs))[:, None] % 4 / 10

    given = {"objective": "grpo", "advantages": "objective", "record": False}
    [window] = planned(trainer(behind(Own), config(tmp_path, max_steps=1), **given))
    for table in window.tables:
        assert torch.equal(table.rewards[:, 0], table.ids % 4 / 10)
        assert torch.equal(table.advantages > 0, table.spread(table.ids % 4 > 1))


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_a_group_counts_as_equal_by_the_rewards_that_trl_scales(
    tmp_path: Path, aggregation: str
) -> None:
    """In each group the weighted sums of two rewards are equal up to rounding, which TRL alone
    divides by 1e-4, and the rewards are not."""

    def one(completions: Any, **_: Any) -> list[float]:
        return [0.1 if number % 4 == 0 else 0.3 for number in range(len(completions))]

    def other(completions: Any, **_: Any) -> list[float]:
        return [0.8 - 2 * value for value in one(completions)]

    scaled = {"multi_objective_aggregation": aggregation, "reward_weights": [2.0, 1.0]}
    args = config(tmp_path, max_steps=1, **scaled)
    given = {"reward_funcs": [one, other], "objective": "grpo", "advantages": "trl"}
    [window] = planned(trainer(ObjectiveTrainer, args, record=False, **given))
    found = torch.cat([inputs["advantages"] for inputs in window.inputs])
    if aggregation == "sum_then_normalize":
        assert not found.any()
    else:
        assert found.abs().min() > 0.1
