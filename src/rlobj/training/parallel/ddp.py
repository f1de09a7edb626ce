"""The strategy ddp: one process, or torch's DistributedDataParallel over several."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from rlobj.scoring import PolicyScorer, TokenScores, pad_sequences
from rlobj.training.parallel.strategies import Columns, Parallel, Scorer


class Replicated(Parallel):
    """Plain training in one process; data parallelism in several."""

    def prepare(self, scorer: PolicyScorer, optimizer: torch.optim.AdamW) -> Scorer:
        self._optimizer = optimizer
        self._module = self.accelerator.prepare_model(Columns(scorer))
        if self.size > 1:
            self._arrange_buckets()
        return self._score

    def _arrange_buckets(self) -> None:
        """Run a first backward pass, after which DDP arranges its buckets.

        With three or more ranks, sums depend on this arrangement. A resumed run must compute the
        same sums as an uninterrupted one.
        """
        scores = self._score(*pad_sequences([], self.device))
        self.backward(scores.logprobs.sum() * 0, last=True)
        self._optimizer.zero_grad()

    def _score(self, *inputs: Tensor, **settings: Any) -> TokenScores:
        with self.accelerator.no_sync(self._module):  # `backward` decides when to reduce gradients
            return super()._score(*inputs, **settings)

    def backward(self, loss: Tensor, last: bool) -> None:
        sync = self.accelerator.trigger_sync_in_backward(self._module)
        with sync if last else contextlib.nullcontext():
            super().backward(loss, last)
