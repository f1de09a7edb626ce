"""Surrogates S(r, A): the value of each token that the policy is trained to maximise, [N].

    l = log π_θ(o_t)     log-probability of the sampled token under the policy being trained, nats
    l0                   the same under π_old, the policy at the start of the rollout's updates
    r = exp(l − l0)      importance ratio
    A                    advantage
    sg[x]                x without gradient

Only `Objective.loss` has a minus sign. Ratios and means over a response include all its tokens,
also those that a rule drops. Settings are numbers, or tensors with one number per token, [N].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor

from rlobj.base.primitives import Primitive
from rlobj.objectives import functional, settings
from rlobj.objectives.rules import Rule, RuleField
from rlobj.objectives.tokens import TokenBatch


@dataclass(frozen=True)
class Terms:
    """The inputs of surrogates and penalties for one micro-batch.

    Attributes:
        table: the micro-batch.
        logprobs: l, nats, [N], with gradient.
        advantages: A, [N].
        values: the plan's values of the surrogate's rules, bool [N], by the rule's text.
        max_log_ratio: logarithms of ratios are clamped to ±max_log_ratio nats; None = no clamp.
        against: whose log-probs are l0 in ratios, "old" or "sampler".
    """

    table: TokenBatch
    logprobs: Tensor
    advantages: Tensor
    values: Mapping[str, Tensor]
    max_log_ratio: functional.Real | None = functional.MAX_LOG_RATIO
    against: str = "old"

    def clamped(self, limit: functional.Real | None, against: str = "old") -> "Terms":
        """The same terms with another clamp of ratios, and against these log-probs."""
        if limit is self.max_log_ratio and against == self.against:
            return self
        return replace(self, max_log_ratio=limit, against=against)

    def column(self, name: str) -> Tensor:
        """A column of the table, detached, [N].

        Raises:
            BatchError: the column is absent.
        """
        return self.table.column(name, "the loss").detach()

    @cached_property
    def log_ratio(self) -> Tensor:
        """l − l0, clamped, [N]."""
        return functional.bounded(self._moved, self.max_log_ratio)

    @cached_property
    def _moved(self) -> Tensor:
        return self.logprobs - self.column(f"{self.against}_logprobs")

    @cached_property
    def token_ratio(self) -> Tensor:
        """r = exp(l − l0), [N]."""
        return self.log_ratio.exp()

    @cached_property
    def sequence_ratio(self) -> Tensor:
        """s_i·exp(l − sg[l]) with s_i = sg[exp(mean_t(l − l0))], [N].

        The value is the geometric mean of the response's ratios; each token has its own gradient.
        Its logarithm is clamped from above only, as in verl.
        Source: GSPO, arXiv:2507.18071 eq. 7 (GSPO-token).
        """
        mean = self.table.spread(self.table.mean_by_response(self._moved.detach()))
        moved = mean + self.logprobs - self.logprobs.detach()
        return functional.bounded(moved, self.max_log_ratio, below=False).exp()

    @cached_property
    def product_ratio(self) -> Tensor:
        """Π_t r_t over the response, the same value on each of its tokens, [N].

        Source: RLOO's sequence-level action, arXiv:2402.14740.
        """
        product = self.table.spread(self.table.sum_by_response(self._moved))
        return functional.bounded(product, self.max_log_ratio).exp()


class Surrogate(Primitive):
    """Base class of surrogates, S(r, A)."""

    skippable: ClassVar[bool] = True
    """S = A·f with a finite f that depends only on the token's own response. Then a response with
    A = 0 on all its tokens has S = 0 and no gradient, and can be left out of an update. A class of
    your own does not inherit this claim."""

    def __call__(self, terms: Terms) -> Tensor:
        """S, [N], to be maximised."""
        raise NotImplementedError

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        """Tokens without gradient because r is above its bounds, or below them, bool [N] each."""
        none = torch.zeros_like(terms.logprobs, dtype=torch.bool)
        return none, none

    def rules(self) -> tuple[Rule, ...]:
        """The rules that `plan` evaluates for this surrogate."""
        return ()

    def parts(self) -> "tuple[Surrogate, ...]":
        """The surrogates that this one is composed of; itself if it is one equation."""
        return (self,)

    def needs(self) -> tuple[str, ...]:
        """TokenBatch columns that the surrogate reads, besides `logprobs`."""
        return ("old_logprobs",)


SurrogateField = Annotated[SerializeAsAny[Surrogate], BeforeValidator(Surrogate.build)]


class _RatioSurrogate(Surrogate):
    """Base class of surrogates of a ratio of policies."""

    max_log_ratio: settings.OptionalPositive = functional.MAX_LOG_RATIO
    """the ratio's logarithm is clamped to ±max_log_ratio nats; null = no clamp"""


class _AgainstSurrogate(_RatioSurrogate):
    """Base class of surrogates of a ratio to the old policy or to the sampler."""

    against: Literal["old", "sampler"] = "old"
    """l0 in the ratio: of the old policy, or those that the sampler reported; where these are
    unknown, of the old policy"""

    def needs(self) -> tuple[str, ...]:
        return (f"{self.against}_logprobs",)

    def _terms(self, terms: Terms) -> Terms:
        return terms.clamped(self.max_log_ratio, self.against)


