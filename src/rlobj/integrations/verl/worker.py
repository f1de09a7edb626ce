"""The actor's training worker: it plans each update of verl before the split into micro-batches.

    train_mini_batch    a rollout: advantages, controllers
      train_batch       an update: plan, over all data-parallel ranks
        _loss           a micro-batch: the loss, with the plan

All ranks hold equally many responses and make equally many updates, so they plan together. verl
then may build micro-batches as it likes: the plan finds each response by its id.
"""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils
from verl.utils.device import get_device_id, get_device_name
from verl.utils.metric import AggregationType, Metric
from verl.workers.engine_workers import TrainingWorker

from rlobj.base.errors import RunError, reported
from rlobj.base.files import write_whole
from rlobj.integrations.verl.settings import Settings
from rlobj.integrations.verl.tables import correct, rollout_table, scored, values
from rlobj.objectives.loss import LossOutput
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import ProcessGroup, any_rank, together

# pyright: reportMissingImports=false

ROW = "rlobj_row"  # the field with each response's row in the rollout's table
_CURRENT = {"logprobs", "entropy", "collision"}
_COLLISIONS = {"collision", "old_collision"}


class ObjectiveWorker(TrainingWorker):
    """verl's training worker with an objective of rlobj.

    Args:
        config: of verl's worker.
        settings: the objective.
        on_policy: verl scores a rollout with the weights that its first update starts from.

    Attributes:
        state: the objective's controllers, and "update", the number of updates done.
    """

    def __init__(self, config: Any, settings: Settings, on_policy: bool) -> None:
        super().__init__(config)
        self._settings = settings
        self._on_policy = on_policy
        self.state: dict[str, Any] = {**settings.objective.init(), "update": 0}
        self._moved = True  # the weights differ from those that scored the rollout
        self._objective: Objective = settings.objective
        self._rollout: TokenBatch | None = None
        self._responses = 0  # in the updates on this rollout so far, on this rank
        self._update: tuple[Objective, Plan] | None = None

    @cached_property
    def comm(self) -> ProcessGroup:
        """The data-parallel group."""
        return ProcessGroup(self.device, self.engine.get_data_parallel_group())

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        index = get_device_id()
        return torch.device(get_device_name(), index) if isinstance(index, int) else index

    def set_loss_fn(self, loss_fn: Any) -> None:
        """Take the place of verl's loss function."""
        del loss_fn
        super().set_loss_fn(self._loss)

    # verl's stages, from the rollout to the micro-batch.

    def infer_batch(self, data: TensorDict) -> Any:
        """Score a rollout; verl does it before the updates."""
        if not tensordict_utils.get(data, key="no_lora_adapter", default=False):
            self._moved = not self._on_policy
        return super().infer_batch(data)

    def train_mini_batch(self, data: TensorDict) -> Any:
        """All updates on this rank's share of a rollout."""
        self._observe(data)
        data[ROW] = torch.arange(len(data))
        return super().train_mini_batch(data)

    def train_batch(self, data: TensorDict) -> Any:
        """One update: plan it over all ranks, then let verl train."""
        if self._rollout is None:
            raise RunError("verl trains on a batch that is not part of a rollout")
        objective, plan = self._update = self._plan(data)
        self._moved = True
        if "entropy" in objective.needs.loss:
            tensordict_utils.assign_non_tensor(data, calculate_entropy=True)
        step = self.engine.optimizer_step
        if plan.empty:  # verl's optimizer would move the weights all the same, by their momentum
            self.engine.optimizer_step = lambda: 0.0
        try:
            return super().train_batch(data)
        finally:
            self._update, self.engine.optimizer_step = None, step

    # rlobj's stages.

    def _observe(self, data: TensorDict) -> None:
        """Advantages and controllers of a rollout."""
        with together(self.comm, "reading verl's batch"):
            table = rollout_table(data, self.device, self.comm)
        objective = self._settings.objective
        rejected = values(data["response_mask"])[values(data["loss_mask"]).bool()] == 0
        if any_rank(bool(rejected.any()) or "rollout_is_weights" in data, self.comm):
            objective, table = correct(objective, table, data)
        if _COLLISIONS & objective.needs.ever:
            scores = self._scores(data, loaded=False)
            table = table.replace(**dict.fromkeys(_COLLISIONS, scores["collision"]))
        [table] = objective.with_advantages([table], self.comm)
        self.state = objective.observe([table], self.state, self.comm)
        self._objective, self._rollout, self._responses = objective, table, 0

    def _plan(self, data: TensorDict) -> tuple[Objective, Plan]:
        """The phase and the plan of an update, over all ranks."""
        assert self._rollout is not None
        table, phases = self._rollout.select(data[ROW]), self._objective.phases
        phase = phases[self._responses // len(self._rollout.lengths) % len(phases)]  # by epoch
        self._responses += len(data)
        if self._moved and self._settings.selection == "current" and phase.needs.plan & _CURRENT:
            table = table.replace(**self._scores(data))
        plan = phase.plan([table], self.state, self.comm)
        self.state["update"] += 1
        return phase, plan

    def _loss(
        self, model_output: Any, data: TensorDict, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Metric]]:
        """The loss of a micro-batch, times the number of ranks, over which verl averages."""
        del dp_group
        if self._update is None or ROW not in data:
            raise RunError("verl asks for the loss of responses that are in no planned update")
        objective, plan = self._update
        assert self._rollout is not None
        table = self._rollout.select(data[ROW]).replace(**scored(model_output, data))
        output = objective.loss(table, plan, check=False)  # verl skips an update that is not finite
        ranks = data["dp_size"]
        return output.loss * ranks, _metrics(output, plan, ranks)

    def _scores(self, data: TensorDict, loaded: bool = True) -> dict[str, Tensor]:
        """The columns of the present policy, in a forward pass without gradient.

        Args:
            data: the responses.
            loaded: verl has loaded the weights, if it keeps them off the device, and will need them
                after this pass.
        """
        batch, config = data.copy(), self.engine_config
        settings = {
            "use_remove_padding": self.model_config.get("use_remove_padding", False),
            "use_fused_kernels": config.use_fused_kernels,
            "use_dynamic_bsz": config.use_dynamic_bsz,
            "max_token_len_per_gpu": config.max_token_len_per_gpu,
            "micro_batch_size_per_gpu": config.micro_batch_size_per_gpu,
        }  # verl's defaults for an update
        settings = {key: value for key, value in settings.items() if key not in data}
        reads = self._settings.objective.needs.ever
        settings["calculate_sum_pi_squared"] = bool(_COLLISIONS & reads)
        tensordict_utils.assign_non_tensor(batch, **settings, calculate_entropy=True)
        with torch.no_grad(), self.engine.eval_mode(disable_auto_offload=loaded):
            output = self.engine.infer_batch(batch, loss_function=None)["model_output"]
        columns = scored(output, batch)
        return {name: c.to(self.device) for name, c in columns.items() if c is not None}

    # Checkpoints: the controllers' state lies beside verl's own files.

    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> Any:
        """Save verl's checkpoint and the state."""
        result = super().save_checkpoint(local_path, *args, **kwargs)
        write_whole(self._state_file(local_path), json.dumps(self.state).encode())
        return result

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> Any:
        """Load verl's checkpoint and the state.

        Raises:
            RunError: the checkpoint has no state of this objective; raised on all ranks.
        """
        file = self._state_file(local_path)
        unread = reported(RunError, f"cannot resume the objective from {file}", OSError, ValueError)
        with together(self.comm, "loading rlobj's state"), unread:
            state = json.loads(file.read_text(encoding="utf-8"))
            if state.keys() != self.state.keys():
                raise ValueError(f"it has {sorted(state)}, expected {sorted(self.state)}")
        self.state, self._moved = state, True
        return super().load_checkpoint(local_path, *args, **kwargs)

    def _state_file(self, folder: str) -> Path:
        return Path(folder) / f"rlobj_rank_{self.rank}.json"


def _metrics(output: LossOutput, plan: Plan, ranks: int) -> dict[str, Metric]:
    """Metrics for verl, which averages a SUM over ranks before it adds up the micro-batches."""
    named = {
        AggregationType.SUM: {name: value * ranks for name, value in output.metrics.items()},
        AggregationType.MAX: output.extremes,
        AggregationType.MEAN: plan.metrics,
    }
    return {
        f"rlobj/{name}": Metric(kind, value)
        for kind, values in named.items()
        for name, value in values.items()
    }
