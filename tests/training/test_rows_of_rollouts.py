"""Runs whose environment gives the policy new contexts: rollouts of several rows, counted once."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import restarts
from benchmarks.embedded_policy import build_policy, build_tokenizer
from restarts import TURNS, Delegates, prompt
from runs import make_steps, metrics, ranks, same, weights, write_config
from tiny import tiny_config

import rlobj
from rlobj.samplers import Feed, Request, Response, TransformersSampler, derive_seed
from rlobj.samplers.response import ROWS
from rlobj.settings.run_config import RunConfig
from rlobj.training import run_training

TOKENIZER = build_tokenizer()
MOST, ALL = 8, 14
"""Tokens of a row, and of all rows."""
FILE = Path(restarts.__file__)


def config_of(policy: Path, preset: str = "grpo", **sections: Any) -> RunConfig:
    """Two steps of three groups of four rollouts; a turn ends at one of seven digits."""
    sampling = {"prompts_per_step": 3, "group_size": 4, "max_tokens": MOST, "rollout_tokens": ALL}
    usual: dict[str, Any] = {
        "sampling": {**sampling, "stop": [*"0123456"]},
        "environment": {"target": f"{FILE}:Restarts"},
        "rewards": {"kind": "environment"},
        "training": {"steps": 2},
        "checkpoint": {"every": 2},
        "output": {"tables_every": 1},
    }
    for name, section in sections.items():
        usual[name] = {**usual.get(name, {}), **section}
    return tiny_config(policy, preset, **usual)


# The same conversations by hand


def by_hand(sampler: Any, question: Sequence[int], seed: int, number: int, settings: Any) -> Any:
    """The rows of a rollout, each its prompt and token ids of the policy, and its reward."""
    rows, read, reward, turn = [([*question], [])], [*question], 0.0, 0
    arrived: list[Response] = []
    while True:
        written = sum(len(tokens) for _, tokens in rows)
        most = min(MOST - len(rows[-1][1]), ALL - written)
        if most < 1:
            return rows, reward
        own = derive_seed(seed, number, "turn", turn)
        request = Request((0,), None, array("i", read), own, most)
        sampler.stream(Feed.whole([request]), settings, lambda *pair: arrived.append(pair[1]))
        rows[-1][1].extend(arrived[-1].tokens)
        if arrived[-1].finish == "length":
            return rows, reward
        reward += random.Random(derive_seed(seed, number, "tools", turn)).random()
        turn += 1
        if turn == TURNS:
            return rows, reward
        if turn % 2:
            read += [*arrived[-1].tokens, *TOKENIZER("7,")["input_ids"]]
        elif ALL - written - len(arrived[-1].tokens) > 0:
            rows.append((TOKENIZER(prompt(turn))["input_ids"], []))
            read = [*rows[-1][0]]
        else:
            return rows, reward


def expected(config: RunConfig, questions: dict[int, Sequence[int]]) -> dict[int, Any]:
    """By the id of each row of the first step: prompt, tokens, reward, advantage, 1/Z."""
    sampler = TransformersSampler(build_policy(0), TOKENIZER)
    size, rows = config.sampling.group_size, dict[int, Any]()
    for group, question in questions.items():
        seed = derive_seed(config.seed, "rollout", 0, group)
        asked = sampler, question, seed
        rollouts = [by_hand(*asked, i, config.sampling.settings()) for i in range(size)]
        rewards = [reward for _, reward in rollouts]
        mean = sum(rewards) / size
        std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (size - 1))
        for i, (parts, reward) in enumerate(rollouts):
            advantage = (reward - mean) / (std + 1e-6)
            tokens = sum(len(part) for _, part in parts)
            share = 1 / (size * len(questions) * tokens)
            for k, (read, part) in enumerate(parts):
                rows[group * size + i + k * ROWS] = (read, part, reward, advantage, share)
    return rows


def assert_by_hand(config: RunConfig, run: Path) -> None:
    update = next(rlobj.read_tables(run))
    table, size = update.table, config.sampling.group_size
    assert table.ids is not None
    assert table.rollouts is not None
    assert table.rewards is not None
    questions = {
        identity // size: read
        for identity, (read, _) in zip(table.ids.tolist(), update.sequences, strict=True)
        if identity < ROWS and identity % size == 0
    }
    rows = expected(config, dict(sorted(questions.items())))
    assert sorted(table.ids.tolist()) == sorted(rows)
    assert max(rows) >= 2 * ROWS
    assert table.rollouts.tolist() == [identity % ROWS for identity in table.ids.tolist()]
    columns = zip(
        table.ids.tolist(),
        update.sequences,
        table.rewards.tolist(),
        table.advantages.split(table.lengths.tolist()),
        update.weights.split(table.lengths.tolist()),
        strict=True,
    )
    for identity, (read, tokens), reward, advantages, shares in columns:
        question, written, total, advantage, share = rows[identity]
        assert [*read] == [*question]
        assert [*tokens] == written
        assert reward == pytest.approx(total, rel=1e-12)
        assert advantages.tolist() == pytest.approx([advantage] * len(written), rel=1e-6)
        assert shares.tolist() == pytest.approx([share] * len(written), rel=1e-6)


def test_a_run_with_restarts_equals_the_conversations_by_hand(policy, tmp_path):
    config = config_of(policy, training={"steps": 1})
    run_training(config, tmp_path / "run")
    assert_by_hand(config, tmp_path / "run")
    [line] = metrics(tmp_path / "run")
    assert line["response/count"] == 12
    assert line["rollout/rows"] > 1.3


@pytest.mark.slow
def test_two_processes_with_restarts_equal_the_conversations_by_hand(policy, tmp_path):
    config = config_of(policy)
    run_training(config, tmp_path / "alone")
    file = write_config(config, tmp_path / "run.yaml")
    ranks(["train", "--config", file, "--trust", "--out", tmp_path / "together"])
    assert_by_hand(config, tmp_path / "together")
    for one, other in zip(metrics(tmp_path / "alone"), metrics(tmp_path / "together"), strict=True):
        for name in ("reward/mean", "rollout/rows", "train/grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-7), name


def numbers(table: rlobj.TokenBatch) -> dict[int, list[int]]:
    """The turns of each rollout's tokens, row by row."""
    found: dict[int, list[int]] = defaultdict(list)
    assert table.rollouts is not None
    assert table.turn is not None
    parts = table.turn.split(table.lengths.tolist())
    for rollout, part in zip(table.rollouts.tolist(), parts, strict=True):
        found[rollout] += [turn for turn, _ in itertools.groupby(part.tolist())]
    return found


