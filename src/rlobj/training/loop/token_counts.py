"""The tokens that go through the model in a step, and those that need not."""

from __future__ import annotations

from collections import Counter

import torch

from rlobj.objectives.statistics import Comm
from rlobj.scoring.cutting import sequence_length
from rlobj.training.rollouts.sharding import Sequences


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

    def add_pass(self, real: int, padded: int, shared: bool) -> None:
        """Count a forward pass."""
        self["real"] += real
        self["padded"] += padded
        self["shared"] += padded * shared

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
