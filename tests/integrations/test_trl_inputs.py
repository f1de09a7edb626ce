"""Tool output, undecided rewards, log-probs of a sampler, and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.trl_runs import (
    Gradients,
    GRPOTrainer,
    alone,
    completions,
    config,
    off,
    policy,
    reward,
    train,
    trainer,
)

import rlobj
from rlobj import BatchError, ConfigError, Mask, Objective, Truncate, load_preset
from rlobj.integrations.trl import ObjectiveTrainer, settings

slow = partial(pytest.param, marks=pytest.mark.slow)


def with_tools(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """Every third token is one of a tool."""
    found = completions(prompts, trainer)
    return {
        **found,
        "env_mask": [[int(i % 3 != 2) for i in range(len(ids))] for ids in found["completion_ids"]],
    }


def with_logprobs(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """A sampler that is off by some noise, and does not know the third token's log-prob."""
    found, rows = completions(prompts, trainer), []
    noise = torch.Generator().manual_seed(3)
    model = trainer.accelerator.unwrap_model(trainer.model)
    for prompt, tokens in zip(found["prompt_ids"], found["completion_ids"], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor(prompt + tokens)[None]).logits[0, len(prompt) - 1 : -1]
        taken = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        row = (taken + 0.3 * torch.randn(len(tokens), generator=noise)).clamp(max=0).tolist()
        rows.append([None if i == 2 else value for i, value in enumerate(row)])
    return {**found, "logprobs": rows}


def undecided(completions: Sequence[str], **_: Any) -> list[float | None]:
    """No reward for completions of four characters."""
    known = reward(completions)
    return [None if len(c) == 4 else r for c, r in zip(completions, known, strict=True)]


def second(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A reward that some completions have."""
    return [None if len(text) % 3 == 0 else len(text) / 8 for text in completions]


def test_tool_output_has_no_rows(tmp_path: Path) -> None:
    one, found = train(tmp_path, "stapo", rollout_func=with_tools, max_steps=1)
    inputs = one.updates[0][0].inputs
    assert all(
        (i["tool_mask"] * i["completion_mask"]).sum() < i["completion_mask"].sum() for i in inputs
    )
    assert off(found[0], alone(one, 0, load_preset("stapo").objective)) < 1e-4


@pytest.mark.parametrize("advantages", ["objective", "trl"])
def test_responses_without_reward_enter_nothing(tmp_path: Path, advantages: str) -> None:
    one, found = train(tmp_path, "20-entropy", advantages, reward_funcs=undecided, max_steps=1)
    assert any(i["rlobj_rewards"].isnan().any() for i in one.updates[0][0].inputs)
    own = advantages == "objective"
    assert off(found[0], alone(one, 0, load_preset("20-entropy").objective, own=own)) < 1e-4


@pytest.mark.slow
def test_rewards_that_some_responses_have_are_added_up(tmp_path: Path) -> None:
    """As in TRL."""
    named = {"reward_funcs": [reward, second], "reward_weights": [1.0, 0.5], "max_steps": 1}
    objective, found = Objective(), []
    for advantages in ("trl", "objective"):
        found.append(train(tmp_path, objective, advantages, **named)[1][0])
    assert off(found[0], found[1]) < 1e-2  # they differ in epsilon: 1e-4 and 1e-6


@pytest.mark.parametrize("objective", ["gdpo", slow(Objective(drop=rlobj.reward("second") > 0.5))])
def test_an_objective_that_reads_each_reward_needs_all_of_them(
    tmp_path: Path, objective: Any
) -> None:
    with pytest.raises(BatchError, match="reward function 'second' returned None"):
        train(tmp_path, objective, reward_funcs=[reward, second])


OF_SAMPLERS = ("bpo", "icepop", "kpop", "mis", "prime-rl")


@pytest.mark.parametrize("preset", ["tis", *map(slow, OF_SAMPLERS)])
def test_the_samplers_log_probs_are_read(tmp_path: Path, preset: str) -> None:
    one, found = train(tmp_path, preset, rollout_func=with_logprobs, max_steps=1)
    assert one.state.log_history[0]["rlobj/sampler/nan_tokens"] > 0
    assert off(found[0], alone(one, 0, load_preset(preset).objective)) < 1e-4


def test_a_rollout_without_log_probs_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Truncate.* reads log-probs of the sampler"):
        train(tmp_path, "tis")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "mismatch"),
    [
        ("token_truncate", Truncate(cap=1.5)),
        ("sequence_mask", Mask(level="sequence", high=1.5)),
    ],
)
def test_trls_correction_for_vllm_is_the_objectives(
    tmp_path: Path, mode: str, mismatch: Any
) -> None:
    """TRL's own loss, given the log-probs of a sampler as those of vLLM."""

    class Synced:
        def sync_weights(self) -> None:
            """Nothing samples."""

    bounds = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.5}
    args = config(tmp_path, epsilon_high=0.28, max_steps=1, **bounds)
    objective = settings.fitted("dapo-loss", {**vars(args), "use_vllm": True}, True)
    assert objective.mismatch == mismatch
    found = []
    ours = {"objective": objective, "record": False}
    for kind, named in ((GRPOTrainer, {}), (ObjectiveTrainer, ours)):
        gradients = Gradients()
        one = trainer(kind, args, rollout_func=with_logprobs, callbacks=[gradients], **named)
        one.use_vllm, one.vllm_generation, one._last_loaded_step = True, Synced(), -1
        one.train()
        found.append(gradients.found[0])
    assert off(found[1], found[0]) < 1e-4


@pytest.mark.parametrize("preset", ["stapo", "dapo-loss"])
def test_numbers_that_are_not_finite_stop_the_training_before_the_step(
    tmp_path: Path, preset: str
) -> None:
    model = policy()
    model.model.embed_tokens.weight.data[7] = torch.nan
    one = trainer(ObjectiveTrainer, config(tmp_path), model, objective=preset, record=False)
    with pytest.raises(BatchError, match="column 'logprobs' is nan at row"):
        one.train()
    assert one.state.global_step == 0
    assert int(torch.isnan(model.model.embed_tokens.weight).any(1).sum()) == 1
