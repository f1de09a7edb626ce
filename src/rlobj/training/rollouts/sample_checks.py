"""Check that fresh samples come from the policy, by their log-probabilities.

    d = sampler's log-prob − trainer's    u = trainer's log-prob + entropy

gap: mean |d|. It shows weights or arithmetic that are not the trainer's.
bias: mean d. With top-k, top-p or min-p, d = −log(probability that is kept) ≥ 0 at every token, so
    that the bias is near the gap.
excess: Σ (p − C) / Σ (C^1.5 − C²), where p is the policy's probability of the token. C = Σ p² is
    the mean of p if the token comes from the policy; the variance of p is at most C^1.5 − C². The
    choice of tokens shows a colder or truncated distribution, whatever log-probs are reported.
slope: of d in u. A sampler at temperature T' instead of T has d ≈ (T/T' − 1) u.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from rlobj.base.errors import RunError
from rlobj.objectives.statistics import Comm
from rlobj.runs.sampler_metrics import sampler_gap
from rlobj.settings.sampling import SamplingConfig


class SamplerGap(RunError):
    """The samples do not come from the policy, so they must not be trained on."""


LIMITS = {
    "float32": {"bias": 1e-4, "slope": 3e-3, "excess": 0.1, "gap": 1e-3},
    "bfloat16": {"bias": 3e-3, "slope": 0.03, "excess": 0.1, "gap": 0.1},
}
"""The largest accepted numbers, |slope| for the slope. Bias, slope and gap of correct engines stay
ten times below. Temperature 0.9 has an excess of about 0.3, and top-p 0.95 one of about 0.8."""
_NOISE = {"float32": 1e-5, "bfloat16": 0.03}
"""Gaps up to this one are rounding, however small the run's first gap was, nats."""
_DRIFT = 10
"""Largest accepted multiple of the run's first gap."""
_MEMORY = 0.5
"""Weight of the evidence of the steps before, per step."""
ERRORS = 5
"""Standard errors at which a bias, a slope or an excess is significant."""
_ONE_SIDED, _TRUNCATION = 0.8, 3.0
"""Smallest share of the gap, and limit in nats, of a bias that comes from top-p, top-k or min-p."""


