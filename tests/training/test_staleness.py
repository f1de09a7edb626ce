"""The versions of tokens in a run whose samples are older than the weights that train on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import on_ranks
from runs import metrics, open_trainer
from tiny import eight_steps, tiny_config

from rlobj import read_tables
from rlobj.base.errors import RunError
from rlobj.rewards import Graded
from rlobj.samplers import Response
from rlobj.training import run_training
from rlobj.training.loop.metrics import rollout_metrics
from rlobj.training.loop.step import run_step
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


@pytest.mark.parametrize("shares", [[4], [1, 3], [0, 2, 2]])
def test_metrics_count_the_tokens_of_all_ranks(shares):
    left, held = list(RESPONSES), []
    for share in shares:
        held.append([left.pop(0) for _ in range(share)])

    def measured(step):
        kept = lambda comm: Rollout(held[comm.rank], [], 1, {}, {})  # noqa: E731
        return on_ranks(len(shares), lambda comm: rollout_metrics(kept(comm), comm, step=step))

    expected = {
        "rollout/staleness/mean": (4 * 3 + 1 + 2 * 1 + 4 + 3 + 6 * 2) / 15,
        "rollout/staleness/max": 4,
        "rollout/versions": (2 + 1 + 3) / 3,  # of the responses with tokens
    }
    for line in measured(6):
        assert {name: line[name] for name in expected} == expected
    held = [[RESPONSES[1], RESPONSES[3]], *[[]] * (len(shares) - 1)]
    for line in measured(5):  # all are fresh
        assert not {*expected} & {*line}


def aged(rollout: Rollout, wrong: int, older: int = 1) -> Rollout:
    """The rollout with tokens of older weights at the start of each response, one nat wrong there
    and at as many tokens more as `wrong` says."""

    def of(response: Response) -> Response:
        n, now = response.length, response.weight_version
        logprobs = [x - (i < older + wrong) for i, x in enumerate(response.logprobs)]
        runs = [(now - 1, min(older, n)), (now, max(n - older, 0))]
        versions = [run for run in runs if run[1]]
        return replace(response, logprobs=logprobs, versions=versions)

    dead = [*map(of, rollout.dead)]
    return replace(rollout, responses=[*map(of, rollout.responses)], dead=dead)


@pytest.mark.parametrize("preset", ["stapo", "grpo", "dapo"])
@pytest.mark.parametrize(
    ("sampling", "wrong", "refused"),
    [
        ({"async_depth": 1}, 0, False),
        ({"async_depth": 1}, 1, True),
        ({"async_depth": 1, "recompute_cache": False}, 1, False),  # none has one version
        ({}, 0, True),  # nothing may be stale
    ],
)
def test_the_sampler_is_checked_at_the_tokens_of_the_present_weights(
    policy, tmp_path, monkeypatch, preset, sampling, wrong, refused
):
    """With a scoring pass, without one, and where no group has a signal."""
    settings: Any = {"training": {"updates_per_step": 1}}
    settings["sampling"] = {**sampling, "max_tokens": 8}
    if preset == "dapo":
        settings["sampling"]["dynamic"] = {"max_batches": 1}
        monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "", None))
    with open_trainer(eight_steps(policy, preset, **settings), tmp_path / "run") as trainer:
        collect = trainer.collect
        monkeypatch.setattr(trainer, "collect", lambda: aged(collect(), wrong))
        if refused:
            with pytest.raises(RunError, match="does not sample from the policy"):
                run_step(trainer)
        else:
            run_step(trainer)
            assert metrics(tmp_path / "run")[-1]["sampler/logprob_gap"] > 0.1  # of all tokens


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
