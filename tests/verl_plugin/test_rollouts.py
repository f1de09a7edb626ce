"""Rollouts as verl hands them over: corrected, padded, broken; its own losses; its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alone import difference, gradients, whole_table
from conftest import one_process, two_processes
from harness import RESPONSES, Workers, changed, nested, rollout
from ray.exceptions import RayTaskError
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils import tensordict_utils
from verl.workers.utils.padding import response_to_nested

from rlobj import load_preset
from rlobj.integrations.verl.names import PADDING

TOLERANCE = 2e-5
ONCE = {"mini_batch_size": RESPONSES, "global_batch_size": RESPONSES, "epochs": 1}


def update(workers: Workers, data: TensorDict, **sent: Any) -> list[dict[str, torch.Tensor]]:
    workers.update(data, **(ONCE | sent))
    return workers.gradients()


def with_advantages(data: TensorDict) -> TensorDict:
    """The column that verl's driver computes with adv_estimator=grpo."""
    padded = data.select("rm_scores", "response_mask").to_padded_tensor()
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=padded["rm_scores"],
        response_mask=padded["response_mask"],
        index=np.array(list(data["uid"]), dtype=object),
    )
    data = data.copy()
    data["advantages"] = response_to_nested(advantages, data["response_mask"])
    return data


def rejected(data: TensorDict) -> TensorDict:
    """Every third token of every second response is rejected; the others have weights."""
    masks, weights = [], []
    for row, mask in enumerate(data["response_mask"].unbind()):
        mask = mask.clone()
        mask[::3] = mask[::3] * (row % 2)
        masks.append(mask)
        weights.append((0.5 + torch.arange(len(mask)) % 4 / 4) * mask)
    return changed(data, response_mask=masks, rollout_is_weights=weights)


