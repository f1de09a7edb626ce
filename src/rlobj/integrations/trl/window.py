"""What an ObjectiveTrainer remembers between the calls of TRL."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import LossOutput, Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.training.loop.metrics import Measured

Inputs = dict[str, Any]
"""TRL's inputs of one micro-batch."""


@dataclass
class Window:
    """One update: the micro-batches of a window of gradient accumulation.

    Attributes:
        inputs: TRL's inputs of each micro-batch.
        rollouts: the micro-batches of each rollout that was sampled for this window.
        phase: of the objective.
        scored: log-probs and entropies under the present weights, [B, T], by the id of the inputs.
        plan: of the update; None = not made yet.
        tables: the micro-batches as they were planned.
        metrics: of the update, when it has ended.
        measured: what the losses of the micro-batches so far measured.
        error: the first loss that was not finite.
    """

    inputs: list[Inputs]
    rollouts: list[list[Inputs]]
    phase: Objective
    scored: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    plan: Plan | None = None
    tables: list[TokenBatch] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)
    error: BatchError | None = None

    @property
    def position(self) -> int:
        """The place of the micro-batch whose loss is due."""
        return len(self.measured)

    @property
    def size(self) -> str:
        """The number of micro-batches, in words."""
        return "1 micro-batch" if len(self.inputs) == 1 else f"{len(self.inputs)} micro-batches"

    def samples(self, inputs: Inputs) -> bool:
        """Whether these inputs were sampled for this window, from the policy as it is now."""
        return any(inputs is each for rollout in self.rollouts for each in rollout)

    def add(self, table: TokenBatch, output: LossOutput) -> None:
        """Keep what the loss of the next micro-batch measured, without its graph."""
        assert table.entropy is not None
        self.measured.append(
            Measured(
                loss=output.loss.detach(),
                metrics=output.metrics,
                extremes=output.extremes,
                tokens=table.decided.sum(),
                rows=torch.arange(len(table)),
                scores={"logprobs": table.logprobs.detach(), "entropy": table.entropy.detach()},
                sampler_logprobs=None,
            )
        )


@dataclass
class Progress:
    """What an ObjectiveTrainer remembers between the calls of TRL.

    Attributes:
        state: the objective's controllers, and "update", the number of updates done.
        rows: number of responses that were sampled, over all processes.
        batches: the prompts of the micro-batches of the window in progress.
        window: the window in progress; None = the next call opens one.
        rewards: of the last rollout, over all processes, [B, K].
        entropies: entropies of TRL's own forward passes over a rollout; None = not wanted.
    """

    state: dict[str, Any]
    rows: int = 0
    batches: list[Any] = field(default_factory=list)
    window: Window | None = None
    rewards: Tensor | None = None
    entropies: list[Tensor] | None = None