class SampleChecks:
    """The checks of a run's samples, step by step.

    Args:
        settings: of the run.
        arithmetic: of the policy; None = float32.
        comm: the process group.
    """

    def __init__(
        self, settings: SamplingConfig, arithmetic: torch.dtype | None, comm: Comm
    ) -> None:
        self._settings, self._arithmetic, self._comm = settings, arithmetic, comm

    def compare(
        self,
        columns: Mapping[str, Any],
        sampler: Any,
        state: dict[str, Any],
        *,
        drawn: bool = False,
        whole: bool = True,
    ) -> dict[str, float]:
        """The numbers of `sampler_gap`; if the samples are fresh, they are checked.

        Args:
            columns: the policy's logprobs, entropy and collision of the samples' tokens [N].
            sampler: log-probs by the sampler [N].
            state: of the run; keeps the first gap, and the evidence of an excess.
            drawn: the samples were just drawn from the policy's present weights. A rollout was,
                too, unless rollouts are sampled ahead.
            whole: they were not selected by what was drawn, so that the excess has a meaning.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        gap = sampler_gap(columns["logprobs"], sampler, self._comm, columns["entropy"])
        if self._settings.async_depth and not drawn:
            return gap
        if whole and columns["collision"] is not None:
            gap |= self._excess(columns["logprobs"], columns["collision"], state)
        settings, first = self._settings, state.get("sampler_gap") or math.inf
        check_gap(gap, settings.max_logprob_gap, self._arithmetic, first, settings.temperature)
        state["sampler_gap"] = state.get("sampler_gap") or gap["sampler/logprob_gap"]
        return gap

    def _excess(
        self, logprobs: Tensor, collision: Tensor, state: dict[str, Any]
    ) -> dict[str, float]:
        """The excess over the last steps; its standard error is at most 1 / √Σ (C^1.5 − C²)."""
        p, c = logprobs.detach().double().exp(), collision.double()
        sums = torch.stack([(p - c).sum(), (c**1.5 - c**2).clamp(min=0).sum()])
        now, before = self._comm.sum(sums.cpu()).tolist(), state.get("sampler_excess", (0.0, 0.0))
        excess, variance = (new + _MEMORY * old for new, old in zip(now, before, strict=True))
        state["sampler_excess"] = [excess, variance]
        if not variance > 0:
            return {}
        return {"sampler/excess": excess / variance, "sampler/excess_error": variance**-0.5}


def check_gap(
    gap: Mapping[str, float],
    limit: float | Literal["auto"],
    arithmetic: torch.dtype | None,
    first: float = math.inf,
    temperature: float = 1.0,
) -> None:
    """Stop where fresh samples do not come from the policy.

    Args:
        gap: from `sampler_gap`.
        limit: of the gap, nats. With a number, it is the only check.
        arithmetic: of the policy; None = float32.
        first: the run's first gap, nats.
        temperature: of the samples that were asked for.

    Raises:
        SamplerGap: they do not, or the gap is not a number.
    """
    name = "float32" if arithmetic is None else str(arithmetic).removeprefix("torch.")
    difference, limits = gap["sampler/logprob_gap"], LIMITS[name]

    def significant(number: str) -> float:
        """The number if it is far from 0 for its standard error; else 0."""
        value, error = (gap.get(f"sampler/{number}{end}", 0.0) for end in ("", "_error"))
        return value if abs(value) > ERRORS * error else 0.0

    if limit == "auto":
        bias, slope, excess = map(significant, ("bias", "slope", "excess"))
        if not bias <= (most := max(limits["bias"], difference / 2)):
            _refuse(
                f"log-probs of fresh samples are {bias:.3g} nats higher there on average; expected "
                f"at most {most:.2g} in {name}. {_cause(bias, difference)}"
            )
        if not abs(slope) <= limits["slope"]:
            _refuse(
                f"log-probs of fresh samples change by {1 + slope:.3f} nats there for each nat of "
                f"the trainer's; expected 1 ± {limits['slope']:.2g} in {name}. Its temperature is "
                f"about {temperature / (1 + slope):.2g}; expected {temperature:g}."
            )
        if not excess <= limits["excess"]:
            _refuse(
                f"it chooses tokens that are too likely, with an excess of {excess:.2g}; expected "
                f"at most {limits['excess']:.2g}. The log-probs that it reports are not those that "
                "it draws from. Its temperature is lower, or top_p, top_k or min_p is set."
            )
        limit = min(limits["gap"], max(_NOISE[name], _DRIFT * first))
    if not difference <= limit:
        _refuse(
            f"log-probs of fresh samples differ by {difference:.3g} nats a token on average, and "
            f"by {difference if math.isinf(first) else first:.2g} in the first step; expected at "
            f"most {limit:.2g} in {name}. The largest ratio is {gap['sampler/ratio_max']:.3g}. The "
            "weights of the last sync are not all in use there, or its settings are others."
        )


def _refuse(what: str) -> None:
    raise SamplerGap(
        f"the sampler does not sample from the policy: {what} Arithmetic that is coarser on "
        "purpose: sampling.max_logprob_gap=NUMBER.",
        finding="sampler-drift",
    )


def _cause(bias: float, gap: float) -> str:
    """What a bias comes from: top-p and the like raise every log-prob, by a few nats at most."""
    if _ONE_SIDED * gap <= bias < _TRUNCATION:
        return (
            "It draws from a part of the policy's tokens only. Remove top_p, top_k, min_p and "
            "other limits from its sampling settings."
        )
    seen = "Some are lower" if bias < _ONE_SIDED * gap else "No top_p or top_k does so much"
    return f"{seen}. The model's settings are others there, or its weights are not all in use."
