"""The interface of all strategies."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.scoring import PolicyScorer, TokenScores
from rlobj.training.parallel.process_group import ProcessGroup

__all__ = ["MOMENTS", "Columns", "Moments", "Parallel", "Scorer", "clip_and_step"]

Moments = dict[str, Tensor]
"""AdamW's memory of one parameter: exp_avg and exp_avg_sq whole, in float32, and step, a scalar."""

MOMENTS = ("exp_avg", "exp_avg_sq")

Scorer = Callable[..., TokenScores]


class Columns(nn.Module):
    """A `PolicyScorer` that answers with a dict of tensors: the form every wrapper looks into.

    It calls the scorer's `forward` itself, so that the wrapped root is the one module that reads
    the head's weight.
    """

    def __init__(self, scorer: PolicyScorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, *inputs: Tensor, **settings: Any) -> dict[str, Tensor]:
        """The columns of `TokenScores` that were asked for."""
        scores = self.scorer.forward(*inputs, **settings)
        return {name: column for name, column in vars(scores).items() if column is not None}


class Parallel(ABC):
    """A policy in training, spread over the processes of a run.

    Every method is called on all ranks, in the same order: `prepare`, calls of the prepared scorer,
    `backward`, `step`, `full`, `moments` and `set_moments` may all exchange data. The ranks make
    equal numbers of calls of the scorer; one with too few batches fills up with
    `pad_sequences([])` and the loss `scores.logprobs.sum() * 0`.

    Args:
        accelerator: Accelerate's view of the machine.
        strategy: its name.
        max_grad_norm: the gradient is clipped to this norm.

    Attributes:
        accelerator: as given.
        device: of this process.
        comm: the process group.
        rank: of this process, from 0.
        size: the number of processes.
        strategy: as given.
    """

    def __init__(self, accelerator: Any, strategy: str, *, max_grad_norm: float) -> None:
        self.accelerator = accelerator
        self.strategy = strategy
        self.max_grad_norm = max_grad_norm
        self.device: torch.device = accelerator.device
        self.comm = ProcessGroup(self.device)
        self.rank = self.comm.rank
        self.size = self.comm.size
        self._optimizer: Any = None
        self._stack = contextlib.ExitStack()

    def on_close(self, action: Callable[[], Any]) -> None:
        """Have something done by `close`; the last one named is done first."""
        self._stack.callback(action)

    def close(self) -> None:
        """Take down what was opened; the weights of this process stay as they are."""
        self._stack.close()

    @abstractmethod
    def prepare(self, scorer: PolicyScorer, optimizer: torch.optim.AdamW) -> tuple[Scorer, Any]:
        """Spread the policy.

        Args:
            scorer: whole, the same on every rank, float32.
            optimizer: over its parameters, before its first step.

        Returns:
            What to call in the scorer's place, and the optimizer. The model's parameters are
            those of `model.named_parameters()` from now on.
        """

    @abstractmethod
    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient; the one place where gradients are scaled.

        Micro-batch losses over all ranks SUM to the objective, while every strategy averages over
        ranks: so x the number of ranks, and no division by the number of micro-batches. Sums are
        float32.

        Args:
            loss: of this rank's micro-batch, a scalar with a graph through the prepared scorer.
            last: no further micro-batch follows before `step`; equal on all ranks.
        """

    @abstractmethod
    def step(self, apply: bool) -> float:
        """Clip the gradient and make the optimizer's step, or change nothing; drop the gradient.

        Args:
            apply: whether there is anything to learn from; equal on all ranks.

        Returns:
            The norm of the whole gradient before clipping, equal on all ranks. Where it is not
            finite, or `apply` is false, neither the weights nor the optimizer's memory change.
        """

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of the steps to come; nothing else ever changes it."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    @abstractmethod
    def full(self, parameter: nn.Parameter) -> Tensor:
        """One parameter whole, on every rank; it may share the parameter's memory.

        Take one, use it, take the next: under zero3 and fsdp2 each is a copy.
        """

    @abstractmethod
    def moments(self, parameter: nn.Parameter) -> Moments:
        """The optimizer's memory of one parameter, whole, on every rank; it may share memory.

        Returns:
            {} where there is none: a frozen parameter, or no step was made yet.
        """

    @abstractmethod
    def set_moments(self, parameter: nn.Parameter, moments: Moments) -> None:
        """Give the optimizer back what `moments` returned, of whatever strategy and size; {} too.

        Do so for every parameter, after `prepare` and before the first step.
        """


def clip_and_step(optimizer: torch.optim.Optimizer, max_grad_norm: float, apply: bool) -> float:
    """`Parallel.step` for gradients that lie on the optimizer's own parameters.

    Args:
        optimizer: over plain parameters, or over those of fully_shard.
        max_grad_norm: the gradient is clipped to this norm.
        apply: as in `Parallel.step`.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    total: Any = nn.utils.get_total_norm(gradients)
    total = total.full_tensor() if hasattr(total, "full_tensor") else total
    if apply and torch.isfinite(total):
        nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, total)
        optimizer.step()
    optimizer.zero_grad()
    return float(total)
