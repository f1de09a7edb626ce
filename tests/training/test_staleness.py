"""The versions of tokens in a run whose samples are older than the weights that train on them."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks
from tiny import tiny_config

from rlobj import read_tables
from rlobj.rewards import Graded
from rlobj.samplers import Response
from rlobj.training import run_training
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import shard


def sampled(number: int, *versions: tuple[int, int]) -> Response:
    """A response with (version, tokens) of each run of its tokens."""
    size, grade = sum(tokens for _, tokens in versions), Graded(1.0, True, "", None)
    facts = {"id": number, "group": number // 2, "grade": grade, "versions": versions}
    ids, last = [number] * size, versions[-1][0] if versions else 0
    return Response([1], ids, [-1.0] * size, "", "stop", last, **facts)


RESPONSES = [
    sampled(0, (3, 4), (5, 1)),
    sampled(1, (5, 2)),
    sampled(2, (2, 1), (3, 1), (4, 6)),
    sampled(3, (0, 0)),
]
EXPECTED = {0: [3] * 4 + [5], 1: [5] * 2, 2: [2, 3] + [4] * 6, 3: []}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_each_token_keeps_the_version_that_drew_it_on_any_rank(policy, ranks):
    config = tiny_config(policy, "dapo-loss")
    shares = [RESPONSES, *[[]] * (ranks - 1)]

    def tables(comm):
        rollout = Rollout(shares[comm.rank], [], 1, {}, {})
        return shard(rollout, config, comm, torch.device("cpu"), step=6).table

    found = {}
    for table in on_ranks(ranks, tables):
        assert table.version == 6
        versions = [part.tolist() for part in table.versions.split(table.lengths.tolist())]
        found |= dict(zip(table.ids.tolist(), versions, strict=True))
    assert found == EXPECTED


@pytest.mark.parametrize(("depth", "stale"), [(0, [0, 0, 0, 0]), (2, [0, 1, 2, 2])])
def test_staleness_counts_the_steps_since_the_weights_that_sampled(policy, tmp_path, depth, stale):
    config = tiny_config(
        policy,
        "dapo-loss",
        sampling={"async_depth": depth},
        objective={"drop": "staleness > 1"},
        training={"steps": 4},
        output={"tables_every": 1},
    )
    run_training(config, tmp_path / "run")
    updates = list(read_tables(tmp_path / "run"))
    assert [{*update.table.column("staleness", "").tolist()} for update in updates] == [
        {age} for age in stale
    ]
    assert [bool(update.weights.any()) for update in updates if update.step > 2] == [depth == 0] * 2