def test_verls_own_loss_is_the_same_where_the_objective_is(workers: Workers) -> None:
    sent = {"mini_batch_size": RESPONSES // 2, "micro_batch_size_per_gpu": 4, "epochs": 2}
    workers.group.begin("dapo-loss", ppo_epochs=2)
    data = with_advantages(workers.score(rollout()))
    ours = update(workers, data, **sent)
    workers.group.begin_without_rlobj("vanilla", clip_ratio_high=0.28)
    theirs = update(workers, data, **sent, global_batch_size=RESPONSES // 2)
    assert len(ours) == 4
    assert max(difference(*pair) for pair in zip(ours, theirs, strict=True)) < TOLERANCE


@two_processes
def test_rollout_correction_multiplies_as_in_verls_own_loss(workers: Workers) -> None:
    workers.group.begin("dapo-loss")
    data = rejected(with_advantages(workers.score(rollout())))
    [ours] = update(workers, data, micro_batch_size_per_gpu=4)
    workers.group.begin_without_rlobj("vanilla", clip_ratio_high=0.28)
    [theirs] = update(workers, data, micro_batch_size_per_gpu=4)
    assert difference(ours, theirs) < TOLERANCE
    workers.group.begin("dapo-loss")
    plain = changed(data, response_mask=data["loss_mask"].unbind())
    [without] = update(workers, plain.exclude("rollout_is_weights"))
    assert difference(without, theirs) > 100 * TOLERANCE


@one_process
def test_a_correction_is_not_made_twice(workers: Workers) -> None:
    workers.group.begin("tis")
    with pytest.raises(RayTaskError, match="correct the same gap"):
        update(workers, rejected(workers.score(rollout())))


@one_process
def test_a_rule_selects_among_rejected_tokens_too(workers: Workers, sharp_policy: Path) -> None:
    """They keep their place in populations and divisors, and have no loss."""
    workers.group.begin("20-entropy")
    data = rejected(workers.score(rollout()))
    [found] = update(workers, data, micro_batch_size_per_gpu=4)
    objective = load_preset("20-entropy").objective
    kept = data["loss_mask"].values().bool()
    weights = data["rollout_is_weights"].values()[kept]
    model = AutoModelForCausalLM.from_pretrained(sharp_policy, attn_implementation="eager")
    table = whole_table(model, data).replace(columns={"given": weights})
    plan = objective.replace(columns=["given"]).reweight("given").plan([table])
    assert int((plan.weights[0] != 0).sum()) < 0.2 * len(table)
    corrected = objective.replace(columns=["given"]).reweight("given")
    [wanted] = gradients(
        sharp_policy, corrected, data, [list(range(RESPONSES))], columns={"given": weights}
    )
    assert difference(found, wanted) < TOLERANCE


@two_processes
def test_synthetic_responses_change_nothing(workers: Workers) -> None:
    """Also not a statistic over all responses, such as the baseline of REINFORCE++."""
    workers.group.begin("reinforce-pp", use_kl_loss=True)
    data = workers.score(rollout())
    data["ref_log_prob"] = data["old_log_probs"]
    [without] = update(workers, data)
    few = [*range(14), *range(16, 30)]  # verl appends; each process has two of them
    real = tensordict_utils.index_select_tensor_dict(data, torch.tensor(few))
    workers.group.begin("reinforce-pp", use_kl_loss=True)
    [fewer] = update(workers, real, mini_batch_size=28, micro_batch_size_per_gpu=7)
    padded = data.clone()
    nothing = [torch.zeros_like(row) for row in padded["loss_mask"].unbind()]
    for row in (14, 15, 30, 31):
        for name in ("loss_mask", "response_mask", "rm_scores"):
            rows = list(padded[name].unbind())
            rows[row] = nothing[row].to(rows[row].dtype)
            padded[name] = nested(rows)
    uids = ["synthetic" if i in (14, 15, 30, 31) else uid for i, uid in enumerate(data["uid"])]
    padded = with_names(padded, uids)
    tensordict_utils.assign_non_tensor(padded, **{PADDING: "synthetic"})
    workers.group.begin("reinforce-pp", use_kl_loss=True)
    [found] = update(workers, padded)
    assert difference(found, fewer) < TOLERANCE
    assert difference(found, without) > 100 * TOLERANCE


def with_names(data: TensorDict, uids: list[str], sessions: list[int] | None = None) -> TensorDict:
    """Other prompts and sessions."""
    data = data.exclude("uid", "session_id")
    tensordict_utils.assign_non_tensor_stack(data, "uid", uids)
    tensordict_utils.assign_non_tensor_stack(data, "session_id", sessions or list(range(len(data))))
    return data


@two_processes
def test_bad_batches_are_refused_by_all_processes(workers: Workers) -> None:
    """And the next rollout trains."""
    workers.group.begin("stapo")
    data = workers.score(rollout())
    bad = list(data["entropy"].unbind())
    bad[31] = bad[31] * torch.nan  # only the second process has it
    cases = {
        "column 'entropy' is nan|a table on another rank cannot": changed(data, entropy=bad),
        "two responses of verl have one uid": with_names(data, list(data["uid"]), [0] * RESPONSES),
        "no entropy, session_id": data.exclude("entropy", "session_id"),
    }
    for message, case in cases.items():
        with pytest.raises(RayTaskError, match=message):
            update(workers, case)
    assert len(update(workers, data)) == 1


@one_process
def test_a_loss_outside_of_the_planned_update_is_refused(workers: Workers) -> None:
    workers.group.begin("stapo")
    data = workers.score(rollout())
    [[no_update, other_update]] = workers.group.misuse(data)
    assert "in no planned update" in no_update
    assert "the plan holds no response with id" in other_update


@one_process
def test_an_update_without_tokens_is_skipped(workers, preset):
    """Else verl's optimizer would move the weights by their momentum."""
    workers.group.begin(preset("base: dapo-loss\nobjective: {drop: prob < 2}\n"))
    data = workers.score(rollout())
    assert update(workers, data) == []  # the optimizer's step was not called
    workers.group.begin("dapo-loss")
    assert len(update(workers, data)) == 1


@two_processes
def test_checkpoints_have_the_controllers(workers: Workers, tmp_path: Path) -> None:
    workers.group.begin("stare")
    data = workers.score(rollout())
    update(workers, data)
    folder = tmp_path / "global_step_1" / "actor"
    workers.group.save_checkpoint(str(folder))
    saved = workers.state()
    for file in (folder / "rlobj_rank_0.json", folder / "rlobj_rank_1.json"):
        assert json.loads(file.read_text()) == saved
    workers.group.begin("stare")
    assert workers.state() != saved
    workers.group.load_checkpoint(str(folder))
    assert workers.state() == saved
    [first] = update(workers, workers.score(rollout(1)))
    workers.group.begin("dapo-loss")
    with pytest.raises(RayTaskError, match="cannot resume the objective"):
        workers.group.load_checkpoint(str(folder))
    (folder / "rlobj_rank_1.json").unlink()
    workers.group.begin("stare")
    with pytest.raises(RayTaskError, match=r"cannot resume the objective|rlobj's state failed"):
        workers.group.load_checkpoint(str(folder))
    assert first
