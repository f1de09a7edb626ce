"""Penalties P_k: terms added to the loss, each with its own tokens and divisor.

    loss = ... + Σ_k (1/Z_k) Σ_{where} c_k·P_k

The objective's drop, keep and reweight have no effect on penalties. The default divisor is the
objective's divisor with over="all".
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny, WithJsonSchema
from torch import Tensor

from rlobj.base.primitives import Primitive
from rlobj.base.validation import Model
from rlobj.objectives import functional
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.objectives.divisors import DivisorField
from rlobj.objectives.rules import NumberField, RuleField
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import Constant
from rlobj.objectives.settings import OptionalPositive
from rlobj.objectives.surrogates import Terms

_ESTIMATORS = {"k1": functional.k1, "abs": functional.abs_log_ratio, "k2": functional.k2}


class LossTerm(Model):
    """What penalties and the losses of values have in common: P_k with its tokens and divisor."""

    coefficient: NumberField = Constant(1.0)
    """c_k, a number or an expression such as a controller's name"""
    where: RuleField | None = None
    """the tokens it acts on; null = all"""
    divisor: DivisorField | None = None
    """Z_k; null = the objective's divisor, over all tokens"""

    def __call__(self, terms: Terms) -> Tensor:
        """P, [N], to be minimised."""
        raise NotImplementedError

    def needs(self) -> tuple[str, ...]:
        """TokenBatch columns that it reads, besides `logprobs`."""
        return ()


class Penalty(LossTerm, Primitive):
    """Base class of penalties, P_k."""

    skippable: ClassVar[bool] = True
    """P of a token depends only on the token's own response. Then a response with c_k = 0 on all
    its tokens can be left out of an update. A class of your own does not inherit this claim."""

    @property
    def name(self) -> str:
        """The name of its value in the metrics, after `loss/`."""
        return self.kind


PenaltyField = Annotated[SerializeAsAny[Penalty], BeforeValidator(Penalty.build)]


class _EstimatedKL(Penalty):
    """Base class of KLs that are estimated from the sampled token: k1, abs, k2 or k3."""

    estimator: Literal["k1", "abs", "k2", "k3"] = "k3"
    """estimator of the KL"""
    max_gap: OptionalPositive = functional.MAX_LOG_RATIO
    """k3 clamps l_ref − l to ±max_gap nats; null = no clamp"""
    max_value: OptionalPositive = None
    """the estimate is clamped to ±max_value; null = no clamp"""

    def estimate(self, logprobs: Tensor, reference: Tensor) -> Tensor:
        """The estimate of KL(π ‖ π_reference), [N]; 0 gradient where it is clamped."""
        if self.estimator == "k3":
            value = functional.k3(logprobs, reference, self.max_gap)
        else:
            value = _ESTIMATORS[self.estimator](logprobs, reference)
        return value if self.max_value is None else value.clamp(-self.max_value, self.max_value)


class KL(_EstimatedKL):
    """KL(π ‖ `against`): k1 = −d, abs = |d|, k2 = d²/2, k3 = exp(d) − d − 1; d = l_against − l.

    The gradient of k3 is biased. `unbiased=True` multiplies by r = π/π_old, with its gradient: then
    the expected gradient is the KL's gradient. Here l − l0 is clamped to ±20 nats.

    Source: Schulman 2020 (k1, k2, k3); GRPO, arXiv:2402.03300 eq. 4; KL-Cov's |l − l0|:
        arXiv:2505.22617; unbiased: DeepSeek-V3.2, arXiv:2512.02556. Clamps of k3: TRL none; verl
        max_gap 20 and max_value 10; AR-Lopti 5 and 10; Lp-Reg and OpenRLHF max_value 10 for each
        estimator.
    """

    against: str = "reference"
    """a score: the reference policy or another one; or old, π_old of the rollout; or sampler, the
    sampler's probabilities. Against another score than the reference, name the estimator"""
    unbiased: bool = False
    """multiply by r, for an unbiased gradient"""

    @property
    def score(self) -> str | None:
        """The score that it reads; None if it reads π_old or the sampler's probabilities."""
        return None if self.against in ("old", "sampler") else self.against

    @property
    def _column(self) -> str:
        return f"{self.against}_logprobs" if self.score is None else score_column(self.score)

    def needs(self) -> tuple[str, ...]:
        return (self._column, "old_logprobs") if self.unbiased else (self._column,)

    @property
    def name(self) -> str:
        return f"kl_{self.against}"

    def __call__(self, terms: Terms) -> Tensor:
        penalty = self.estimate(terms.logprobs, terms.column(self._column))
        return penalty * terms.token_ratio if self.unbiased else penalty


