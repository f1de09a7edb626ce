"""Sampler/trainer mismatch: a factor of ω, computed from d = l0 − l_sampler.

The sampler's log-probabilities differ from the trainer's because of kernels, precision and stale
weights. The factor is the importance weight between the two, truncated or masked. The column
`sampler_logprobs` must belong to the distribution that the tokens were sampled from. A token whose
`sampler_logprobs` is NaN has d = 0.
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BeforeValidator, SerializeAsAny, model_validator
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives.functional import MAX_LOG_RATIO
from rlobj.objectives.settings import NonNegative, Positive
from rlobj.objectives.tokens import TokenBatch


class Mismatch(Primitive):
    """Base class of mismatch factors."""

    bounds: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """What a weight beyond a bound means: the effect, the side, and the bound's setting."""

    level: Literal["token", "sequence", "geometric"] = "token"
    """exp(d) per token; exp(Σ_t d) or exp(mean_t d) for the whole response"""

    def weight(self, gap: Tensor, table: TokenBatch) -> Tensor:
        """exp(d), exp(Σ_t d) or exp(mean_t d), with the exponent clamped to ±20 nats, [N]."""
        if self.level == "sequence":
            gap = table.spread(table.sum_by_response(gap))
        elif self.level == "geometric":
            gap = table.spread(table.mean_by_response(gap))
        return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    def __call__(self, gap: Tensor, table: TokenBatch) -> Tensor:
        """The factor of each token, [N].

        Args:
            gap: d = l0 − l_sampler, nats, [N].
            table: the tokens.
        """
        raise NotImplementedError

    def clauses(
        self, gap: Tensor, table: TokenBatch, settings: "Mismatch"
    ) -> Iterator[tuple[str, str, Tensor]]:
        """What the correction does at its bounds: effect, clause, and the tokens, bool [N].

        Args:
            gap: d, as in `__call__`.
            table: the tokens.
            settings: the same correction with expressions in place of their values.
        """
        weight = self.weight(gap, table)
        over = {"sequence": ".sum(by='response')", "geometric": ".mean(by='response')"}
        ratio = f"exp(sampler_gap{over.get(self.level, '')})"
        for effect, side, name in self.bounds:
            bound = getattr(self, name)
            beyond = weight < bound if side == "<" else weight > bound
            yield effect, f"{ratio} {side} {getattr(settings, name)}", beyond


MismatchField = Annotated[SerializeAsAny[Mismatch], BeforeValidator(Mismatch.build)]


class Truncate(Mismatch):
    """min(exp(d), cap), d = l0 − l_sampler.

    Source: truncated importance sampling (TIS), Yao et al. 2025.
    """

    bounds: ClassVar[Any] = (("reweighted", ">", "cap"),)

    cap: Positive = 2.0
    """C, absolute"""

    def __call__(self, gap: Tensor, table: TokenBatch) -> Tensor:
        return self.weight(gap, table).clamp(max=self.cap)


class Mask(Mismatch):
    """exp(d) inside [low, high], 0 outside; d = l0 − l_sampler; Z counts masked tokens too.

    With level="token" this is IcePop, whose bounds are 0.5 and 5.
    Source: masked importance sampling (MIS), Liu et al. 2025; IcePop, arXiv:2510.18855.
    """

    bounds: ClassVar[Any] = (("masked", "<", "low"), ("masked", ">", "high"))

    low: NonNegative = 0.0
    """C_min, absolute"""
    high: Positive = 3.0
    """C_max, absolute"""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if isinstance(self.low, float) and isinstance(self.high, float) and self.low > self.high:
            raise ConfigError(f"expected low <= high, got {self.low} and {self.high}")
        return self

    def __call__(self, gap: Tensor, table: TokenBatch) -> Tensor:
        weight = self.weight(gap, table)
        inside = (weight >= self.low) & (weight <= self.high)
        return torch.where(inside, weight, torch.zeros_like(weight))
