"""Weight synchronization from the trainer to the sampler, and its two checks.

Checksums compare every tensor that was sent with the tensor that arrived. They find tensors that
were skipped, dropped, permuted or old, at any learning rate. Log-probabilities of fresh samples,
computed by the sampler and by the trainer, find changes after the tensors arrived and a wrong
sampling distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from rlobj.base.errors import RunError
from rlobj.objectives import functional
from rlobj.objectives.statistics import Comm
from rlobj.samplers import Sampler, Sent, compare
from rlobj.training.parallel.agreement import largest

GAP_LIMITS = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest accepted mean of |Δ log-prob| per token, in nats, by arithmetic. Correct engines differ
by 1e-6 in float32 and by less than 0.02 in bfloat16."""


class SamplerGap(RunError):
    """The samples do not come from the policy, so they must not be trained on."""


class Synchronizer:
    """Pushes weights and checks what the sampler holds.

    Args:
        sampler: receives the weights.
        weights: returns the policy's weights of this moment; every rank iterates over all of them.
    """

    def __init__(
        self, sampler: Sampler, weights: Callable[[], Iterable[tuple[str, Tensor]]]
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._sent: Mapping[str, int] = {}
        self._version = -1

    def push(self, version: int) -> None:
        """Give the sampler the policy's weights.

        Raises:
            RunError: it does not hold them afterwards.
        """
        sent = Sent(self._weights(), self._sampler.dtype)
        try:
            self._sampler.sync(sent, version)
        finally:
            sent.drain()
        self._sent, self._version = sent.checksums, version
        self.check()

    def check(self) -> None:
        """Does the sampler still hold what was sent last?

        Raises:
            RunError: it does not.
        """
        compare(self._sent, self._version, self._sampler.received())


def sampler_gap(trainer: Tensor, sampler: Tensor, comm: Comm) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's, over all ranks.

    Tokens whose log-prob the sampler does not know (NaN) are left out. vLLM has such tokens where
    the entropy is nearly 0.

    Args:
        trainer: log π of the sampled tokens, by the trainer [N].
        sampler: by the sampler [N].
        comm: the process group.

    Returns:
        sampler/kl: mean of k3, an estimate of KL(sampler ‖ trainer), nats;
        sampler/ratio_max: largest π_trainer/π_sampler;
        sampler/logprob_gap: mean |Δ log-prob|, nats; NaN if the sampler knows none;
        sampler/nan_tokens: number of tokens that are left out.
    """
    known = ~sampler.isnan()
    trainer, sampler = trainer.detach()[known], sampler[known]
    ratio = functional.log_ratio(trainer, sampler).exp()
    gap = (trainer - sampler).abs()
    k3 = functional.k3(sampler, trainer)
    sums = torch.stack([column.double().sum() for column in (k3, gap, known, ~known)])
    kl, total, count, unknown = comm.sum(sums.cpu()).tolist()
    none = math.nan if unknown else 0.0
    return {
        "sampler/kl": kl / count if count else none,
        "sampler/ratio_max": largest(float(ratio.max()) if len(ratio) else 1.0, comm),
        "sampler/logprob_gap": total / count if count else none,
        "sampler/nan_tokens": unknown,
    }


def check_gap(
    gap: Mapping[str, float], limit: float | Literal["auto"], arithmetic: torch.dtype | None
) -> None:
    """Stop where fresh samples do not come from the policy.

    Raises:
        SamplerGap: the gap is over the limit, or not a number.
    """
    name = "float32" if arithmetic is None else str(arithmetic).removeprefix("torch.")
    most = GAP_LIMITS[name] if limit == "auto" else limit
    found = gap["sampler/logprob_gap"]
    if not found <= most:
        raise SamplerGap(
            f"the sampler does not sample from the policy: log-probs of fresh samples differ by "
            f"{found:.3g} nats a token on average; expected at most {most:g} in {name} "
            f"(largest ratio {gap['sampler/ratio_max']:.3g}). The weights of the last sync are not "
            "all in use there, or its sampling settings are others. Arithmetic that is coarser on "
            "purpose: sampling.max_logprob_gap=NUMBER.",
            finding="sampler-drift",
        )
