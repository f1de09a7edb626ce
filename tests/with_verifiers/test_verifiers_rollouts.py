"""Training on rollouts that verifiers holds with a real server of vLLM."""

from __future__ import annotations

import json
import math
from array import array
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import verifiers.v1 as vf
from chatting import program

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.conversations.verifiers import VerifiersRollouts
from rlobj.data.verifiers import load_environment, verifiers_problems
from rlobj.runs.tables import read_tables
from rlobj.samplers import Response, SamplingSettings

NAME = "verifiers:sums_env"
SMALL = {
    "training.steps": 3,
    "sampling.prompts_per_step": 4,
    "sampling.group_size": 4,
    "sampling.max_tokens": 6,
    "sampling.engine": "vllm-server",
    "model.dtype": "float32",
    "training.learning_rate": 1e-3,
    "output.tables_every": 1,
    "evaluation.every": 0,
    "checkpoint.every": 0,
}


def words(server: str, **others: object) -> list[str]:
    settings = {**SMALL, "sampling.server.url": server, **others}
    return [f"--set={name}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module")
def run(chat_policy: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of `rlobj train` with the environment by its name."""
    out = tmp_path_factory.mktemp("runs") / "named"
    command = ["train", "--preset", "grpo", "--model", chat_policy, "--environment", NAME]
    done = program(*command, *words(server), "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_policy_trains_on_the_tokens_that_the_server_drew(run):
    metrics = lines(run)
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert max(line["sampler/logprob_gap"] for line in metrics) < 1e-4
    assert min(line["rollout/rows"] for line in metrics) > 1
    assert max(line["train/grad_norm"] for line in metrics) > 0


def test_rows_of_a_rollout_have_one_group_and_one_reward_and_a_failure_is_undecided(run):
    failed = 0
    for file in sorted((run / "samples").glob("*.parquet")):
        rollouts: dict[int, set[tuple]] = {}
        for row in parquet.read_table(file).to_pylist():
            reward = None if math.isnan(row["reward"]) else row["reward"]
            rollouts.setdefault(row["rollout"], set()).add((row["group"], reward))
            assert row["prompt"].startswith("fail") == (reward is None)
        assert len(rollouts) == 16
        assert all(len(of) == 1 for of in rollouts.values())
        failed += sum(reward is None for of in rollouts.values() for _, reward in of)
    assert failed == 4
    assert sum(line["reward/undecided"] for line in lines(run)) == failed
    assert sum(line["turns/at_broken"] for line in lines(run)) == failed / 16


def test_a_run_is_replayed_to_the_bit(run):
    replayed = rlobj.replay(run)
    assert replayed.reproduced == replayed.population
    assert any(u.table.rollouts is not None for u in read_tables(run))


def test_an_environment_is_passed_as_an_object(chat_policy, server, tmp_path, run):
    environment = load_environment(NAME)
    settings = {**SMALL, "sampling.server.url": server, "training.steps": 1}
    result = rlobj.train(
        "grpo",
        model=str(chat_policy),
        environment=environment,
        out=tmp_path / "run",
        settings=settings,
        progress=False,
    )
    assert result.history[0]["response/count"] == 16
    assert result.history[0]["sampler/logprob_gap"] < 1e-4


def test_another_sampler_is_refused(chat_policy, tmp_path):
    command = ["train", "--preset", "grpo", "--model", chat_policy, "--environment", NAME]
    here = ["--sampler", "transformers", "--set", "sampling.max_tokens=6"]
    done = program(*command, *here, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "--set sampling.engine=vllm-server" in " ".join((done.stderr + done.stdout).split())
    with pytest.raises(ConfigError, match="no_such_env"):
        load_environment("verifiers:no_such_env")


def test_a_run_of_a_stranger_needs_trust(run, tmp_path):
    done = program("resume", run, "--set=training.steps=4")
    assert done.returncode == 2
    assert "--trust" in " ".join((done.stderr + done.stdout).split())


class Seen:
    """An environment whose episodes are kept."""

    def __init__(self, environment: vf.Env) -> None:
        self.environment, self.episodes = environment, list[vf.Episode]()

    def __getattr__(self, name: str) -> object:
        return getattr(self.environment, name)

    async def run_slot(self, *arguments: object) -> vf.Episode:
        self.episodes.append(await self.environment.run_slot(*arguments))
        return self.episodes[-1]


@pytest.fixture
def drawn(chat_policy, server, run) -> list[tuple[vf.Trace, list[Response]]]:
    """Traces, and the rows that a trainer gets of them."""
    from transformers import AutoConfig, AutoTokenizer

    from rlobj.samplers.vllm import ServerSettings, VllmServerSampler

    tokenizer = AutoTokenizer.from_pretrained(chat_policy)
    config = AutoConfig.from_pretrained(chat_policy)
    settings = ServerSettings(url=server)
    sampler = VllmServerSampler(settings, tokenizer, eos=[2], model_config=config)
    seen = Seen(load_environment(NAME))
    rollouts = VerifiersRollouts(seen, sampler, tokenizer, EnvironmentSettings(target=NAME))
    problems = verifiers_problems(seen)[-2:]
    asked = SamplingSettings(max_tokens=8)
    groups = rollouts.sample(problems, count=2, settings=asked, seeds=[1, 2])
    found = dict[str, list[Response]]()
    traces = {e.traces[0].id: e.traces[0] for e in seen.episodes}
    rows = [row for group in groups for row in group]
    starts = [place for place, row in enumerate(rows) if not row.began]
    assert len(starts) == len(traces) == 4
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        last = [float(value) for value in rows[start].logprobs]
        for name, trace in traces.items():
            first = next(node for node in trace.nodes if node.sampled)
            if array("f", first.logprobs).tolist() == last[: len(first.logprobs)]:
                found[name] = rows[start:end]
    return [(traces[name], of) for name, of in found.items()]


def test_rows_are_the_branches_of_verifiers_and_a_shared_token_is_trained_once(drawn):
    assert len(drawn) == 4
    for trace, rows in drawn:
        branches = {tuple(branch.token_ids) for branch in trace.branches}
        read = [(*row.prompt, *whole_ids(row)) for row in rows]
        assert {*read} == branches
        sampled = [node for node in trace.nodes if node.sampled]
        turns = sorted((turn for row in rows for turn in row.turns), key=lambda t: t.number)
        assert [turn.size for turn in turns] == [sum(node.mask) for node in sampled]
        assert [turn.number for turn in turns] == [*range(len(sampled))]
        logprobs = sorted(value for node in sampled for value in array("f", node.logprobs))
        assert sorted(value for row in rows for value in row.logprobs) == logprobs
        if trace.ok:
            assert math.isclose(sum(turn.reward for turn in turns), trace.reward)
        assert (turns[-1].end == "broken") is not trace.ok


def whole_ids(row: Response) -> list[int]:
    ids, start = list[int](), 0
    for turn in row.turns:
        ids += [*row.tokens[start : start + turn.size], *turn.observed]
        start += turn.size
    return ids
