"""Traces of verifiers as tables, and what replay and inspect say of a file of them."""

from __future__ import annotations

import json
import math

import pytest
import torch
import verifiers.v1 as vf
from chatting import program
from talking import COLUMNS, Talk, branching
from verifiers.v1.utils.trace_store import write_episode

import rlobj
from rlobj.base.errors import ConfigError, DataError
from rlobj.integrations.verifiers import token_batch
from rlobj.runs.traces import traced_update


def traces(*names: str) -> list[vf.Trace]:
    rewards = [1.0, 0.0, None, 0.5, 0.0, 1.0]
    return [branching("ab"[seed // 3], seed, rewards[seed], *names) for seed in range(6)]


def episode_of(trace: vf.Trace) -> vf.Episode:
    work = vf.TrainWorkInfo(step=7)
    run = vf.TrainRunInfo(id="r", work=work)
    return vf.Episode(task=trace.task, traces=[trace], ok=trace.ok, run=run)


def by_hand(given: list[vf.Trace]) -> dict[str, list[float]]:
    """The columns that verifiers' own branches give, a shared node in the first one alone."""
    columns: dict[str, list[float]] = {
        name: [] for name in ("length", "rollout", "group", "reward", "logprob", *COLUMNS)
    }
    keys: list[str] = []
    for rollout, trace in enumerate(given):
        keys += [] if trace.task.key in keys else [trace.task.key]
        seen: set[int] = set()
        for branch in trace.branches:
            trained = []
            for node in branch.nodes:
                trained += [flag and id(node) not in seen for flag in node.mask]
                seen.add(id(node))
            columns["length"].append(sum(trained))
            columns["rollout"].append(rollout)
            columns["group"].append(keys.index(trace.task.key))
            columns["reward"].append(trace.reward if trace.ok else math.nan)
            for name, key in (("logprob", "logprobs"), *zip(COLUMNS, COLUMNS, strict=True)):
                spread = getattr(branch, key) or [math.nan] * len(trained)
                columns[name] += [v for v, mine in zip(spread, trained, strict=True) if mine]
    return columns


def same(column: torch.Tensor | None, expected: list[float]) -> bool:
    wanted = torch.tensor(expected, dtype=torch.float64)
    return column is not None and torch.allclose(column.double(), wanted, equal_nan=True)


def test_branches_are_rows_and_shared_tokens_are_trained_once():
    given = traces(*COLUMNS)
    table, hand = token_batch(given), by_hand(given)
    assert table.lengths.tolist() == hand["length"]
    assert table.rollouts is not None
    assert table.rollouts.tolist() == hand["rollout"]
    assert table.groups.tolist() == hand["group"]
    assert same(table.rewards, hand["reward"])
    assert same(table.sampler_logprobs, hand["logprob"])
    assert same(table.advantages, hand["advantages"])
    assert same(table.ref_logprobs, hand["reference_logprobs"])
    assert same(table.logprobs, hand["trainer_logprobs"])
    assert same(table.old_logprobs, hand["trainer_logprobs"])
    assert same(table.entropy, hand["entropies"])
    assert len(table.lengths) == 18
    assert sum(hand["length"]) == sum(sum(node.mask) for t in given for node in t.nodes)


def test_columns_that_traces_lack_are_absent():
    table, hand = token_batch(traces()), by_hand(traces())
    assert same(table.logprobs, hand["logprob"])
    columns = (table.old_logprobs, table.ref_logprobs, table.entropy, table.advantages)
    assert columns == (None, None, None, None)


def test_turns_are_numbered_in_the_order_of_time():
    [trace] = [branching("a", 1, 1.0)]
    table = token_batch([trace])
    numbers = {
        place: n for n, place in enumerate(i for i, x in enumerate(trace.nodes) if x.sampled)
    }
    expected = [0] * 3 + [1] * 3 + [2] * 4 + [3] * 5 + [4] * 2
    assert table.turn is not None
    assert table.turn.tolist() == expected
    assert sorted(numbers.values()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("form", ["objects", "episodes", "mappings", "lines"])
def test_each_form_of_traces_gives_the_same_table(form):
    given = traces(*COLUMNS)
    forms = {
        "objects": given,
        "episodes": [episode_of(trace) for trace in given],
        "mappings": [trace.to_record(float_decimals=None) for trace in given],
        "lines": [json.dumps(trace.to_record(float_decimals=None)) for trace in given],
    }
    table, other = token_batch(given), token_batch(forms[form])
    for name in ("lengths", "groups", "logprobs", "advantages", "entropy", "rollouts", "turn"):
        assert torch.equal(getattr(table, name), getattr(other, name)), name


def test_an_attempt_to_compact_that_was_given_up_is_no_row():
    talk = Talk("a", 3)
    first = talk.turn("what?")
    talk.turn(*first, "sum it up")
    talk.turn(*first, "go on")
    lost = next(i for i, n in enumerate(talk.trace.nodes) if i > 1 and n.sampled)
    talk.trace.nodes[lost].semantic_parents = [vf.ParentLink(node=1, type="compaction_attempt")]
    trace = talk.end(1.0)
    assert [branch.trainable for branch in trace.branches] == [False, True]
    assert token_batch([trace]).lengths.tolist() == [6]
    trace.nodes[-1].semantic_parents = [vf.ParentLink(node=lost, type="compaction")]
    assert token_batch([trace]).lengths.tolist() == [6, 3]


def test_agents_that_do_not_train_are_left_out_and_a_failure_without_a_turn_is_an_empty_row():
    agent = vf.AgentInfo(config=vf.AgentConfig(), name="judge", trainable=False)
    judge = branching("a", 1, 1.0)
    judge.agent = agent
    table = token_batch([judge, Talk("a", 2).end(None), branching("a", 3, 1.0)])
    assert table.lengths.tolist()[0] == 0
    assert table.rollouts is not None
    assert table.rollouts.unique().tolist() == [0, 1]
    assert table.decided_responses.tolist()[0] is False


def test_a_column_counts_only_if_all_decided_traces_have_it():
    given = [branching("a", 1, 1.0, *COLUMNS), branching("a", 2, 0.0), branching("a", 3, None)]
    table = token_batch(given)
    assert (table.advantages, table.old_logprobs, table.entropy) == (None, None, None)
    whole = token_batch([given[0], given[2]])
    assert whole.advantages is not None
    assert whole.old_logprobs is not None


def test_more_log_probs_than_sampled_tokens_are_refused():
    trace = branching("a", 1, 1.0).to_record(float_decimals=None)
    node = next(node for node in trace["nodes"] if node.get("logprobs"))
    node["logprobs"] = [-1.0, *node["logprobs"]]
    with pytest.raises(DataError, match=r"a node has \d+ logprobs of \d+ sampled tokens"):
        token_batch([trace])
    node["logprobs"] = [None] * (len(node["logprobs"]) - 1)
    with pytest.raises(DataError, match="traces of verifiers"):
        token_batch([trace])


def test_traces_without_token_ids_are_refused():
    with pytest.raises(DataError, match="verifiers' train client"):
        token_batch([Talk("a", 2).end(1.0)])


@pytest.fixture
def file(tmp_path):
    for trace in traces(*COLUMNS):
        write_episode(tmp_path, episode_of(trace))
    return tmp_path / "traces.jsonl"


def test_replay_plans_objectives_on_a_file_of_traces(file):
    replayed = rlobj.replay(file, ["stapo", "gspo", "prob < 0.5"])
    table = traced_update(file).table
    probs = table.logprobs[table.decided].exp()
    rows = {row["name"]: row for row in replayed.objectives.to_pylist()}
    assert replayed.title == f"{file}, traces: {len(probs)} tokens"
    assert replayed.population == len(probs)
    assert rows["prob < 0.5"]["touched"] == (probs < 0.5).sum()
    assert {*rows} == {"recorded", "stapo", "gspo", "prob < 0.5"}
    shown = program("replay", file, "--preset", "stapo,gspo")
    assert shown.returncode == 0, shown.stderr
    assert "traces name no objective" in shown.stdout


def test_a_preset_that_reads_a_column_which_traces_lack_is_refused_by_its_name(tmp_path):
    for trace in traces():
        write_episode(tmp_path, episode_of(trace))
    with pytest.raises(ConfigError, match="entropy"):
        rlobj.replay(tmp_path / "traces.jsonl", ["stapo"])


def test_inspect_finds_tokens_in_a_file_of_traces(file):
    every, rare = rlobj.inspect(file), rlobj.inspect(file, where="prob < 0.5")
    assert every.count == every.population
    assert 0 < rare.count < every.count
    shown = program("inspect", file, "--where", "prob < 0.5")
    assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize(
    "damage",
    ["{", "[1]", '{"traces": 3}', '{"nodes": [{"parent": 0, "token_ids": [1], "mask": [true]}]}'],
)
def test_a_damaged_file_is_refused_with_a_sentence(file, damage):
    with file.open("a") as more:
        more.write(damage)
    with pytest.raises(ConfigError, match=r"traces\.jsonl has no traces of verifiers"):
        rlobj.replay(file, ["gspo"])