class ProxyKL(_EstimatedKL):
    """KL(π ‖ π_proxy) estimated from the sampled token; the proxy is the min-p proxy of π_old.

    The proxy keeps the tokens with probability ≥ min_p·(largest probability) and renormalises their
    probabilities. All other tokens have l_proxy = −1e4.

    Source: Lp-Reg, arXiv:2510.03222; its release calls the estimators kl, abs, mse, low_var_kl.
    """

    min_p: float = Field(default=0.02, gt=0, le=1)
    """μ, share of the largest probability"""
    relative: bool = True
    """false means that μ is itself a probability"""
    temperature: float | None = Field(default=None, gt=0)
    """temperature of the proxy; null = that of sampling"""
    policy: Literal["old", "current"] = "old"
    """the proxy is of π_old, or of π at the start of each update"""

    @property
    def scoring(self) -> dict[str, Any]:
        """The settings of `score_tokens` that compute the proxy."""
        settings = {"min_p": self.min_p, "relative": self.relative}
        return settings | ({"temperature": self.temperature} if self.temperature else {})

    @property
    def proxy(self) -> tuple[Any, ...]:
        """What two penalties with the same proxy have in common."""
        return self.policy, *self.scoring.items()

    def needs(self) -> tuple[str, ...]:
        return ("proxy_logprobs",)

    def __call__(self, terms: Terms) -> Tensor:
        return self.estimate(terms.logprobs, terms.column("proxy_logprobs"))


class EntropyBonus(Penalty):
    """P = −H, so the loss has −c·mean(H). Source: A3C, arXiv:1602.01783."""

    def needs(self) -> tuple[str, ...]:
        return ("entropy",)

    def __call__(self, terms: Terms) -> Tensor:
        return -terms.table.column("entropy", "EntropyBonus")


class NegativeLogLikelihood(Penalty):
    """P = −l. Source: the term on correct responses in CE-GPPO's release, arXiv:2509.20712."""

    def __call__(self, terms: Terms) -> Tensor:
        return -terms.logprobs


class Divergence(DivergenceSettings, Penalty):
    """The divergence of the policy from a teacher's distribution over the vocabulary.

    Its gradient goes through all of the policy's logits, and none through the teacher's. It is the
    column NAME_divergence of the table, with its gradient: the trainer computes it from the logits
    at the sampling temperature; in a loop of your own, `functional.divergence` does.
    """

    against: str
    """the score that is the teacher"""

    def needs(self) -> tuple[str, ...]:
        return (f"{self.against}_divergence",)

    @property
    def name(self) -> str:
        return f"divergence_{self.against}"

    def __call__(self, terms: Terms) -> Tensor:
        return terms.table.column(f"{self.against}_divergence", "Divergence")


class RewardKL(Model):
    """What each response's reward is reduced by: β·Σ_t (l0 − l_against); a number is short for β.

    Source: REINFORCE++, arXiv:2501.03262.
    """

    coefficient: float = Field(ge=0)
    """β"""
    against: str = "reference"
    """a score: the reference policy, or another one"""


RewardKLField = Annotated[
    RewardKL,
    BeforeValidator(lambda kl: kl if isinstance(kl, dict | RewardKL) else {"coefficient": kl}),
    PlainSerializer(lambda kl: kl.coefficient if kl.against == "reference" else kl.model_dump()),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, RewardKL.model_json_schema()]}),
]
