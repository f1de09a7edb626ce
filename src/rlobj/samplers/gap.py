"""A sampler samples from the policy: checked by the log-probs of fresh samples."""

import math
from typing import Literal

import torch

from rlobj.base.errors import RunError

LIMITS = {"float32": 1e-3, "bfloat16": 0.1}
"""The largest accepted gap, nats. Those of correct engines stay ten times below."""
_NOISE = {"float32": 1e-5, "bfloat16": 0.03}
"""Gaps up to this one are rounding, however small the run's first gap was, nats."""
_DRIFT = 10
"""Largest accepted multiple of the run's first gap."""


class SamplerGap(RunError):
    """The samples do not come from the policy, so they must not be trained on."""


def check_gap(
    gap: float,
    limit: float | Literal["auto"],
    arithmetic: torch.dtype | None,
    first: float | None = None,
) -> None:
    """Stop where fresh samples do not come from the policy.

        gap = mean |sampler's log-prob − trainer's|

    In bfloat16, temperature 0.9 and top-p 0.95 have gaps of 0.02 nats, as healthy engines of large
    models: they are not found.

    Args:
        gap: of `runs.loss_metrics.sampler_gap`, nats.
        limit: of the gap, nats.
        arithmetic: of the policy; None = float32.
        first: the run's first gap, nats; None = this is it.

    Raises:
        SamplerGap: they do not, or the gap is not a number.
    """
    name = "float32" if arithmetic is None else str(arithmetic).removeprefix("torch.")
    if limit == "auto":
        drift = math.inf if first is None else _DRIFT * first
        limit = min(LIMITS[name], max(_NOISE[name], drift))
    if not gap <= limit:
        raise SamplerGap(
            "the sampler does not sample from the policy: log-probs of fresh samples differ by "
            f"{gap:.3g} nats a token on average; expected at most {limit:.2g} in {name}. It has "
            "other weights, another temperature, or only a part of the tokens (top_p, top_k, "
            "min_p). To accept it, use sampling.max_logprob_gap=NUMBER.",
            finding="sampler-drift",
        )
