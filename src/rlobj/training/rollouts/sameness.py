"""How alike the responses of a step are: metrics that the diagnosis reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from zlib import crc32

import torch
from torch import Tensor

from rlobj.insight.diagnosis import agreed
from rlobj.objectives.statistics import Comm
from rlobj.training.rollouts.collector import Response, Rollout

BUCKETS = 4096
"""Texts are counted by a hash of this many values, so that ranks can add their counts."""


def sameness_metrics(rollout: Rollout, comm: Comm) -> dict[str, float]:
    """Metrics over all sampled responses, also those that dynamic sampling left out.

    Args:
        rollout: this rank's.
        comm: the process group.

    Returns:
        response/truncated_right: share of right ones among decided responses that were cut; NaN if
            none was cut;
        response/most_common: share of responses that have the most common text;
        response/most_common_gold: share of responses whose problem has the most common gold answer;
        groups/agreed_right, groups/agreed_wrong: number of groups of at least three responses, none
            of them cut, that all give the same answer, by its grade.
    """
    responses = [*rollout.responses, *rollout.dead]
    cut = [r.grade.correct for r in responses if r.sample.finish == "length"]
    verdicts = [_agreed(list(group)) for _, group in groupby(responses, lambda r: r.group)]
    counts = [
        sum(verdict is True for verdict in cut),
        sum(verdict is not None for verdict in cut),
        sum(verdict is True for verdict in verdicts),
        sum(verdict is False for verdict in verdicts),
    ]
    texts = _histogram(r.sample.text for r in responses)
    golds = _histogram(r.problem.answer for r in responses)
    whole = comm.sum(torch.cat([torch.tensor(counts), texts, golds]))
    right, judged, agreed_right, agreed_wrong = whole[: len(counts)].tolist()
    texts, golds = whole[len(counts) :].split(BUCKETS)
    total = int(texts.sum())
    return {
        "response/truncated_right": right / judged if judged else math.nan,
        "response/most_common": int(texts.max()) / total if total else math.nan,
        "response/most_common_gold": int(golds.max()) / total if total else math.nan,
        "groups/agreed_right": float(agreed_right),
        "groups/agreed_wrong": float(agreed_wrong),
    }


def _agreed(group: Sequence[Response]) -> bool | None:
    if any(r.sample.finish == "length" for r in group):
        return None
    return agreed([r.grade.answer for r in group], [r.grade.correct for r in group])


def _histogram(texts: Iterable[str]) -> Tensor:
    """The number of texts with each hash, int64 [BUCKETS]."""
    counts = torch.zeros(BUCKETS, dtype=torch.int64)
    for text, number in Counter(texts).items():
        counts[crc32(text.encode(errors="surrogatepass")) % BUCKETS] += number
    return counts
