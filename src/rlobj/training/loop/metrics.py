"""Numbers about a step: of its rollout over all ranks, and of its updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rlobj.objectives.statistics import Comm
from rlobj.training.rollouts.collector import Response, Rollout

__all__ = ["Sequences", "Tally", "average", "rollout_metrics", "token_count"]

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(prompt ids, response ids) of each response."""


def rollout_metrics(rollout: Rollout, comm: Comm) -> dict[str, float]:
    """Reward, accuracy and length of all that was sampled, and how much of it is trained on.

    Rewards and lengths are those of every sampled response: dynamic sampling keeps groups whose
    accuracy lies between 0 and 1, so that the kept ones alone would hide progress.
    """
    local = [*_sums([*rollout.responses, *rollout.dead]), *_sums(rollout.responses)]
    total = comm.sum(torch.tensor(local, dtype=torch.float64)).tolist()
    count, groups, decided, reward, square, judged, right, tokens, cut = total[:9]
    kept_groups, kept_tokens = total[10], total[16]
    mean = reward / decided if decided else math.nan
    spread = math.sqrt(max(square / decided - mean * mean, 0.0)) if decided else math.nan
    return {
        "reward/mean": mean,
        "reward/std": spread,
        "reward/accuracy": right / judged if judged else math.nan,
        "reward/undecided": count - judged,
        "reward/groups": kept_groups,
        "response/count": count,
        "response/length_mean": tokens / count if count else math.nan,
        "response/truncated": cut / count if count else math.nan,
        "sampling/batches": float(rollout.batches),
        "sampling/dead_groups": groups - kept_groups,
        "tokens/sampled": tokens,
        "tokens/step": kept_tokens,
    }


def _sums(responses: Sequence[Response]) -> list[float]:
    rewards = [r.reward for r in responses if not math.isnan(r.reward)]
    verdicts = [r.grade.correct for r in responses if r.grade.correct is not None]
    return [
        len(responses),
        len({r.group for r in responses}),
        len(rewards),
        sum(rewards),
        sum(reward * reward for reward in rewards),
        len(verdicts),
        sum(verdicts),
        sum(len(r.sample.tokens) for r in responses),
        sum(r.sample.finish == "length" for r in responses),
    ]


def token_count(sequences: Sequences) -> int:
    """Tokens of prompts and responses together."""
    return sum(len(prompt) + len(response) for prompt, response in sequences)


@dataclass
class Tally:
    """Tokens that a step's forward and backward passes went through, on this rank."""

    real: int = 0
    padded: int = 0
    """The same forwards, with padding."""
    trained: int = 0
    left_out: int = 0
    """Of prompts and responses, that updates had no need of."""
    scored: int = 0
    unscored: int = 0
    """Of responses, of which updates needed no logits."""

    def update(self, whole: Sequences, trained: Sequences, rows: Tensor) -> None:
        """An update.

        Args:
            whole: the mini-batch.
            trained: what of it goes through the model.
            rows: those that are scored, bool [N].
        """
        self.trained += token_count(trained)
        self.left_out += token_count(whole) - token_count(trained)
        self.scored += int(rows.sum())
        self.unscored += int((~rows).sum())

    def metrics(self, comm: Comm) -> dict[str, float]:
        """The shares over all ranks; the count begins anew."""
        counts = torch.tensor([getattr(self, field.name) for field in fields(self)])
        self.__init__()
        real, padded, trained, left_out, scored, unscored = comm.sum(counts).tolist()
        return {
            "tokens/useful_share": real / padded if padded else 1.0,
            "tokens/skipped_share": left_out / max(trained + left_out, 1),
            "tokens/skipped_logits_share": unscored / max(scored + unscored, 1),
        }


def average(every: Sequence[dict[str, float]]) -> dict[str, float]:
    """One step's metrics of its updates': means, but sums of counts and largest of extremes."""
    names = dict.fromkeys(name for metrics in every for name in metrics)
    return {name: _average(name, every) for name in names}


def _average(name: str, every: Sequence[dict[str, float]]) -> float:
    values = [metrics[name] for metrics in every if name in metrics]
    if name in ("train/skipped_updates", "objective/dropped_tokens"):
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)
