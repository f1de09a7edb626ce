"""verl's own trainer, from the queue of sampled responses to the update; nothing is sampled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sessions
import torch
import transfer_queue
from alone import difference, gradients
from conftest import two_processes
from harness import RESPONSES, Workers, changed, rollout, run_config
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils

from rlobj import load_preset
from rlobj.integrations.verl.names import INDEX, PADDING


class GivenTrainer(PPOTrainer):
    """verl's trainer without servers: it trains on responses that are in the queue already."""

    def __init__(self, config: Any, workers: Workers) -> None:
        self.config, self.actor_rollout_wg = config, workers.group
        self.tokenizer = SimpleNamespace(eos_token_id=2)
        self.use_critic, self.global_steps, self.distillation_config = False, 1, None

    def on_step_end(self) -> None:
        """There is no server to update."""

    def on_sample_end(self) -> None:
        """There is no server to stop."""

    def train_on(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """The steps 3 to 9 of `PPOTrainer._step_once`; returns the batch that was trained on."""
        batch.extra_info["temperature"] = 1.0
        batch = self._balance_batch(batch, metrics=metrics)
        batch = self._compute_old_log_prob(batch, metrics=metrics)
        batch = self._compute_advantage(batch, metrics=metrics)
        self._update_actor(batch, metrics=metrics)
        return batch


@pytest.fixture(scope="module")
def queue(workers: Workers) -> Iterator[None]:
    """verl's queue; the workers know only the first one."""
    settings = {"enable": True, "backend": {"SimpleStorage": {"num_data_storage_units": 1}}}
    transfer_queue.init(OmegaConf.merge(workers.config.transfer_queue, settings))
    yield
    transfer_queue.close()


def train_from_queue(
    workers: Workers, config: Any, data: TensorDict, keys: list[str]
) -> tuple[KVBatchMeta, dict[str, Any]]:
    """A step of verl's trainer on responses in its queue: what it trained on, and its metrics."""
    lengths = [len(row) for row in data["input_ids"].unbind()]
    tags = [{"seq_len": n, "prompt_len": 3, "response_len": n - 3} for n in lengths]
    transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=data, tags=tags)
    batch = KVBatchMeta(keys=keys, tags=tags, partition_id="train", extra_info={})
    metrics: dict[str, Any] = {}
    batch = GivenTrainer(config, workers).train_on(batch, metrics)
    transfer_queue.kv_clear(keys=batch.keys, partition_id="train")
    return batch, metrics


@two_processes
@pytest.mark.usefixtures("queue")
def test_verls_trainer_hands_over_what_rlobj_reads(workers: Workers, sharp_policy: Path) -> None:
    """30 responses: verl fills up with two synthetic ones, and balances the processes."""
    config = run_config(sharp_policy, preset="20-entropy")
    workers.group.begin("20-entropy")
    few = torch.arange(RESPONSES - 2)
    data = tensordict_utils.index_select_tensor_dict(rollout(), few)
    keys = [f"{uid}_{i}_0" for i, uid in enumerate(data["uid"])]
    batch, metrics = train_from_queue(workers, config, data, keys)
    assert INDEX not in batch.fields
    added = {key.rsplit("_", 2)[0] for key in batch.keys if key not in keys}
    assert batch.extra_info[PADDING].split(",") == [*added]
    [found] = workers.gradients()
    objective = load_preset("20-entropy").objective
    [wanted] = gradients(sharp_policy, objective, data, [few.tolist()])
    assert difference(found, wanted) < 2e-5
    assert 0.19 < metrics["actor/rlobj/selected/entropy.top(0.2)"] < 0.22
    assert metrics["actor/grad_norm"] > 0


@two_processes
@pytest.mark.usefixtures("queue")
def test_rows_that_branch_train_their_beginning_once(workers: Workers, sharp_policy: Path) -> None:
    """verl marks it in both rows; the gradient is that of sessions by a loop by hand."""
    few = torch.arange(RESPONSES - 2)
    data, named = sessions.branched(8, 16), sessions.names()[: len(few)]
    data = tensordict_utils.index_select_tensor_dict(data, few)
    workers.group.begin("grpo")
    keys = [f"{uid}_{session}_{index}" for uid, session, index in named]
    train_from_queue(workers, run_config(sharp_policy, preset="grpo"), data, keys)
    [found] = workers.gradients()
    twice = sessions.by_hand(sharp_policy, data)
    masks = list(data["loss_mask"].unbind())
    masks[16] = masks[16].clone()
    masks[16][: -(len(masks[16]) // 2)] = 0
    once = sessions.by_hand(sharp_policy, changed(data, loss_mask=masks))
    assert difference(found, once) < 2e-5
    assert difference(twice, once) > 1e-3
