"""Fixed probes: a few sequences that the engine and the trainer score after each sync.

    t, e: a token's log-prob by the trainer and by the engine after this sync; t', e' after the one
    before it; t₀, e₀ after the first
    Δ = t − t'    r = (e − t) − (e₀ − t₀)
    lag λ = −Σ r Δ / Σ Δ²    error² = Σ Δ² (r + λ Δ)² / (Σ Δ²)²

An engine that follows the trainer has λ = 0, and one that stays at the weights before has λ = 1.
The weights alone do not show this: an engine may compute with copies of them, as in CUDA graphs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlobj.objectives.statistics import Comm
from rlobj.training.rollouts.sample_checks import SamplerGap
from rlobj.training.rollouts.sharding import Sequences

_MOST = 0.05
"""Largest accepted lag."""
_ERRORS = 5
"""Standard errors at which a lag is significant."""
_ROUNDING = 10
"""How far Δ must exceed the rounding e₀ − t₀ and e' − t', which is in r and in Δ: alone, λ = 1."""


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
        change, r = t - before[0], e - t - self._first
        counts = change != 0, change == 0, e != before[1]
        late = before[1] - before[0]
        columns = (*counts, change**2, self._first**2, late**2, r * change)
        sums = torch.stack([column.double().nan_to_num().sum() for column in columns])
        moved, still, followed, size, *noise, along = self._comm.sum(sums).tolist()
        self._still = self._still + 1 if moved > still and not followed else 0
        if self._still > 1:
            _refuse("did not change in two syncs, and the trainer's changed in both", 1.0)
        if size <= _ROUNDING**2 * max(noise):
            return {}
        lag = -along / size
        square = (change * (r + lag * change)).square().nan_to_num().sum()
        error = math.sqrt(float(self._comm.sum(square))) / size
        if lag > max(_MOST, _ERRORS * error):
            _refuse("do not follow the trainer's", lag)
        return {"sampler/lag": lag, "sampler/lag_error": error}


def _refuse(what: str, lag: float) -> None:
    raise SamplerGap(
        f"the engine does not use the weights of the last sync: its log-probs of fixed sequences "
        f"{what}. They lack {lag:.0%} of the change; expected 0%. Old weights may be left in "
        "CUDA graphs or packed copies. Restart the engine, then resume the run.",
        finding="sampler-drift",
    )
