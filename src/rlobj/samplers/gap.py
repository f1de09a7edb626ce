"""A sampler samples from the policy: checked by the log-probs of fresh samples."""

import math
from collections.abc import Mapping
from typing import Literal

import torch

from rlobj.base.errors import RunError

LIMITS = {
    "float32": {"bias": 1e-4, "slope": 3e-3, "gap": 1e-3},
    "bfloat16": {"bias": 3e-3, "slope": 0.03, "gap": 0.1},
}
"""The largest accepted numbers, |slope| for the slope. Those of correct engines stay ten times
below. In bfloat16, temperature 0.9 and top-p 0.95 have gaps of 0.02 nats, as healthy engines of
large models: the slope and the bias show them."""
_NOISE = {"float32": 1e-5, "bfloat16": 0.03}
"""Gaps up to this one are rounding, however small the run's first gap was, nats."""
_DRIFT = 10
"""Largest accepted multiple of the run's first gap."""
ERRORS = 5
"""Standard errors at which a bias or a slope is significant."""


class SamplerGap(RunError):
    """The samples do not come from the policy, so they must not be trained on."""


def check_gap(
    gap: Mapping[str, float],
    limit: float | Literal["auto"],
    arithmetic: torch.dtype | None,
    first: float | None = None,
) -> None:
    """Stop where fresh samples do not come from the policy.

        d = sampler's log-prob − trainer's    u = trainer's log-prob + entropy

    gap: mean |d|. It shows weights or arithmetic that are not the trainer's.
    bias: mean d. With top-k, top-p or min-p, d = −log(probability that is kept) ≥ 0 at every token,
        so that the bias is near the gap.
    slope: of d in u. A sampler at temperature T' instead of T has d ≈ (T/T' − 1) u.

    Args:
        gap: from `runs.loss_metrics.sampler_gap`.
        limit: of the gap, nats. With a number, it is the only check.
        arithmetic: of the policy; None = float32.
        first: the run's first gap, nats; None = this is it.

    Raises:
        SamplerGap: they do not, or the gap is not a number.
    """
    name = "float32" if arithmetic is None else str(arithmetic).removeprefix("torch.")
    difference, limits = gap["sampler/logprob_gap"], LIMITS[name]
    if limit == "auto":
        bias, slope = (_significant(gap, number) for number in ("bias", "slope"))
        if bias > (most := max(limits["bias"], difference / 2)):
            _refuse(
                f"are {bias:.3g} nats higher there on average; expected at most {most:.2g}. It "
                "draws from a part of the policy's tokens only (top_p, top_k, min_p)"
            )
        if abs(slope) > limits["slope"]:
            _refuse(
                f"change by {1 + slope:.3f} nats there for each nat of the trainer's. Its "
                f"temperature is {1 / (1 + slope):.2g} times the one that was asked for"
            )
        drift = math.inf if first is None else _DRIFT * first
        limit = min(limits["gap"], max(_NOISE[name], drift))
    if not difference <= limit:
        _refuse(
            f"differ by {difference:.3g} nats a token on average; expected at most {limit:.2g} in "
            f"{name}. The weights of the last sync are not all in use there"
        )


def _significant(gap: Mapping[str, float], number: str) -> float:
    """A number of the gap if it is far from 0 for its standard error; else 0."""
    value, error = (gap.get(f"sampler/{number}{end}", 0.0) for end in ("", "_error"))
    return value if abs(value) > ERRORS * error else 0.0


def _refuse(what: str) -> None:
    raise SamplerGap(
        f"the sampler does not sample from the policy: log-probs of fresh samples {what}. To "
        "accept it, use sampling.max_logprob_gap=NUMBER.",
        finding="sampler-drift",
    )
