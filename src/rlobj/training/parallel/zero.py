"""Moments, gradients and weights split by DeepSpeed's ZeRO, stages 1 to 3."""

from __future__ import annotations

import logging
import math
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.scoring import PolicyScorer, TokenScores
from rlobj.training.parallel.base import MOMENTS, Columns, Moments, Parallel, Scorer

__all__ = ["BUCKET_ELEMENTS", "PERSISTENT_ELEMENTS", "Zero"]

PERSISTENT_ELEMENTS = 100_000
"""Parameters up to this size stay whole under stage 3: norms, for which gathering costs more."""

BUCKET_ELEMENTS = 50_000_000
"""Gradients that are reduced at once, 0.2 GB: stages 2 and 3 allocate that much ahead."""


class Zero(Parallel):
    """DeepSpeed's engine, called directly: one backward a micro-batch, one step an update.

    Weights and gradients are float32. Stage 1 exchanges gradients with the last micro-batch,
    stages 2 and 3 with every one, since a rank keeps its part of the sum alone. Stages 1 and 2 hold
    a second copy of the weights that a rank updates.

    Args:
        accelerator: Accelerate's view of the machine, with a process group.
        stage: 1, 2 or 3.
        max_grad_norm: the gradient is clipped to this norm.
        autocast: what forward passes compute in; None = float32. DeepSpeed has to know, for on a
            GPU it switches off a `torch.autocast` around its engine.
    """

    def __init__(
        self, accelerator: Any, stage: int, *, max_grad_norm: float, autocast: torch.dtype | None
    ) -> None:
        super().__init__(accelerator, f"zero{stage}", max_grad_norm=max_grad_norm)
        self._stage = stage
        self._autocast = autocast
        self._engine: Any = None
        self._wanted = True

    def prepare(self, scorer: PolicyScorer, optimizer: torch.optim.AdamW) -> tuple[Scorer, Any]:
        deepspeed = _deepspeed(self.device)
        self.on_close(_linear_restored())
        self._engine, zero, _, _ = deepspeed.initialize(
            model=Columns(scorer), optimizer=optimizer, config=self._config()
        )
        self.on_close(self._engine.destroy)
        if self._stage < 3:
            self._flat = zero.single_partition_of_fp32_groups
        else:
            self._flat = zero.fp32_partitioned_groups_flat
        for flat in self._flat:  # as AdamW begins; DeepSpeed can only find moments that are there
            moments = {name: torch.zeros_like(flat) for name in MOMENTS}
            optimizer.state[flat] = {"step": torch.zeros(()), **moments}
        if self._stage < 3:
            zero._lazy_init_hp_params_optimizer_state()
        optimizer.register_step_pre_hook(self._hold)
        self._optimizer = optimizer
        return self._score, optimizer

    def _config(self) -> dict[str, Any]:
        half = self._autocast is not None
        autocast = {
            "enabled": half,
            "dtype": str(self._autocast).removeprefix("torch.") if half else "bfloat16",
            "lower_precision_safe_modules": [],  # otherwise their gradients would travel in half
        }
        return {
            "train_micro_batch_size_per_gpu": 1,  # unused: we count micro-batches ourselves
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.max_grad_norm,
            "steps_per_print": None,
            "torch_autocast": autocast,
            "zero_optimization": {
                "stage": self._stage,
                "reduce_bucket_size": BUCKET_ELEMENTS,
                "stage3_param_persistence_threshold": PERSISTENT_ELEMENTS,
            },
        }

    def _score(self, *inputs: Tensor, **settings: Any) -> TokenScores:
        return TokenScores(**self._engine(*inputs, **settings))

    def backward(self, loss: Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self.size)

    def step(self, apply: bool) -> float:
        shards = [g for part in self._engine.optimizer.averaged_gradients.values() for g in part]
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in shards]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
        norm = float(self.comm.sum(total.to(self.device)).sqrt())
        self._wanted = apply and math.isfinite(norm)
        self._engine.step()
        refused = self._wanted and not self._engine.was_step_applied()
        return math.inf if refused else norm  # DeepSpeed takes the norm in float32

    def _hold(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before the optimizer's own step: without gradients it does nothing.

        Whether DeepSpeed itself skips a step depends on its version, and never on `apply`.
        """
        if not self._wanted:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def full(self, parameter: nn.Parameter) -> Tensor:
        if self._stage < 3:
            return parameter.detach()
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def moments(self, parameter: nn.Parameter) -> Moments:
        from deepspeed.utils import safe_get_full_optimizer_state

        step = self._optimizer.state[self._flat[0]]["step"]
        if not parameter.requires_grad or not step:
            return {}
        whole: Any = {name: safe_get_full_optimizer_state(parameter, name) for name in MOMENTS}
        return {**whole, "step": step}

    def set_moments(self, parameter: nn.Parameter, moments: Moments) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        if not moments:
            return
        for name in MOMENTS:
            value = moments[name].to(self.device, torch.float32)
            safe_set_full_optimizer_state(parameter, value, name)
        for flat in self._flat:
            self._optimizer.state[flat]["step"].copy_(moments["step"])


def _deepspeed(device: torch.device) -> Any:
    """The package, quiet, and on a CPU without compiling an operator that can be done without."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    deepspeed.utils.logger.setLevel(logging.ERROR)  # its handler writes to the standard output
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings(
        "ignore", r".*torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    return deepspeed


def _linear_restored() -> Any:
    """Undo, later, that stage 3 replaces `torch.nn.functional.linear` for the whole process."""
    linear = nn.functional.linear
    return lambda: setattr(nn.functional, "linear", linear)