def _choose(rule: Tensor, then: Any, otherwise: Any, *, like: Tensor) -> Tensor:
    """`then` where the rule is true, else `otherwise`, [N] in the dtype of `like`."""
    values = (
        torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in (then, otherwise)
    )
    return torch.where(rule, *values)


class Clip(_AgainstSurrogate):
    """S = min(r·A, clip(r, 1 − low, 1 + high)·A); with dual = c, for A < 0 also max(·, c·A).

    The dual bound limits the loss of tokens with a very large ratio.

    Source: PPO, arXiv:1707.06347 eq. 7; asymmetric bounds: DAPO, arXiv:2503.14476 eq. 8; dual clip:
        arXiv:1912.09729.
    """

    low: settings.NonNegative = 0.2
    """ε_low: the ratio's floor is 1 − low"""
    high: settings.NonNegative = 0.2
    """ε_high: the ratio's cap is 1 + high"""
    dual: settings.OptionalAboveOne = None
    """c, an absolute cap for A < 0; null = none"""
    ratio: Literal["token", "sequence", "product"] = "token"
    """of the token, or the response's geometric mean (GSPO) or product"""

    def _ratio(self, terms: Terms) -> Tensor:
        return getattr(self._terms(terms), f"{self.ratio}_ratio")

    def __call__(self, terms: Terms) -> Tensor:
        ratio, advantages = self._ratio(terms), terms.advantages
        clipped = ratio.clamp(min=1 - self.low).clamp(max=1 + self.high)
        value = torch.minimum(ratio * advantages, clipped * advantages)
        if self.dual is None:
            return value
        return torch.where(advantages < 0, torch.maximum(value, self.dual * advantages), value)

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        ratio, advantages = self._ratio(terms).detach(), terms.advantages
        above = (advantages > 0) & (ratio > 1 + self.high)
        below = (advantages < 0) & (ratio < 1 - self.low)
        if self.dual is not None:
            above = above | ((advantages < 0) & (ratio > self.dual))
        return above, below


class Unclipped(_AgainstSurrogate):
    """S = r·A. Source: KL-Cov, arXiv:2505.22617; Lp-Reg, arXiv:2510.03222."""

    def __call__(self, terms: Terms) -> Tensor:
        return self._terms(terms).token_ratio * terms.advantages


class Reinforce(Surrogate):
    """S = l·A. Source: Williams 1992; GPG, arXiv:2504.02546."""

    def needs(self) -> tuple[str, ...]:
        return ()

    def __call__(self, terms: Terms) -> Tensor:
        return terms.logprobs * terms.advantages


class Cispo(_AgainstSurrogate):
    """S = sg[clip(r, min, max)]·A·l: the weight is clipped, the gradient is not.

    Source: MiniMax-M1, arXiv:2506.13585; absolute cap 5: ScaleRL, arXiv:2510.13786.
    """

    max: settings.Positive = 5.0
    """absolute cap of r, not an offset from 1"""
    min: settings.NonNegative = 0.0
    """absolute floor of r"""

    def __call__(self, terms: Terms) -> Tensor:
        ratio = self._terms(terms).token_ratio.detach()
        return ratio.clamp(min=self.min).clamp(max=self.max) * terms.advantages * terms.logprobs


class ClippedRatio(_AgainstSurrogate):
    """S = clip(r, min, max)·A: no gradient outside the bounds, whatever the sign of A.

    Source: ABC-GRPO, arXiv:2601.03895 eq. 5, whose bounds depend on the sign of A. With min = 0 and
        max = α/|A| it is clip(r·A, −α, α): ACPO, arXiv:2609.36816.
    """

    max: settings.Positive = 1.2
    """absolute cap of r, not an offset from 1"""
    min: settings.NonNegative = 0.8
    """absolute floor of r"""

    def __call__(self, terms: Terms) -> Tensor:
        ratio = self._terms(terms).token_ratio
        return ratio.clamp(min=self.min).clamp(max=self.max) * terms.advantages

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        ratio = self._terms(terms).token_ratio.detach()
        return ratio > self.max, ratio < self.min


class SoftGate(_RatioSurrogate):
    """S = (4/τ)·σ(τ(r − 1))·A, τ by the sign of A.

    At r = 1 its gradient in r is A, that of the unclipped surrogate.

    Source: SAPO, arXiv:2511.20347.
    """

    tau_pos: settings.Positive = 1.0
    """τ where A > 0"""
    tau_neg: settings.Positive = 1.05
    """τ where A ≤ 0"""

    def __call__(self, terms: Terms) -> Tensor:
        ratio = terms.clamped(self.max_log_ratio).token_ratio
        tau = _choose(terms.advantages > 0, self.tau_pos, self.tau_neg, like=ratio)
        return 4 / tau * torch.sigmoid(tau * (ratio - 1)) * terms.advantages


