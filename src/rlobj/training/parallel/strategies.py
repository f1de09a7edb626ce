"""The interface of the strategies, which train one policy on several processes; and ddp."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rlobj.models.hollow import filled, values
from rlobj.ranks import ProcessGroup
from rlobj.scoring import pad_sequences
from rlobj.scoring.policy_scorer import TrunkScorer
from rlobj.settings.training import TrainingConfig

Moments = dict[str, Tensor]
"""AdamW's state of one parameter: whole exp_avg and exp_avg_sq in float32, and the scalar step."""
MOMENTS = ("exp_avg", "exp_avg_sq")
Scorer = Callable[..., Any]
"""Returns the columns of tokens as attributes: `TokenScores` of a policy, `values` of a value."""


class Columns(nn.Module):
    """A scorer that returns a dict of tensors, which every wrapper can traverse.

    It calls the scorer's `forward` directly, so that the wrapped root is the only module that reads
    the head's weight.
    """

    def __init__(self, scorer: TrunkScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, *inputs: Tensor, **settings: Any) -> dict[str, Tensor]:
        """Return the requested columns."""
        scores = self.scorer.forward(*inputs, **settings)
        return {name: column for name, column in vars(scores).items() if column is not None}


class Parallel(ABC):
    """Training of a model, such as the policy, on the processes of a run.

    All ranks call every method, in the same order, because `prepare`, the prepared scorer,
    `backward`, `step`, `full`, `moments` and `set_moments` may communicate. All ranks call the
    scorer equally often: a rank with fewer batches adds calls with `pad_sequences([])` and the
    loss 0 times the sum of a column.

    Args:
        accelerator: Accelerate's Accelerator.
        strategy: name of the strategy.
        max_grad_norm: the gradient is clipped to this norm.

    Attributes:
        accelerator: Accelerate's Accelerator.
        device: device of this process.
        comm: the process group.
        rank: rank of this process, from 0.
        size: number of processes.
        strategy: name of the strategy.
        shards: whether ranks store parts of the weights; then parameters may be hollow before
            `prepare` and `frozen`, see `rlobj.models.hollow`.
    """

    shards = False

    def __init__(self, accelerator: Any, strategy: str, *, max_grad_norm: float) -> None:
        self.accelerator = accelerator
        self.strategy = strategy
        self.max_grad_norm = max_grad_norm
        # Accelerate's may be cpu:0, which is no tensor's: `to` would copy each, a hollow one whole.
        self.device: torch.device = torch.empty(0, device=accelerator.device).device
        self.comm = ProcessGroup(self.device)
        self.rank = self.comm.rank
        self.size = self.comm.size
        self._module: Any = None
        self._optimizer: Any = None
        self._stack = contextlib.ExitStack()

    def on_close(self, action: Callable[[], Any]) -> None:
        """Register an action for `close`; actions run in reverse order."""
        self._stack.callback(action)

    def close(self) -> None:
        """Run the registered actions. This process keeps its weights."""
        self._stack.close()

    @abstractmethod
    def prepare(self, scorer: TrunkScorer, optimizer: torch.optim.AdamW) -> Scorer:
        """Prepare the model and the optimizer for the strategy.

        Args:
            scorer: the whole model in float32, the same on every rank.
            optimizer: optimizer of its parameters, before the first step.

        Returns:
            The function to call instead of the scorer. The parameters may be new objects: read them
            again from `model.named_parameters()`.
        """

    def frozen(self, scorer: TrunkScorer) -> Scorer:
        """A scorer that is never trained, spread over the ranks as the policy is."""
        for _ in filled(scorer.parameters()):
            pass
        return scorer

    def _score(self, *inputs: Tensor, **settings: Any) -> Any:
        """Call the prepared module."""
        return SimpleNamespace(**self._module(*inputs, **settings))

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient. Gradients are scaled here and nowhere else.

        The micro-batch losses of all ranks SUM to the objective, but every strategy averages over
        ranks. The loss is therefore multiplied by the number of ranks, and not divided by the
        number of micro-batches. Sums are float32.

        Args:
            loss: scalar loss of this rank's micro-batch, computed with the prepared scorer.
            last: this is the last micro-batch before `step`; equal on all ranks.
        """
        (loss * self.size).backward()

    def step(self, apply: bool) -> float:
        """Clip the gradient, apply the optimizer's step, and clear the gradient.

        Args:
            apply: whether to apply the step; equal on all ranks.

        Returns:
            The norm of the whole gradient before clipping, equal on all ranks. If it is not finite
            or `apply` is false, neither the weights nor the optimizer's state change.
        """
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        total = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        if apply and torch.isfinite(total):
            nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, total)
            self._optimizer.step()
        self._optimizer.zero_grad()
        return float(total)

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the next steps; nothing else changes it."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def full(self, parameter: nn.Parameter) -> Tensor:
        """Return the whole parameter on every rank; it may share the parameter's memory.

        Process one parameter at a time: with zero3 and fsdp2 each result is a copy.
        """
        return whole(parameter.detach())

    def stored(self, parameter: nn.Parameter) -> Tensor:
        """The part of a parameter that this rank stores, which shares its memory."""
        return _local(parameter.detach())

    def share(self, parameter: nn.Parameter, tensor: Tensor) -> Tensor:
        """The part of a whole tensor that this rank would store of the parameter."""
        return _local(_as(parameter, tensor))

    def moments(self, parameter: nn.Parameter) -> Moments:
        """Return the optimizer's whole state of a parameter on every rank; it may share memory.

        Returns:
            The moments; {} if the parameter is frozen or before the first step.
        """
        state = self._optimizer.state.get(parameter, {})
        return {name: whole(state[name]) for name in (*MOMENTS, "step") if name in state}

    def set_moments(self, parameter: nn.Parameter, moments: Moments) -> None:
        """Restore what `moments` returned, {} included; strategy and rank count may differ.

        Call it for every parameter, after `prepare` and before the first step.
        """
        if moments:
            state = {name: _as(parameter, moments[name]) for name in MOMENTS}
            step = moments["step"].to(self._step_device(parameter), copy=True)
            self._optimizer.state[parameter] = {**state, "step": step}

    def _step_device(self, parameter: Tensor) -> torch.device:
        """Where AdamW counts steps: on the CPU; if it is fused, where the parameter is."""
        return parameter.device if self._optimizer.defaults["fused"] else torch.device("cpu")


class Replicated(Parallel):
    """Plain training in one process; data parallelism in several."""

    def prepare(self, scorer: TrunkScorer, optimizer: torch.optim.AdamW) -> Scorer:
        self._optimizer = optimizer
        self._module = self.accelerator.prepare_model(Columns(scorer))
        if self.size > 1:
            # After a first backward pass DDP arranges its buckets. With three or more ranks, sums
            # depend on that, and a resumed run must compute those of an uninterrupted one.
            scores = self._score(*pad_sequences([], self.device))
            sums = [column.sum() for column in vars(scores).values()]
            self.backward(torch.stack(sums).sum() * 0, last=True)
            self._optimizer.zero_grad()
        return self._score

    def _score(self, *inputs: Tensor, **settings: Any) -> Any:
        with self.accelerator.no_sync(self._module):  # `backward` decides when to reduce gradients
            return super()._score(*inputs, **settings)

    def backward(self, loss: Tensor, last: bool) -> None:
        sync = self.accelerator.trigger_sync_in_backward(self._module)
        with sync if last else contextlib.nullcontext():
            super().backward(loss, last)


def adamw(scorer: TrunkScorer, training: TrainingConfig) -> torch.optim.AdamW:
    """The optimizer of the parameters of a scorer that are trained, for `Parallel.prepare`."""
    return torch.optim.AdamW(
        [p for p in scorer.parameters() if p.requires_grad],
        lr=training.learning_rate,
        betas=training.betas,
        weight_decay=training.weight_decay,
        eps=training.adam_epsilon,
        fused=training.fused or None,
    )


def whole(tensor: Any) -> Tensor:
    """The whole tensor, on every rank; of a tensor without shards, itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Any) -> Tensor:
    """The shard of this rank; of a tensor without shards, itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _as(parameter: Any, tensor: Tensor) -> Tensor:
    """A copy of a whole tensor, which every rank has, sharded as the parameter is."""
    if isinstance(parameter, DTensor):
        return shard_of(parameter, tensor, parameter.device)
    return values(tensor, parameter.device, parameter.dtype)


def shard_of(parameter: DTensor, tensor: Tensor, device: torch.device) -> DTensor:
    """A parameter's shards, of which this rank copies its own, some rows of a whole tensor."""
    mesh = parameter.device_mesh
    rows = -(-len(tensor) // mesh.size())
    part = tensor[mesh.get_local_rank() * rows :][:rows]
    shards: Any = torch.empty_like(parameter, device=device)
    shards.to_local().copy_(part.to(device))
    return shards
