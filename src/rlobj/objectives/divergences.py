"""Divergences of the policy's distribution p from a teacher's q, over the vocabulary, in nats.

    reverse        KL(p ‖ q) = Σ p·(log p − log q)
    forward        KL(q ‖ p) = Σ q·(log q − log p)
    jsd            β·KL(q ‖ m) + (1 − β)·KL(p ‖ m),  m = (1 − β)·p + β·q
    mixed          β·forward + (1 − β)·reverse
    cross_entropy  −Σ q·log p

A jsd with β = 0 is forward, and with β = 1 reverse, as the limits of jsd/β and jsd/(1 − β). The
teacher has no gradient. With `top`, sums are over the teacher's k most likely tokens.
"""

import math
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rlobj.base.validation import InvalidFields, Model

_HALF = 0.5


class DivergenceSettings(Model):
    """Which divergence it is, and over which tokens.

    Source: JSD and its ends: GKD, arXiv:2306.13649, as TRL's GKD trainer; top without
        renormalisation: verl; mixed, and `outside`: NeMo-RL; cross-entropy over renormalised q:
        SDFT in the tinker cookbook.
    """

    of: Literal["reverse", "forward", "jsd", "mixed", "cross_entropy"] = "reverse"
    """the divergence"""
    beta: float = Field(default=_HALF, ge=0, le=1)
    """β of jsd; share of forward in mixed"""
    top: int | None = Field(default=None, ge=1)
    """k: only the teacher's k most likely tokens; null = the whole vocabulary"""
    renormalise: bool | None = None
    """with top: p and q add up to 1 over these tokens (cross_entropy: only q); null = as in the
    releases: true for mixed and cross_entropy, if there is no `outside`"""
    outside: float | None = Field(default=None, le=0)
    """with top, for reverse and mixed: log q of all other tokens, nats; null = they are left out"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        mixes = self.of in ("jsd", "mixed")
        rest = self.of in ("reverse", "mixed") and self.top is not None and not self.renormalise
        checks = {
            "beta": (self.beta != _HALF and not mixes, "belongs to jsd and mixed"),
            "renormalise": (self.renormalise is not None and self.top is None, "belongs to top"),
            "outside": (
                self.outside is not None and not rest,
                "belongs to reverse and mixed with top, without renormalise",
            ),
        }
        if problems := [(name, text) for name, (wrong, text) in checks.items() if wrong]:
            raise InvalidFields(problems)
        return self

    @property
    def measure(self) -> dict[str, Any]:
        """The settings by name, without those of a penalty."""
        return {name: getattr(self, name) for name in DivergenceSettings.model_fields}

    @property
    def renormalises(self) -> bool:
        """Whether probabilities of the top tokens are divided by their sum."""
        if self.renormalise is not None:
            return self.renormalise
        in_releases = self.of in ("mixed", "cross_entropy")
        return self.top is not None and self.outside is None and in_releases

    @property
    def _share_of_forward(self) -> float:
        """The share of forward in a sum of forward and reverse; jsd is one of them at its ends."""
        shares = {"forward": 1.0, "mixed": self.beta, "jsd": 1 - self.beta}
        return shares.get(self.of, 0.0)

    def terms(self, logp: Tensor, logq: Tensor) -> tuple[Tensor, Tensor]:
        """The summands of the divergence, and its derivatives by log p, at each token.

        The derivative by a logit is slope_k − p_k·Σ slope. Summands of the derivative that add up
        to a multiple of p are left out, because this multiple has no part in it.

        Args:
            logp: log p, any shape.
            logq: log q, the same shape.
        """
        p, q = logp.exp(), logq.exp()
        if self.of == "cross_entropy":
            return -q * logp, -q
        if self.of == "jsd" and 0 < self.beta < 1:
            beta = self.beta
            logm = torch.logaddexp(logp + math.log(1 - beta), logq + math.log(beta))
            slope = (1 - beta) * p * (logp - logm)
            return beta * q * (logq - logm) + slope, slope
        share, forward, reverse = self._share_of_forward, q * (logq - logp), p * (logp - logq)
        return share * forward + (1 - share) * reverse, (1 - share) * reverse - share * q

    def is_infinite(self, never_p: Tensor, never_q: Tensor) -> Tensor:
        """Where a token without probability makes the divergence infinite, bool [N].

        Args:
            never_p: the tokens to which p gives none, bool [N, K].
            never_q: those to which q gives none, likewise.
        """
        share = 1.0 if self.of == "cross_entropy" else self._share_of_forward
        if self.of == "jsd" and 0 < share < 1:  # m has both
            return torch.zeros_like(never_p[..., 0])
        forward, reverse = never_p & ~never_q, never_q & ~never_p
        return (forward & (share > 0) | reverse & (share < 1)).any(-1)

    def over_vocabulary(self, logp: Tensor, logq: Tensor) -> Tensor:
        """The divergence from log-probs of the whole vocabulary, [N, V] -> [N]."""
        return self.terms(logp, logq)[0].sum(-1)

    def over_top(self, logp: Tensor, logq: Tensor, entropy: Tensor | None = None) -> Tensor:
        """The divergence from log-probs of the teacher's k most likely tokens, [N, k] -> [N].

        Args:
            logp: log p of these tokens, as parts of the whole vocabulary.
            logq: log q of these tokens, likewise.
            entropy: of p, over the whole vocabulary, [N]; for `outside`.
        """
        if self.renormalises:
            logq = logq.log_softmax(-1)
            logp = logp if self.of == "cross_entropy" else logp.log_softmax(-1)
        value = self.over_vocabulary(logp, logq)
        if self.outside is None:
            return value
        assert entropy is not None
        p = logp.exp()
        rest = -entropy - (p * logp).sum(-1) - self.outside * (1 - p.sum(-1))
        return value + (1 - self._share_of_forward) * rest