class GeometricMean(_RatioSurrogate):
    """S = A·exp(mean_t f), f = min(l − l0, eps) if A > 0, max(l − l0, −eps) if A ≤ 0.

    All tokens of a response have the same S. With `SequenceMean` a response counts once.
    Source: GMPO, arXiv:2507.20673.
    """

    eps: settings.Positive = 0.4
    """ε in log space, nats"""

    def __call__(self, terms: Terms) -> Tensor:
        table, moved = terms.table, terms.clamped(self.max_log_ratio).log_ratio
        above, below = moved.clamp(max=self.eps), moved.clamp(min=-self.eps)
        mean = table.mean_by_response(torch.where(terms.advantages > 0, above, below))
        return table.spread(table.mean_by_response(terms.advantages) * mean.exp())

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        moved, advantages = terms.log_ratio.detach(), terms.advantages
        return (advantages > 0) & (moved > self.eps), (advantages < 0) & (moved < -self.eps)


class DppoTv(_AgainstSurrogate):
    """S = sg[min(r, cap)]·A·l inside the total-variation region, else 0; r = π/π_against.

    The region is π − π_against ≤ high where A > 0, and π − π_against ≥ −low where A ≤ 0.

    Source: DPPO, arXiv:2602.04879.
    """

    low: settings.NonNegative = 0.2
    """largest decrease of the token's probability that is trained"""
    high: settings.NonNegative = 0.2
    """largest increase of the token's probability that is trained"""
    cap: settings.OptionalPositive = 20.0
    """absolute cap of r; null = none"""

    def _moved(self, terms: Terms) -> Tensor:
        return terms.logprobs.detach().exp() - terms.column(f"{self.against}_logprobs").exp()

    def __call__(self, terms: Terms) -> Tensor:
        centre, moved = terms.column(f"{self.against}_logprobs"), self._moved(terms)
        inside = torch.where(terms.advantages > 0, moved <= self.high, moved >= -self.low)
        ratio = functional.log_ratio(terms.logprobs.detach(), centre, self.max_log_ratio).exp()
        ratio = ratio if self.cap is None else ratio.clamp(max=self.cap)
        return torch.where(inside, ratio, 0.0) * terms.advantages * terms.logprobs

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        moved, advantages = self._moved(terms), terms.advantages
        return (advantages > 0) & (moved > self.high), (advantages < 0) & (moved < -self.low)


class Vespo(_RatioSurrogate):
    """S = sg[φ(w)]·A·l, φ = exp(λ + k·log w − λ·w), w = Π_t r_t of the response.

    φ(1) is 1. Each log r is clamped to ±max_log_ratio, and their sum to [log 1e-8, 20].
    Source: VESPO, arXiv:2602.10693; TRL 1.16's values of k and λ.
    """

    k_pos: settings.AnyNumber = 2.0
    """k where A ≥ 0"""
    lambda_pos: settings.AnyNumber = 3.0
    """λ where A ≥ 0"""
    k_neg: settings.AnyNumber = 3.0
    """k where A < 0"""
    lambda_neg: settings.AnyNumber = 2.0
    """λ where A < 0"""

    def __call__(self, terms: Terms) -> Tensor:
        moved = terms.clamped(self.max_log_ratio).log_ratio.detach()
        total = terms.table.sum_by_response(moved)
        log_w = terms.table.spread(total.clamp(math.log(1e-8), functional.MAX_LOG_RATIO))
        positive = terms.advantages >= 0
        k = _choose(positive, self.k_pos, self.k_neg, like=log_w)
        lam = _choose(positive, self.lambda_pos, self.lambda_neg, like=log_w)
        weight = torch.exp(lam + k * log_w - lam * log_w.exp())
        return weight * terms.advantages * terms.logprobs


class Switch(Surrogate):
    """S = `then` where the rule is true, else `otherwise`; `plan` evaluates the rule."""

    rule: RuleField
    """tokens with the surrogate `then`"""
    then: SurrogateField
    """surrogate where the rule is true"""
    otherwise: SurrogateField
    """surrogate of all other tokens"""

    def __init__(self, rule: Any = None, then: Any = None, otherwise: Any = None, **data: Any):
        positional = {"rule": rule, "then": then, "otherwise": otherwise}
        super().__init__(**{k: v for k, v in positional.items() if v is not None}, **data)

    def _choose(self, terms: Terms, then: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(terms.values[str(self.rule)], then, otherwise)

    def __call__(self, terms: Terms) -> Tensor:
        return self._choose(terms, self.then(terms), self.otherwise(terms))

    def clipped_sides(self, terms: Terms) -> tuple[Tensor, Tensor]:
        (high, low), (others_high, others_low) = (
            surrogate.clipped_sides(terms) for surrogate in (self.then, self.otherwise)
        )
        return self._choose(terms, high, others_high), self._choose(terms, low, others_low)

    def parts(self) -> tuple[Surrogate, ...]:
        if type(self) is not Switch:  # a subclass has another equation
            return (self,)
        return (*self.then.parts(), *self.otherwise.parts())

    def rules(self) -> tuple[Rule, ...]:
        return (self.rule, *self.then.rules(), *self.otherwise.rules())

    def needs(self) -> tuple[str, ...]:
        return (*self.then.needs(), *self.otherwise.needs())
