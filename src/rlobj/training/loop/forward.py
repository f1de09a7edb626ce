"""Forward passes: sequences go through a model in micro-batches that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.ranks import largest
from rlobj.scoring import PolicyScorer, micro_batches
from rlobj.scoring.packing import sequence_length
from rlobj.settings.run_config import PLAIN, RunConfig
from rlobj.training.loop.token_counts import TokenCounts
from rlobj.training.parallel import Parallel
from rlobj.training.rollouts.sharding import Sequences


class ForwardPasses:
    """Scores response tokens, as all forward passes of a run do.

    Args:
        config: the run.
        parallel: the processes.
        scorer: makes the inputs, packed or padded.
        autocast: arithmetic of the forward passes; None = the weights' own.
        join: sequences go through the model at once where that saves a pass.

    Attributes:
        counts: tokens that went through the model since the last step.
    """

    def __init__(
        self,
        config: RunConfig,
        parallel: Parallel,
        scorer: PolicyScorer,
        autocast: torch.dtype | None,
        join: bool,
    ) -> None:
        self.counts = TokenCounts()
        budget = config.training.micro_batch_tokens
        self._budget = PLAIN["training.micro_batch_tokens"] if budget == "auto" else budget
        self._join = join
        self._usual = {"temperature": config.sampling.temperature}
        self._parallel, self._autocast = parallel, autocast
        self._collate, self._packed = scorer.collate, scorer.packed

    def parts(self, sequences: Sequences) -> list[list[int]]:
        """Micro-batches as indices of sequences, equally many on all ranks; some may be empty.

        A forward pass may be an exchange between ranks, so all ranks must make equally many. One
        micro-batch saves the update its own forward pass, if there is a scoring pass: a quarter of
        the work, so that its padding may be a third of the tokens.
        """
        lengths = [sequence_length(*pair) for pair in sequences]
        padded = len(lengths) * max(lengths, default=0)
        if self._join and padded <= min(self._budget, sum(lengths) * 4 / 3):
            parts = [list(range(len(lengths)))]
        else:
            parts = micro_batches(lengths, self._budget, packed=self._packed)
        most = max(int(largest(len(parts), self._parallel.comm)), 1)
        return parts + [[] for _ in range(most - len(parts))]

    def run(
        self,
        scorer: Any,
        sequences: Sequences,
        masks: Sequence[Tensor] | None = None,
        **settings: Any,
    ) -> Iterator[tuple[list[int], dict[str, Tensor], bool]]:
        """Score the response tokens, one micro-batch each time that the iterator is asked.

        Args:
            scorer: the prepared policy, or the reference.
            sequences: prompts and responses.
            masks: which tokens of each response are scored; None = all.
            **settings: of `score_tokens`, beside the temperature of the run.

        Yields:
            The indices of the micro-batch's sequences, the columns of their scored tokens, and
            whether it is the last one.
        """
        device = self._parallel.device
        parts = self.parts(sequences)
        for number, part in enumerate(parts, 1):
            chosen = [sequences[i] for i in part]
            input_ids, attention_mask, response_mask, *rest = self._collate(chosen, device)
            assert input_ids is not None
            assert response_mask is not None
            self.counts.add_pass(chosen, input_ids.numel())
            if masks is not None and part:
                rows = torch.cat([masks[i] for i in part])
                response_mask = response_mask.masked_scatter(response_mask, rows)
            # A pass reads each weight once: keeping its rounded copy would only take memory.
            with torch.autocast(
                device.type,
                dtype=self._autocast,
                enabled=self._autocast is not None,
                cache_enabled=False,
            ):
                scores = scorer(
                    input_ids, attention_mask, response_mask, *rest, **(self._usual | settings)
                )
            columns = {name: column for name, column in vars(scores).items() if column is not None}
            yield part, columns, number == len(parts)

    def columns(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        """What `run` computes for all response tokens, in the order of the sequences."""
        chunks: dict[str, list[Any]] = {}
        for part, scores, _ in self.run(scorer, sequences, **settings):
            lengths = [len(sequences[i][1]) for i in part]
            for name, values in scores.items():
                rows = chunks.setdefault(name, [None] * len(sequences) or [values])
                for i, chunk in zip(part, values.split(lengths) if part else (), strict=True):
                    rows[i] = chunk
        return {name: torch.cat(rows) for name, rows in chunks.items()}
