"""Forward passes: sequences go through a model in micro-batches that fit in memory."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlobj.objectives.statistics import Comm
from rlobj.ranks import largest
from rlobj.scoring.cutting import Cut, cut_sequences, sequence_length
from rlobj.scoring.divergences import Comparison
from rlobj.scoring.policy_scorer import TrunkScorer
from rlobj.settings.run_config import PLAIN, RunConfig
from rlobj.training.parallel import Parallel
from rlobj.training.rollouts.sharding import Sequences

TeachersOf = Callable[[list[int]], Mapping[str, Comparison]]
"""The indices of a micro-batch's sequences -> its divergences by name, each with its teacher."""


def token_count(sequences: Sequences) -> int:
    """Tokens of prompts and responses together."""
    return sum(sequence_length(*pair) for pair in sequences)


class TokenCounts(Counter[str]):
    """Tokens that went through the model in a step, on this rank.

    real, padded: computed in all forward passes, without and with padding;
    shared: computed, with padding, in passes where responses share their prompts;
    trained, left_out: prompt and response tokens of updates that went through the model, or not;
    scored, unscored: response tokens of updates whose logits were computed, or not.
    """

    def add_update(self, whole: Sequences, trained: Sequences, scored: int) -> None:
        """Count an update.

        Args:
            whole: the mini-batch.
            trained: the part of it that goes through the model.
            scored: response tokens whose logits are computed.
        """
        tokens = token_count(trained)
        self["trained"] += tokens
        self["left_out"] += token_count(whole) - tokens
        self["scored"] += scored
        self["unscored"] += sum(len(response) for _, response in whole) - scored

    def metrics(self, comm: Comm) -> dict[str, float]:
        """The shares over all ranks; the counts start again at 0."""
        names = ("real", "padded", "shared", "trained", "left_out", "scored", "unscored")
        counts = torch.tensor([self[name] for name in names])
        self.clear()
        real, padded, shared, trained, left_out, scored, unscored = comm.sum(counts).tolist()
        return {
            "tokens/computed": float(padded),
            "tokens/shared_share": shared / padded if padded else 0.0,
            "tokens/useful_share": real / padded if padded else 1.0,
            "tokens/skipped_share": left_out / max(trained + left_out, 1),
            "tokens/skipped_logits_share": unscored / max(scored + unscored, 1),
        }


class ForwardPasses:
    """Scores response tokens, as all forward passes of a run do.

    Args:
        config: the run.
        parallel: the processes.
        scorer: makes the inputs, packed or padded.
        autocast: arithmetic of the forward passes; None = the weights' own.
        join: sequences go through the model at once where that saves a pass.

    Attributes:
        budget: padded tokens of a micro-batch.
        counts: tokens that went through the model since the last step.
        temperature: of sampling, at which tokens are scored.
        whole_rows: why prompts are computed once per response, in words; None = they are shared,
            with `training.shared_prompts=auto` where that saves tokens.
    """

    def __init__(
        self,
        config: RunConfig,
        parallel: Parallel,
        scorer: TrunkScorer,
        autocast: torch.dtype | None,
        join: bool,
    ) -> None:
        self.counts = TokenCounts()
        budget = config.training.micro_batch_tokens
        self.budget = PLAIN["training.micro_batch_tokens"] if budget == "auto" else budget
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
        comm, settings = self._parallel.comm, {"packed": self._packed, "join": self._join}
        shares = self._sharing and (self.whole_rows is None if shareable is None else shareable)
        cut = cut_sequences(sequences, self.budget, shared=bool(shares), **settings)
        # Whole rows cost at least their tokens. Several processes sum the costs, so they compare.
        may_cost_more = comm.size > 1 or cut.cost > token_count(sequences)
        if shares and self._sharing == "auto" and may_cost_more:
            rows = cut_sequences(sequences, self.budget, **settings)
            costs = torch.tensor([rows.cost, cut.cost], dtype=torch.float64)
            whole, shared = comm.sum(costs).tolist()
            cut = rows if whole <= shared else cut
        missing = max(int(largest(len(cut.parts), comm)), 1) - len(cut.parts)
        return cut._replace(
            parts=cut.parts + [[] for _ in range(missing)], tokens=cut.tokens + [0] * missing
        )

    def run(
        self,
        scorer: Any,
        sequences: Sequences,
        masks: Sequence[NDArray[numpy.bool_]] | None = None,
        shareable: bool | None = None,
        cut: Cut | None = None,
        teachers: TeachersOf | None = None,
        **settings: Any,
    ) -> Iterator[tuple[list[int], dict[str, Tensor], bool]]:
        """Score the response tokens, one micro-batch each time that the iterator is asked.

        Args:
            scorer: the prepared policy, or the reference.
            sequences: prompts and responses.
            masks: which tokens of each response are scored; None = all.
            shareable: whether the scorer can share prompts; None = as the policy.
            cut: of the sequences, if it is known.
            teachers: gives each micro-batch its teachers, for divergences.
            **settings: of `PolicyScorer.forward`, beside the temperature of the run.

        Yields:
            The indices of the micro-batch's sequences, the columns of their scored tokens, and
            whether it is the last one.
        """
        device = self._parallel.device
        cut = cut or self.cut(sequences, shareable)
        for number, (part, real) in enumerate(zip(cut.parts, cut.tokens, strict=True), 1):
            chosen = [sequences[i] for i in part]
            inputs: tuple[Any, ...] = self._collate(chosen, device, cut.shared)
            input_ids, attention_mask, response_mask, *rest = inputs
            computed = input_ids.numel()
            if cut.shared:  # the prompts, and all but the last tokens of the responses
                computed = input_ids[:, 1:].numel() + rest[1].numel()
            self.counts.update(real=real, padded=computed, shared=computed * cut.shared)
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
            yield part, columns, number == len(cut.parts)

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


def whole_rows(config: RunConfig, scorer: TrunkScorer) -> str | None:
    """Why each response's prompt goes through the model with it, in words; None if prompts can be
    shared."""
    sharing, reason = config.training.shared_prompts, scorer.unshareable
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")  # newer versions first
    recomputed = next((getattr(scorer.model, n) for n in names if hasattr(scorer.model, n)), False)
    if recomputed or config.training.gradient_checkpointing is True:
        reason = "recomputation (training.gradient_checkpointing) keeps no keys and values"
    return reason if sharing else "training.shared_prompts is false"