def test_turns_are_numbered_through_the_rows_and_their_rewards_add_up(policy, tmp_path):
    run_training(config_of(policy, "grpo"), tmp_path / "run")
    for update in rlobj.read_tables(tmp_path / "run"):
        table = update.table
        assert table.rollouts is not None
        assert table.turn_reward is not None
        assert table.rewards is not None
        for turns in numbers(table).values():
            assert turns == [*range(len(turns))]
        firsts = table.turn_reward[table.turn_starts]
        owners = table.rollouts[table.of_turns]
        for rollout, reward in zip(table.rollouts.tolist(), table.rewards.tolist(), strict=True):
            assert firsts[owners == rollout].sum() == pytest.approx(reward, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["Restarts", "Delegates"])
@pytest.mark.parametrize("sampling", [{}, {"async_depth": 1}], ids=["on policy", "async"])
def test_a_resumed_run_is_the_whole_run_to_the_bit(policy, tmp_path, environment, sampling):
    config = config_of(
        policy,
        training={"steps": 4, "updates_per_step": 2},
        sampling=sampling,
        environment={"target": f"{FILE}:{environment}"},
        output={"tables_every": 0},
    )
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 3)
    make_steps(config, tmp_path / "cut", 2, resume=True)
    if not sampling:  # a resumed run has sampled nothing ahead
        assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
        assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    else:
        run_training(config, tmp_path / "again")
        assert metrics(tmp_path / "again") == metrics(tmp_path / "whole")
    assert all(line["rollout/rows"] > 1 for line in metrics(tmp_path / "cut"))


def test_an_environment_may_be_passed_from_python_and_dynamic_sampling_counts_groups(
    policy, tmp_path
):
    settings = {
        "model.name": str(policy),
        "model.dtype": "float32",
        "sampling.engine": "transformers",
        "sampling.stop": [*"0123456"],
        "sampling.max_tokens": MOST,
        "sampling.rollout_tokens": ALL,
        "sampling.prompts_per_step": 3,
        "sampling.group_size": 4,
        "sampling.dynamic": {"by": "reward", "max_batches": 2},
        "training.steps": 2,
        "evaluation.every": 0,
        "checkpoint.every": 0,
    }
    out = tmp_path / "run"
    rlobj.train("grpo", data="max-digits", environment=Delegates, settings=settings, out=out)
    for line in metrics(out):
        assert line["reward/groups"] == 3
        assert line["rollout/rows"] > 2
        assert math.isfinite(line["train/grad_norm"])


@pytest.mark.slow
def test_the_penalty_on_long_responses_counts_all_rows(policy, tmp_path):
    overlong = {"overlong": {"cache": 0.99}}
    config = config_of(policy, "grpo", training={"steps": 1}, rewards=overlong)
    plain = config_of(policy, "grpo", training={"steps": 1})
    for name, each in (("long", config), ("plain", plain)):
        run_training(each, tmp_path / name)
    [one], [other] = (list(rlobj.read_tables(tmp_path / name)) for name in ("long", "plain"))
    table = one.table
    assert table.rollouts is not None
    for rollout in table.rollouts.unique():
        rows = table.rollouts == rollout
        penalties = (table.rewards - other.table.rewards)[rows].tolist()
        length = int(table.lengths[rows].sum())
        share = (0.01 * ALL - length) / (0.99 * ALL)
        assert penalties == pytest.approx([min(share, 0.0)] * len(penalties), rel=1e-9)
