"""verl's own training worker under Ray on the CPU, and batches as verl's trainer has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
from cpu_platform import ENVIRONMENT, register_engine
from hydra import compose, initialize_config_module
from omegaconf import open_dict
from tensordict import TensorDict
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from rlobj import RlobjError

FIELDS = ("prompts", "responses", "input_ids", "position_ids", "loss_mask", "response_mask")
RESPONSES, GROUP, VOCABULARY, RESPONSE_LENGTH = 32, 4, 20, 24


def compose_config(*overrides: str) -> Any:
    """verl's own configuration of a run, as its command line composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def run_config(policy: Path, *overrides: str, preset: str | None = "stapo") -> Any:
    """A run with small batches on the CPU; `overrides` come last."""
    chosen = ("policy_loss.loss_mode=rlobj",) if preset else ()
    actor = {
        "strategy": "fsdp2",
        "ppo_mini_batch_size": RESPONSES // GROUP,
        "ppo_micro_batch_size_per_gpu": 8,
        "optim.optimizer": "SGD",
        "optim.lr": 0.1,
        "optim.weight_decay": 0,
        "optim.clip_grad": 1e9,
        "optim.override_optimizer_config": None,
        "fsdp_config.use_torch_compile": False,
    }
    return compose_config(
        f"actor_rollout_ref.model.path={policy}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        *(f"actor_rollout_ref.actor.{key}={_text(value)}" for key, value in actor.items()),
        *(f"actor_rollout_ref.actor.{line}" for line in chosen),
        *([f"+actor_rollout_ref.rlobj={preset}"] if preset else []),
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={GROUP}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        f"actor_rollout_ref.rollout.response_length={RESPONSE_LENGTH}",
        "algorithm.adv_estimator=grpo",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
        "trainer.n_gpus_per_node=1",
        f"data.train_batch_size={RESPONSES // GROUP}",
        *overrides,
    )


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def rollout(
    seed: int = 0, vocabulary: int = VOCABULARY, longest: int = RESPONSE_LENGTH
) -> TensorDict:
    """A rollout of random tokens, with the fields that rlobj and verl's trainer read."""
    responses = RESPONSES
    random = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random)

    lengths = integers(2, longest + 1, responses).tolist()
    prompts = [integers(3, vocabulary, n) for n in integers(3, 9, responses).tolist()]
    answers = [integers(3, vocabulary, n) for n in lengths]
    masks = [torch.ones(n, dtype=torch.int64) for n in lengths]
    masks[1][: lengths[1] // 2] = 0  # the output of a tool
    rewards = integers(0, 2, responses).double()
    scores = [torch.zeros(n) for n in lengths]
    for row, reward in zip(scores, rewards.tolist(), strict=True):
        row[-1] = reward
    inputs = [torch.cat(pair) for pair in zip(prompts, answers, strict=True)]
    fields = {
        "prompts": prompts,
        "responses": answers,
        "input_ids": inputs,
        "position_ids": [torch.arange(len(row)) for row in inputs],
        "response_mask": masks,
        "loss_mask": masks,
        "rm_scores": scores,
        "rollout_log_probs": [-torch.rand(n, generator=random) * 3 for n in lengths],
    }
    data = TensorDict({name: nested(rows) for name, rows in fields.items()}, [responses])
    uids = [f"{i // GROUP:08x}" for i in range(responses)]
    tensordict_utils.assign_non_tensor_stack(data, "uid", uids)
    sessions = [i % GROUP for i in range(responses)]
    tensordict_utils.assign_non_tensor_stack(data, "session_id", sessions)
    return data


def changed(data: TensorDict, **fields: Any) -> TensorDict:
    """A copy with other fields: nested tensors from lists of rows."""
    data = data.copy()
    for name, rows in fields.items():
        data[name] = nested(rows)
    return data


def nested(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths as the nested tensor that verl uses."""
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


class ObservedWorker(ActorRolloutRefWorker):
    """verl's worker on the CPU, which also says what it has computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        register_engine()
        # verl's own "cpu:gloo,{device}:{backend}" would name the CPU twice.
        torch.distributed.init_process_group("gloo", rank=self.rank, world_size=self.world_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def watch(self) -> str:
        """Keep the gradient of each update; return the class of the training worker."""
        engine, self.gradients = self.actor.engine, []
        self.initial = [p.detach().clone() for p in engine.module.parameters()]
        step = engine.optimizer_step

        def stepped() -> float:
            self.gradients.append(_whole({n: p.grad for n, p in engine.module.named_parameters()}))
            return step()

        engine.optimizer_step = stepped
        return type(self.actor).__name__

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin(self, preset: str, **actor: Any) -> None:
        """Go back to the first weights, with another preset and other settings of the actor."""
        from rlobj.integrations.verl.settings import read_settings
        from rlobj.integrations.verl.worker import ObjectiveWorker

        with open_dict(self.config):
            self.config.rlobj = preset
            self.config.actor.update({"ppo_epochs": 1, "use_kl_loss": False} | actor)
        self.actor.__class__ = ObjectiveWorker
        self.actor.set_loss_fn(None)
        self.actor._settings = read_settings(self.config)
        self.actor.state = {**self.actor._settings.objective.init(), "update": 0}
        self._reset()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def begin_without_rlobj(self, loss_mode: str, **actor: Any) -> None:
        """Go back to the first weights, with verl's own worker and one of verl's own losses."""
        with open_dict(self.config):
            self.config.actor.policy_loss.loss_mode = loss_mode
            self.config.actor.update(actor)
        self.actor.__class__ = TrainingWorker
        self.actor.set_loss_fn(partial(ppo_loss, config=omega_conf_to_dataclass(self.config.actor)))
        self.config.actor.policy_loss.loss_mode = "rlobj"
        self._reset()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def misuse(self, data: TensorDict) -> list[str]:
        """What the worker says to losses of responses that are in no planned update."""
        worker, found, half = self.actor, [], len(data) // 2
        settings = {"temperature": 1.0, "mini_batch_size": half, "global_batch_size": half}
        tensordict_utils.assign_non_tensor(data, **settings)
        usual = worker.engine.train_batch

        def confused(batch: TensorDict, loss_function: Any) -> Any:
            rows = (batch["rlobj_row"] + half) % len(data)  # those of the other mini-batch
            other = tensordict_utils.index_select_tensor_dict(data, rows)
            return usual(batch.update(other.select("rlobj_row", *FIELDS)), loss_function)

        worker.engine.train_batch = confused
        for call in (partial(worker._loss, {}), worker.train_mini_batch):
            try:
                call(data)
            except RlobjError as error:
                found.append(str(error))
        worker.engine.train_batch = usual
        return found

    def _reset(self) -> None:
        self.gradients.clear()
        with torch.no_grad():
            for weight, first in zip(
                self.actor.engine.module.parameters(), self.initial, strict=True
            ):
                weight.copy_(first)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self) -> tuple[list[dict[str, Tensor]], Any]:
        """The gradients of all updates since `begin`, and rlobj's state."""
        return self.gradients, getattr(self.actor, "state", None)


def _whole(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    whole = {n: getattr(x, "full_tensor", lambda x=x: x)() for n, x in tensors.items()}
    return {name: value.detach().clone() for name, value in whole.items()}


@dataclass
class Workers:
    """A group of verl's workers."""

    config: Any
    group: RayWorkerGroup
    processes: int

    def score(self, data: TensorDict) -> TensorDict:
        """The old log-probs and entropies of a rollout, as verl's trainer adds them."""
        asked = data.copy()
        tensordict_utils.assign_non_tensor(
            asked, calculate_entropy=True, compute_loss=False, temperature=1.0
        )
        output = self.group.compute_log_prob(asked)
        data = data.copy()
        for ours, theirs in {"old_log_probs": "log_probs", "entropy": "entropy"}.items():
            data[ours] = response_from_nested(output[theirs], data["response_mask"])
        return data

    def update(self, data: TensorDict, **sent: Any) -> dict[str, Any]:
        """All updates on a rollout, with the settings that verl's trainer sends; the metrics.

        `sent` are settings that come last, such as `micro_batch_size_per_gpu` or `epochs`.
        """
        actor, n = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout.n
        asked = data.copy()
        usual = {
            "calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0.0,
            "global_batch_size": actor.ppo_mini_batch_size * n,
            "mini_batch_size": actor.ppo_mini_batch_size * n,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": actor.shuffle},
            "temperature": 1.0,
        }
        tensordict_utils.assign_non_tensor(asked, **(usual | sent))
        return reduce_metrics(self.group.update_actor(asked)["metrics"])

    def gradients(self) -> list[dict[str, Tensor]]:
        """The gradient of each update since `begin`; all processes have the same."""
        first, *others = [gradients for gradients, _ in self.group.seen()]
        for other in others:
            torch.testing.assert_close(other, first, rtol=0, atol=0)
        return first

    def state(self) -> Any:
        """rlobj's state; all processes have the same."""
        first, *others = [state for _, state in self.group.seen()]
        assert all(other == first for other in others)
        return first

    def stop(self) -> None:
        """End the processes."""
        for worker in self.group.workers:
            ray.kill(worker)
        for group in self.group.resource_pool.get_placement_groups():
            ray.util.remove_placement_group(group)


def start(config: Any, processes: int = 1, worker: type = ObservedWorker) -> Workers:
    """verl's training worker in so many processes."""
    if not ray.is_initialized():
        ray.init(
            num_cpus=8,  # places for processes, not cores
            include_dashboard=False,
            log_to_driver=bool(os.environ.get("SHOW")),
            runtime_env={"env_vars": ENVIRONMENT},
            object_store_memory=200 * 2**20,
        )
    pool = RayResourcePool([processes], use_gpu=False, max_colocate_count=1)
    remote = RayClassWithInitArgs(
        cls=ray.remote(worker), config=config.actor_rollout_ref, role="actor"
    )
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=remote, device_name="cpu")
    group.init_model()
    workers = Workers(config, group, processes)
    assert set(group.watch()) == {"ObjectiveWorker"}
    return workers
