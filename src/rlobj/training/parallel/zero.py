"""The strategies zero2 and zero3: DeepSpeed shards moments, gradients and, in zero3, weights."""

import functools
import logging
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.models.hollow import filled
from rlobj.scoring.policy_scorer import TrunkScorer
from rlobj.sizing.memory import BUCKET_ELEMENTS
from rlobj.training.parallel.fsdp2 import sharded_scorer
from rlobj.training.parallel.strategies import MOMENTS, Columns, Moments, Parallel, Scorer

PERSISTENT_ELEMENTS = 100_000
"""Stage 3 does not shard parameters up to this size, such as norms: gathering costs more."""


class Zero(Parallel):
    """Calls DeepSpeed's engine directly: one backward per micro-batch, one step per update.

    Weights and gradients are float32. Gradients are reduced at every micro-batch, because each rank
    keeps only its shard of the sum. Stage 2 has a second copy of the weights that a rank updates.

    Args:
        accelerator: Accelerate's Accelerator, with a process group.
        strategy: zero2 or zero3.
        max_grad_norm: the gradient is clipped to this norm.
        autocast: dtype of forward passes; None = float32. DeepSpeed needs it, because on a GPU it
            disables a `torch.autocast` around its engine.
        offload: moments and the weights that are updated are in the memory of the CPU, which
            computes the step.
    """

    def __init__(
        self,
        accelerator: Any,
        strategy: str,
        *,
        max_grad_norm: float,
        autocast: torch.dtype | None,
        offload: bool = False,
    ) -> None:
        super().__init__(accelerator, strategy, max_grad_norm=max_grad_norm)
        self.shards = strategy == "zero3"
        self._autocast, self._offload = autocast, offload
        self._apply = True

    def prepare(self, scorer: TrunkScorer, optimizer: torch.optim.AdamW) -> Scorer:
        deepspeed, root = _deepspeed(self.device), Columns(scorer)
        self.on_close(functools.partial(setattr, nn.functional, "linear", nn.functional.linear))
        if self.shards:
            deepspeed.zero.Init(module=_Filled(root), config_dict_or_path=self._config())
        self._module, zero, _, _ = deepspeed.initialize(
            model=root, optimizer=optimizer, config=self._config()
        )
        self.on_close(self._module.destroy)
        if self.shards:
            self._flat = zero.fp32_partitioned_groups_flat
        else:
            self._flat = zero.single_partition_of_fp32_groups
        self._optimizer = optimizer
        for flat in self._flat:  # AdamW's initial state: DeepSpeed finds only existing moments
            moments = {name: torch.zeros_like(flat) for name in MOMENTS}
            step = torch.zeros((), device=self._step_device(flat))
            optimizer.state[flat] = {"step": step, **moments}
        if not self.shards:
            zero._lazy_init_hp_params_optimizer_state()
        optimizer.register_step_pre_hook(self._drop_gradients)
        return self._score

    def _config(self) -> dict[str, Any]:
        half = self._autocast is not None
        autocast = {
            "enabled": half,
            "dtype": str(self._autocast).removeprefix("torch.") if half else "bfloat16",
            "lower_precision_safe_modules": [],  # these would reduce in half precision
        }
        return {
            "train_micro_batch_size_per_gpu": 1,  # unused: rlobj counts micro-batches itself
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self.max_grad_norm,
            "steps_per_print": None,
            "torch_autocast": autocast,
            "zero_force_ds_cpu_optimizer": False,  # DeepSpeed's would be compiled
            "zero_optimization": {
                "offload_optimizer": {"device": "cpu" if self._offload else "none"},
                "stage": 3 if self.shards else 2,
                "reduce_bucket_size": BUCKET_ELEMENTS,
                "stage3_param_persistence_threshold": PERSISTENT_ELEMENTS,
            },
        }

    def backward(self, loss: Tensor, last: bool) -> None:
        self._module.set_gradient_accumulation_boundary(last)
        self._module.backward(loss * self.size)

    def step(self, apply: bool) -> float:
        shards = [flat.grad for flat in self._flat if flat.grad is not None]
        if not self._offload:
            parts = self._module.optimizer.averaged_gradients.values()
            shards = [gradient for part in parts for gradient in part]
        squares = [torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in shards]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
        norm = float(self.comm.sum(total.to(self.device)).sqrt())
        self._apply = apply and math.isfinite(norm)
        kept = [(flat, flat.grad) for flat in self._flat]
        self._module.step()
        if self._offload:  # DeepSpeed writes the next gradient into the same memory
            for flat, gradient in kept:
                flat.grad = gradient
        skipped = self._apply and not self._module.was_step_applied()
        return math.inf if skipped else norm  # DeepSpeed's float32 norm may overflow

    def _drop_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Remove the gradients before a step that must not be applied, so that AdamW skips it.

        DeepSpeed does not know `apply`, and skips steps that are not finite in some versions only.
        """
        if not self._apply:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def full(self, parameter: nn.Parameter) -> Tensor:
        if not self.shards:
            return parameter.detach()
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def frozen(self, scorer: TrunkScorer) -> Scorer:
        if not self.shards or self.size == 1:
            return super().frozen(scorer)
        return sharded_scorer(scorer, self.device, self.size)

    def stored(self, parameter: nn.Parameter) -> Tensor:
        if not self.shards:
            return super().stored(parameter)
        from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

        shard: Any = parameter
        if shard.ds_status == ZeroParamStatus.AVAILABLE:  # a small one, which stays gathered
            shard.partition()
        return shard.ds_tensor.detach()

    def share(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        if not self.shards:
            return super().share(parameter, tensor)
        return self._part(tensor.to(self.device, torch.float32))

    def _part(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor; DeepSpeed's own division does not pad the last one."""
        part = -(-whole.numel() // self.size)
        padded = nn.functional.pad(whole.flatten(), (0, part * self.size - whole.numel()))
        return padded[self.comm.rank * part :][:part]

    def moments(self, parameter: nn.Parameter) -> Moments:
        from deepspeed.utils import safe_get_full_optimizer_state

        step = self._optimizer.state[self._flat[0]]["step"]
        if not parameter.requires_grad or not step:
            return {}
        whole: Any = {name: safe_get_full_optimizer_state(parameter, name) for name in MOMENTS}
        return {**whole, "step": step}

    def set_moments(self, parameter: nn.Parameter, moments: Moments) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        if not moments:
            return
        for name in MOMENTS:
            value = moments[name].to(self.device, torch.float32)
            if not self.shards:
                safe_set_full_optimizer_state(parameter, value, name)
            else:
                safe_set_local_optimizer_state(parameter, self._part(value), name)
        for flat in self._flat:
            self._optimizer.state[flat]["step"].copy_(moments["step"])


class _Filled(nn.Module):
    """Gives DeepSpeed the parameters of a module: each is read before DeepSpeed divides it."""

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self._roots = [root]  # in a list: it is no submodule

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return filled(self._roots[0].parameters(recurse))


def _deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed with fewer messages; on a CPU, do not compile an optional operator."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops

    deepspeed.utils.logger.setLevel(logging.ERROR)  # its handler writes to standard output
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    warnings.filterwarnings(
        "ignore", r".*torch\.distributed\.\w+_tensor` is deprecated", FutureWarning
    )
    return deepspeed
