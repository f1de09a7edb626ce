"""Numbers about a rollout, over all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rlobj.statistics import Comm
from rlobj.training.rollout import Response, Rollout

__all__ = ["rollout_metrics"]


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
        sum(len(r.sample.token_ids) for r in responses),
        sum(r.sample.finish == "length" for r in responses),
    ]
