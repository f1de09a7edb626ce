"""Check that an engine follows the trainer, by a few sequences that both score after each sync.

    t, e: a token's log-prob by the trainer and by the engine after this sync; t', e' after the one
    before it; t₀, e₀ after the first
    Δ = t − t'    r = (e − t) − (e₀ − t₀)
    lag λ = −Σ r sgn(Δ) / Σ |Δ|
    error² = Σ (Σ (r + λ Δ) sgn(Δ) over a sequence)² / (Σ |Δ|)²

An engine that follows the trainer has λ = 0, and one that stays at the weights before has λ = 1.
The weights alone do not show this: an engine may compute with copies of them, as in CUDA graphs.
In bfloat16, much of Δ is rounding. If r = e − t, rounding alone has λ = 1/2: t and t' have the same
part in (e − t) + Δ/2. So λ is also taken over many syncs, with this r, and compared with 1/2.
"""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from rlobj.objectives.statistics import Comm
from rlobj.training.rollouts.sample_checks import ERRORS, SamplerGap
from rlobj.training.rollouts.sharding import Sequences

_MOST = 0.05
"""Largest accepted lag."""
_ROUNDING = 10
"""How far Δ must exceed the rounding e₀ − t₀ and e' − t', which is in r and in Δ: alone, λ = 1."""
_PROBE_DRIFT = 5
"""How much larger than before rounding may be: without a lag, λ is about as large as |r| / |Δ|."""
_SYNCS = 40
"""Syncs that are taken together: those with Σ Δ² above Σ (e₀ − t₀)²."""


class Probes:
    """Compares the changes of the trainer and the engine from sync to sync.

    Args:
        comm: the process group; each rank has an engine of its own, or asks a server.

    Attributes:
        sequences: (prompt, response) pairs, which do not change after the first sync.
    """

    def __init__(self, comm: Comm) -> None:
        self.sequences: Sequences = []
        self._comm = comm
        self._first: Tensor | None = None  # e₀ − t₀
        self._last: tuple[Tensor, Tensor] | None = None  # t', e'
        self._still = 0  # syncs in a row in which only the trainer changed
        self._window: deque[Tensor] = deque(maxlen=_SYNCS)  # moments of r = e − t

    def check(self, trainer: Tensor, engine: Tensor) -> dict[str, float]:
        """Compare log-probs after a sync, [N] each; all ranks call this together.

        Returns:
            sampler/lag and sampler/lag_error, if the trainer has changed by more than rounding.

        Raises:
            SamplerGap: the engine does not follow the trainer.
        """
        t, e = trainer.double().cpu(), engine.double().cpu()
        if self._first is None or self._last is None:
            self._first, self._last = e - t, (t, e)
            return {}
        before, self._last = self._last, (t, e)
        change, late = t - before[0], before[1] - before[0]
        counts = change != 0, change == 0, e != before[1]
        columns = (*counts, change**2, self._first**2, late**2)
        sums = torch.stack([column.double().nan_to_num().sum() for column in columns])
        moments = [self._moments(r, change) for r in (e - t - self._first, e - t)]
        sums = self._comm.sum(torch.cat([sums, *moments]))
        moved, still, followed, size, first, noise = sums[:6].tolist()
        now, offset_too = sums[6:].view(2, -1)
        self._still = self._still + 1 if moved > still and not followed else 0
        if self._still > 1:
            _refuse("did not change in two syncs, and the trainer's changed in both", 1.0)
        if size > first:
            self._window.append(offset_too)
            lag, error = _lag(torch.stack([*self._window]).sum(0), about=0.5)
            _accept(lag, 0.5 + max(_MOST, ERRORS * error))
        rounding = max(first, noise)
        if size <= _ROUNDING**2 * rounding:
            return {}
        lag, error = _lag(now)
        _accept(lag, max(_MOST, ERRORS * error, _PROBE_DRIFT * math.sqrt(rounding / size)))
        return {"sampler/lag": lag, "sampler/lag_error": error}

    def _moments(self, r: Tensor, change: Tensor) -> Tensor:
        """Σ m, Σ x, Σ m², Σ m x, Σ x² over sequences, m = Σ |Δ| and x = Σ r sgn(Δ) of one."""
        lengths = [len(response) for _, response in self.sequences] or [len(change)]
        parts = torch.stack([change.abs(), r * change.sign()]).nan_to_num().split(lengths, 1)
        m, x = torch.stack([part.sum(1) for part in parts], 1)
        return torch.stack([m.sum(), x.sum(), m @ m, m @ x, x @ x])


def _lag(moments: Tensor, about: float | None = None) -> tuple[float, float]:
    """λ and its error, the spread of sequences about λ or another number."""
    m, x, mm, mx, xx = moments.tolist()
    lag = -x / m
    about = lag if about is None else about
    return lag, math.sqrt(max(xx + 2 * about * mx + about**2 * mm, 0.0)) / m


def _accept(lag: float, most: float) -> None:
    if lag > most:
        _refuse("do not follow the trainer's", lag)


def _refuse(what: str, lag: float) -> None:
    raise SamplerGap(
        f"the engine does not use the weights of the last sync: its log-probs of fixed sequences "
        f"{what}. They lack {lag:.0%} of the change; expected 0%. Old weights may be left in "
        "CUDA graphs or packed copies. Restart the engine, then resume the run.",
        finding="sampler-drift",
    )
