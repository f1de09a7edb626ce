"""Numbers about a rollout, over all ranks."""

from __future__ import annotations

import math

import torch

from rlobj.statistics import Comm
from rlobj.training.rollout import Rollout

__all__ = ["rollout_metrics"]


def rollout_metrics(rollout: Rollout, comm: Comm) -> dict[str, float]:
    """Reward, accuracy, length and what the grader could not decide, as sums over ranks."""
    responses = rollout.responses
    rewards = [r.reward for r in responses if not math.isnan(r.reward)]
    verdicts = [r.grade.correct for r in responses if r.grade.correct is not None]
    lengths = [len(r.sample.token_ids) for r in responses]
    local = [
        len(responses),
        len({r.group for r in responses}),
        len(rewards),
        sum(rewards),
        sum(x * x for x in rewards),
        len(verdicts),
        sum(verdicts),
        sum(lengths),
        sum(r.sample.finish == "length" for r in responses),
        rollout.dead_groups,
    ]
    total = comm.sum(torch.tensor(local, dtype=torch.float64)).tolist()
    count, groups, decided, reward, square, judged, right, tokens, cut, dead = total
    mean = reward / decided if decided else math.nan
    spread = math.sqrt(max(square / decided - mean * mean, 0.0)) if decided else math.nan
    return {
        "reward/mean": mean,
        "reward/std": spread,
        "reward/accuracy": right / judged if judged else math.nan,
        "reward/undecided": count - judged,
        "reward/groups": groups,
        "response/count": count,
        "response/length_mean": tokens / count if count else math.nan,
        "response/truncated": cut / count if count else math.nan,
        "sampling/batches": float(rollout.batches),
        "sampling/dead_groups": dead,
        "tokens/step": tokens,
    }
