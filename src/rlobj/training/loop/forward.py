"""Forward passes: sequences go through a model in micro-batches that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.ranks import largest
from rlobj.scoring import PolicyScorer, micro_batches
from rlobj.scoring.divergences import Comparison
from rlobj.scoring.packing import PASS_TOKENS, sequence_length
from rlobj.scoring.shared_prompts import PromptGroups, passes_cost
from rlobj.settings.run_config import PLAIN, RunConfig
from rlobj.training.loop.token_counts import TokenCounts, token_count
from rlobj.training.parallel import Parallel
from rlobj.training.rollouts.sharding import Sequences

TeachersOf = Callable[[list[int]], Mapping[str, Comparison]]
"""The indices of a micro-batch's sequences -> its divergences by name, each with its teacher."""


class Cut(NamedTuple):
    """Some sequences cut into micro-batches.

    Attributes:
        parts: the indices of each micro-batch's sequences.
        cost: tokens that are computed, with padding, and what the passes cost beside them.
        groups: the sequences by prompts, of which each goes through the model once in a
            micro-batch; None = whole rows.
    """

    parts: list[list[int]]
    cost: float
    groups: PromptGroups | None = None


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
        temperature: of sampling, at which tokens are scored.
        whole_rows: why prompts are computed once per response, in words; None = they are shared,
            with `training.shared_prompts=auto` where that saves tokens.
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
        self._pass_tokens = min(PASS_TOKENS, self._budget / 16)
        self._join = join
        self._sharing = config.training.shared_prompts
        self.whole_rows = whole_rows(config, scorer)
        self.temperature = config.sampling.temperature
        self._parallel, self._autocast = parallel, autocast
        self._collate, self._packed = scorer.collate, scorer.packed

    def arithmetic(self) -> torch.autocast:
        """The context of a forward pass, in which a GPU may round."""
        # A pass reads each weight once: keeping its rounded copy would only take memory.
        return torch.autocast(
            self._parallel.device.type,
            dtype=self._autocast,
            enabled=self._autocast is not None,
            cache_enabled=False,
        )

    def cut(self, sequences: Sequences, shareable: bool | None = None) -> Cut:
        """Micro-batches, equally many and of the same kind on all ranks; some may be empty.

        A forward pass may be an exchange between ranks, so all ranks must make equally many. One
        micro-batch saves the update its own forward pass, if there is a scoring pass: a quarter of
        the work, so that its padding may be a third of the tokens.

        Args:
            sequences: prompts and responses.
            shareable: whether the scorer can share prompts; None = as the policy.
        """
        comm = self._parallel.comm
        shares = self.whole_rows is None if shareable is None else shareable
        if self._sharing and shares:
            chosen = self._shared(PromptGroups(sequences))
            if self._sharing == "auto" and self._may_cost_more(chosen, sequences):
                rows = self._rows(sequences)
                costs = torch.tensor([rows.cost, chosen.cost], dtype=torch.float64)
                whole, shared = comm.sum(costs).tolist()
                chosen = rows if whole <= shared else chosen
        else:
            chosen = self._rows(sequences)
        most = max(int(largest(len(chosen.parts), comm)), 1)
        missing = most - len(chosen.parts)
        return chosen._replace(parts=chosen.parts + [[] for _ in range(missing)])

    def _may_cost_more(self, shared: Cut, sequences: Sequences) -> bool:
        """Whether whole rows may cost less than shared prompts; several ranks always compare."""
        least = sum(sequence_length(*pair) for pair in sequences)  # of whole rows
        return self._parallel.comm.size > 1 or shared.cost > least

    def _rows(self, sequences: Sequences) -> Cut:
        """Whole rows, padded or packed."""
        lengths = [sequence_length(*pair) for pair in sequences]
        padded = len(lengths) * max(lengths, default=0)
        if self._join and padded <= min(self._budget, sum(lengths) * 4 / 3):
            parts = [list(range(len(lengths)))]
        else:
            parts = micro_batches(lengths, self._budget, packed=self._packed)
        tokens = sum(lengths)
        if not self._packed:
            tokens = sum(len(part) * max(lengths[i] for i in part) for part in parts if part)
        return Cut(parts, tokens + len(parts) * self._pass_tokens)

    def _shared(self, groups: PromptGroups) -> Cut:
        """Rows that share prompts."""
        everything = list(range(len(groups.owners)))
        together, least, passes = groups.cost(everything), groups.least(), passes_cost(self._budget)
        most = max(least * 4 / 3 if self._join else 0, least + passes)
        if together <= most and groups.memory(everything) <= self._budget:
            return Cut([everything], together + passes, groups)
        parts = groups.micro_batches(self._budget)
        return Cut(parts, sum(map(groups.cost, parts)) + len(parts) * passes, groups)

    def run(
        self,
        scorer: Any,
        sequences: Sequences,
        masks: Sequence[NDArray[numpy.bool_]] | None = None,
        shareable: bool | None = None,
        teachers: TeachersOf | None = None,
        **settings: Any,
    ) -> Iterator[tuple[list[int], dict[str, Tensor], bool]]:
        """Score the response tokens, one micro-batch each time that the iterator is asked.

        Args:
            scorer: the prepared policy, or the reference.
            sequences: prompts and responses.
            masks: which tokens of each response are scored; None = all.
            shareable: whether the scorer can share prompts; None = as the policy.
            teachers: gives each micro-batch its teachers, for divergences.
            **settings: of `PolicyScorer.forward`, beside the temperature of the run.

        Yields:
            The indices of the micro-batch's sequences, the columns of their scored tokens, and
            whether it is the last one.
        """
        device = self._parallel.device
        parts, _, groups = self.cut(sequences, shareable)
        for number, part in enumerate(parts, 1):
            chosen = [sequences[i] for i in part]
            shared = groups is not None
            inputs = self._collate(chosen, device, shared)
            input_ids, attention_mask, response_mask, *rest = inputs
            assert input_ids is not None
            assert response_mask is not None
            if groups is None:
                self.counts.add_pass(token_count(chosen), input_ids.numel(), shared)
            else:
                [_, prompts, *_] = rest
                assert prompts is not None
                computed = input_ids[:, 1:].numel() + prompts.numel()
                self.counts.add_pass(groups.tokens(part), computed, shared)
            if masks is not None and part:
                rows = torch.from_numpy(numpy.concatenate([masks[i] for i in part])).to(device)
                response_mask = response_mask.masked_scatter(response_mask, rows)
            if teachers is not None:
                settings["teachers"] = teachers(part)
            with self.arithmetic():
                scores = scorer(
                    input_ids,
                    attention_mask,
                    response_mask,
                    *rest,
                    **({"temperature": self.temperature} | settings),
                )
            columns = {name: column for name, column in vars(scores).items() if column is not None}
            columns |= columns.pop("divergences", {})
            yield part, columns, number == len(parts)

    def columns(
        self,
        scorer: Any,
        sequences: Sequences,
        shareable: bool | None = None,
        **settings: Any,
    ) -> dict[str, Tensor]:
        """What `run` computes for all response tokens, in the order of the sequences."""
        chunks: dict[str, list[Any]] = {}
        for part, scores, _ in self.run(scorer, sequences, shareable=shareable, **settings):
            lengths = [len(sequences[i][1]) for i in part]
            for name, values in scores.items():
                rows = chunks.setdefault(name, [None] * len(sequences) or [values])
                for i, chunk in zip(part, values.split(lengths) if part else (), strict=True):
                    rows[i] = chunk
        return {name: torch.cat(rows) for name, rows in chunks.items()}


def whole_rows(config: RunConfig, scorer: PolicyScorer) -> str | None:
    """Why each response's prompt goes through the model with it, in words; None if prompts can be
    shared.

    Raises:
        ConfigError: `training.shared_prompts` is true, and they cannot.
    """
    sharing, reason = config.training.shared_prompts, scorer.unshareable
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")  # newer versions first
    recomputed = next((getattr(scorer.model, n) for n in names if hasattr(scorer.model, n)), False)
    if recomputed or config.training.gradient_checkpointing is True:
        reason = "recomputation (training.gradient_checkpointing) keeps no keys and values"
    if sharing is True and reason:
        raise ConfigError(
            f"prompts cannot be shared: {reason}. Expected training.shared_prompts auto or false"
        )
    return reason if sharing else "training.shared_prompts is false"
