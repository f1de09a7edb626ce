"""ObservedUpdate: what one optimizer update read and decided on one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from rlobj.objectives import functional
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch

POLICY = ("logprobs", "entropy", "collision", "entropy_sensitivity")
"""The policy's columns that are kept of each update."""


@dataclass(frozen=True)
class ObservedUpdate:
    """One update of one rank: its tokens, its plan, and the policy's columns as it read them.

    The columns belong to the policy at the start of the update. They come from the scoring pass if
    there was one for these weights, else from the update's own forward passes. Tokens that went
    through neither, because they had no gradient, are NaN.

    Attributes:
        objective: the phase of the objective that the update trains.
        state: the objective's state as `plan` read it.
        table: this rank's tokens. If no scoring pass was made for the weights of this update, its
            log-probs are older: those of the rollout's policy, or the sampler's.
        plan: the plan of this table alone, with its clauses.
        sequences: prompt ids and response ids of each response.
        logprobs: log π, nats, [N].
        entropy: H, nats, [N].
        collision: Σ π², [N].
        entropy_sensitivity: see `TokenScores.entropy_sensitivity`, nats, [N].
        began: of each response, see `Response.began`; () = not known.
    """

    objective: Objective
    state: Mapping[str, Any]
    table: TokenBatch
    plan: Plan
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
    logprobs: torch.Tensor
    entropy: torch.Tensor
    collision: torch.Tensor
    entropy_sensitivity: torch.Tensor
    began: Sequence[str] = ()

    @cached_property
    def old_logprobs(self) -> torch.Tensor:
        """log π_old, nats, [N]; in the only update of a rollout π_old is π."""
        old = self.table.old_logprobs
        return self.logprobs if old is None else old.detach()

    @cached_property
    def spurious(self) -> torch.Tensor:
        """1 for spurious tokens, 0 for others, NaN for those that nobody judged, [N]."""
        judged = self.table.columns.get("spurious")
        return torch.full_like(self.logprobs, torch.nan) if judged is None else judged

    @property
    def value(self) -> torch.Tensor:
        """V of the context before each token, NaN if the objective reads no value, [N]."""
        value = self.table.columns.get(f"{self.objective.critic}_value")
        return torch.full_like(self.logprobs, torch.nan) if value is None else value

    @cached_property
    def gradient_norm(self) -> torch.Tensor:
        """|A|·sqrt(1 − 2π + Σ π²), the norm of the gradient of A·log π by the logits, [N]."""
        advantages = self.plan.advantages[0]
        return functional.gradient_norm(self.logprobs, self.collision, advantages)
