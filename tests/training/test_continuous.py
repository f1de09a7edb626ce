"""Runs whose responses are drawn all the time, while the policy is trained."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from forked import call_in_ranks
from runs import finish, metrics, open_trainer, program, steps, wait_for_step, write_config
from tiny import save_tiny_policy, tiny_config, train_conversations

import rlobj
from rlobj import Turn
from rlobj.base.errors import ConfigError, RunError
from rlobj.conversations.verifiers import VerifiersRollouts
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.checkpoints import checkpoints, read_state
from rlobj.runs.run_folder import RunFolder
from rlobj.samplers import Response, TransformersSampler
from rlobj.samplers.transformers import draw
from rlobj.samplers.types import Between, WeightsLost
from rlobj.training import CallerInputs, run_training
from rlobj.training.loop.step import run_step
from rlobj.training.rollouts.continuous import Continuous


class Streaming(TransformersSampler):
    """Draws one token for each request in turn, with a pass over its whole sequence."""

    syncs_in_flight = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._between = Between()

    def stream(self, feed, settings, done):
        running: list[Any] = []
        more = True
        while more or running:
            new = feed.take(wait=not running) if more else []
            more = new is not None
            running += [(request, [], [], []) for request in new or ()]
            for state in [*running]:
                request, tokens, logprobs, versions = state
                with self._between.step(), self._sampling():
                    ids = torch.tensor([[*request.prompt, *tokens]])
                    logits = self.model(input_ids=ids).logits[:, -1]
                    versions.append((self._received.version, 1))
                uniform = 1 - torch.rand(1, dtype=torch.float64, generator=seeded(request, tokens))
                token, logprob = draw(logits, uniform, settings)
                tokens.append(int(token)), logprobs.append(float(logprob))
                ended = tokens[-1] in self._eos
                if ended or len(tokens) == request.max_tokens:
                    running.remove(state)
                    text = self.tokenizer.decode(tokens, skip_special_tokens=True)
                    drawn = request.prompt, tokens, logprobs, text, "stop" if ended else "length"
                    done(request, Response(*drawn, versions[-1][0], versions=versions))

    def sync(self, weights, version):
        with self._between.steps():
            super().sync(weights, version)

    def sample(self, *args, **kwargs):
        with self._between.steps():
            return super().sample(*args, **kwargs)


def seeded(request, tokens) -> torch.Generator:
    return torch.Generator().manual_seed(request.seed + len(tokens))


@pytest.fixture(autouse=True)
def streaming(monkeypatch):
    monkeypatch.setattr("rlobj.training.loop.opening.TransformersSampler", Streaming)


def continuous(policy, preset="stapo", **sections):
    """Six steps of four prompts; sections override."""
    own = {"schedule": "continuous", "prompts_per_step": 4, "group_size": 4, "max_tokens": 4}
    sampling = own | sections.pop("sampling", {})
    return tiny_config(
        policy,
        preset,
        sampling=sampling,
        training={"steps": 6, **sections.pop("training", {})},
        objective={"mismatch": {"kind": "truncate"}},
        output={"samples_every": 1},
        **sections,
    )


def samples(run: Path) -> list[list[dict[str, Any]]]:
    """The rows of each step's samples."""
    return [parquet.read_table(file).to_pylist() for file in sorted((run / "samples").glob("*"))]


def account(run: Path, config: Any) -> None:
    """Check the newest checkpoint: each problem was used in one step, or is in flight."""
    state = read_state(checkpoints(run)[-1])
    used = [
        row["problem"]
        for rows in samples(run)[: state.step]
        for row in rows
        if row["id"] % config.sampling.group_size == 0
    ]
    in_flight = [name for _, name in state.stream["in_flight"]]
    with open_trainer(config, run.parent / f"{run.name}-again") as trainer:
        drawn = state.stream["epoch"] * len(trainer.stream) + state.stream["position"]
        problems = [problem.id for problem in trainer.stream.next(drawn)]
    assert Counter(used + in_flight) == Counter(problems)


def taken(trainer: Any) -> list[Any]:
    """The rollouts that the trainer takes from now on."""
    rollouts: list[Any] = []
    take = trainer.pipeline.take
    trainer.pipeline.take = lambda step: rollouts.append(take(step)) or rollouts[-1]
    return rollouts


def test_each_step_trains_on_whole_groups_and_drawing_goes_on(policy, tmp_path):
    config = continuous(policy, checkpoint={"every": 4}, evaluation={"every": 2, "problems": 4})
    before = threading.active_count()
    run_training(config, tmp_path / "run")
    assert steps(tmp_path / "run") == [1, 2, 3, 4, 5, 6]
    lines = metrics(tmp_path / "run")
    assert [line["reward/groups"] for line in lines if line["step"]] == [4] * 6
    assert all(0 < line["sampling/drawing_share"] <= 1 for line in lines if line["step"])
    assert ["eval/accuracy" in line for line in lines] == [
        True,
        False,
        True,
        False,
        True,
        False,
        True,
    ]
    for step, rows in enumerate(samples(tmp_path / "run")):
        assert sorted(row["id"] for row in rows) == [*range(16)]
        assert all(step - 4 <= row["weight_version"] <= step for row in rows)
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("bound", [0, 1])
def test_no_token_is_older_than_the_bound_and_older_groups_are_drawn_again(
    policy, tmp_path, monkeypatch, bound
):
    """Each token takes a while, so that responses cross several steps."""
    usual = Streaming._sampling
    monkeypatch.setattr(Streaming, "_sampling", lambda self: time.sleep(0.002) or usual(self))
    sampling = {"max_staleness": bound, "max_tokens": 8, "in_flight": 12}
    config = continuous(policy, sampling=sampling, checkpoint={"every": 6})
    with open_trainer(config, tmp_path / "run") as trainer:
        rollouts = taken(trainer)
        for step in range(6):
            run_step(trainer)
            ages = [step - v for row in rollouts[-1].responses for v, _ in row.versions]
            assert max(ages) <= bound
        assert len(trainer.pipeline._groups) <= 12
    assert sum(line["sampling/stale_groups"] for line in metrics(tmp_path / "run")) > 0


def test_a_sampler_that_waits_for_the_trainer_draws_in_no_part_of_a_step(policy, tmp_path):
    """All prompts of the run are drawn before the second step."""
    config = continuous(policy, sampling={"in_flight": 24})
    with open_trainer(config, tmp_path / "run") as trainer:
        run_step(trainer)
        while len(trainer.pipeline._complete) < 20:
            time.sleep(0.01)
        for _ in range(3):
            run_step(trainer)
    first, _, *others = [line for line in RunFolder(tmp_path / "run").lines() if line["step"]]
    assert first["sampling/drawing_share"] == 1
    assert all(line["sampling/drawing_share"] < 0.2 for line in others)
    assert all(
        line["time/sampling_hidden"] == 0 <= line["sampling/drawing_share"] for line in others
    )


def test_a_sampler_that_stops_drawing_without_an_error_ends_the_run(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(Streaming, "stream", lambda *_: None)
    with (
        open_trainer(continuous(policy), tmp_path / "run") as trainer,
        pytest.raises(RunError, match=r"Streaming\.stream returned before its feed was closed"),
    ):
        run_step(trainer)


def test_groups_without_a_signal_are_replaced_as_they_come(policy, tmp_path):
    sampling = {"dynamic": {"max_batches": 3, "by": "reward"}, "max_tokens": 2}
    config = continuous(policy, "dapo", sampling=sampling, checkpoint={"every": 3})
    with open_trainer(config, tmp_path / "run") as trainer:
        rollouts = taken(trainer)
        for _ in range(3):
            run_step(trainer)
    for line, rollout in zip(metrics(tmp_path / "run"), rollouts, strict=True):
        kept, dead = line["reward/groups"], line["sampling/dead_groups"]
        assert kept == 4 or kept + dead == 12
        assert len({row.group for row in rollout.responses}) == kept
        rewards = [[r.reward for r in rollout.responses if r.group == g] for g in range(12)]
        assert all(len({*group}) > 1 for group in rewards if group)
    assert sum(line["sampling/dead_groups"] for line in metrics(tmp_path / "run")) > 0
    account(tmp_path / "run", config)


def test_a_sampler_that_loses_its_weights_draws_again_what_was_not_complete(
    policy, tmp_path, monkeypatch, caplog
):
    usual, losses = Streaming.stream, [3, 30, 60]

    def losing(self, feed, settings, done):
        def counted(request, response):
            losses[:] = [left - 1 for left in losses]
            if 0 in losses:
                raise WeightsLost("the server was restarted")
            done(request, response)

        usual(self, feed, settings, counted)

    monkeypatch.setattr(Streaming, "stream", losing)
    config = continuous(policy, checkpoint={"every": 4, "keep": 1})
    with open_trainer(config, tmp_path / "run") as trainer:
        for _ in range(5):
            run_step(trainer)
    assert caplog.text.count("the server was restarted") == 3
    assert [line["reward/groups"] for line in metrics(tmp_path / "run")] == [4] * 5
    account(tmp_path / "run", config)


@pytest.mark.parametrize("batched", [False, True])
def test_a_reward_that_fails_ends_the_run_with_its_own_message(
    policy, tmp_path, monkeypatch, batched
):
    with open_trainer(continuous(policy), tmp_path / "run") as trainer:
        monkeypatch.setattr(type(trainer.grader), "batched", batched)
        for _ in range(2):
            run_step(trainer)

        def fail(*_):
            raise RunError("the reward is broken")

        monkeypatch.setattr(trainer.grader, "score", fail)
        with pytest.raises(RunError, match="the reward is broken"):
            [run_step(trainer) for _ in range(4)]
    assert checkpoints(tmp_path / "run")


def test_a_resumed_run_draws_first_what_was_in_flight(policy, tmp_path):
    config = continuous(policy, training={"steps": 7}, checkpoint={"every": 2})
    run, said = tmp_path / "run", {}
    with open_trainer(config, run) as trainer:
        for _ in range(3):
            run_step(trainer)
    account(run, config)
    in_flight = [name for _, name in read_state(checkpoints(run)[-1]).stream["in_flight"]]

    class Header(rlobj.Callback):
        def started(self, facts):
            said.update(facts)

    with open_trainer(config, run, CallerInputs(callbacks=[Header()]), resume=True) as trainer:
        rollouts = taken(trainer)
        for _ in range(4):
            run_step(trainer)
    problems = {row.problem.id for rollout in rollouts[:3] for row in rollout.responses}
    assert problems >= {*in_flight}
    assert said["sampler"] == "transformers, continuous, 8 prompts in flight"
    assert "numbers do not repeat" in said["from step 3"]
    assert steps(run) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_kills_lose_no_problem_and_train_on_none_twice(policy, tmp_path):
    """With the sampler of transformers, at random moments."""
    run, log = tmp_path / "run", tmp_path / "log"
    config = continuous(policy, training={"steps": 16}, checkpoint={"every": 1})
    words: list[Any] = [
        "train",
        "--config",
        write_config(config, tmp_path / "c.yaml"),
        "--out",
        run,
    ]
    for step in (2, 5, 9, 12):
        process = program(words, log)
        wait_for_step(run, step, process, log)
        time.sleep(random.uniform(0, 0.5))
        process.kill()
        process.wait(60)
        account(run, config)
        words = ["resume", run]
    finish(program(words, log), log)
    account(run, config)
    assert steps(run) == [*range(1, 17)]


class Tool:
    """Answers after a random time."""

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, problem: Any) -> None:
        return None

    def step(self, messages: Any) -> Turn:
        self.turns += 1
        time.sleep(random.expovariate(10))
        return Turn("1+", reward=len(messages[-1]["content"]) / 8, done=self.turns == 3)


def test_conversations_go_on_across_steps(policy, tmp_path, monkeypatch):
    """Rows say which turns are of which weights."""
    rollouts: list[Any] = []
    take = Continuous.take
    monkeypatch.setattr(
        Continuous, "take", lambda self, step: rollouts.append(take(self, step)) or rollouts[-1]
    )
    sampling = {
        "schedule": "continuous",
        "max_tokens": 12,
        "stop": ["1", "2", "3"],
        "group_size": 4,
        "prompts_per_step": 2,
    }
    others = {"training.steps": 4, "objective.mismatch": {"kind": "truncate"}}
    result = train_conversations(policy, tmp_path / "run", Tool, sampling=sampling, **others)
    rows = [row for rollout in rollouts for row in rollout.responses]
    assert {len(row.turns) for row in rows} >= {2, 3}
    assert any(len(row.versions) > 1 for row in rows)
    assert all(sum(count for _, count in row.versions) == row.length for row in rows)
    assert [line["reward/groups"] for line in result.history] == [2] * 4


def test_a_sampler_without_syncs_in_flight_is_refused(policy, tmp_path, monkeypatch):
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(Streaming, "syncs_in_flight", never)
    with (
        pytest.raises(ConfigError, match="Streaming has no syncs_in_flight=True"),
        open_trainer(continuous(policy), tmp_path / "run"),
    ):
        pass


def test_verifiers_is_refused_because_it_holds_whole_batches(policy):
    held, able = object.__new__(VerifiersRollouts), SimpleNamespace(syncs_in_flight=True)
    collector: Any = SimpleNamespace(
        sampler=able, conversations=held, config=continuous(policy), comm=SingleProcess()
    )
    with pytest.raises(ConfigError, match="VerifiersRollouts has no syncs_in_flight=True"):
        Continuous(collector)


@pytest.mark.parametrize("given", [0, 99])
def test_versions_of_weights_that_the_sampler_did_not_have_end_the_run(
    policy, tmp_path, monkeypatch, given
):
    """Else groups of version 0 would be drawn again for ever, and nothing would be compared."""
    usual = Streaming.stream

    def relabelled(self, feed, settings, done):
        def wrong(request, response):
            done(request, replace(response, versions=[(given, response.length)]))

        usual(self, feed, settings, wrong)

    monkeypatch.setattr(Streaming, "stream", relabelled)
    what = rf"Response\.versions from {given} to {given}; expected \d to \d, those of the weights"
    with pytest.raises(RunError, match=what):
        run_training(continuous(policy), tmp_path / "run")


def two_ranks(rank, size, folder):
    import rlobj.training.loop.opening as opening

    opening.TransformersSampler = Streaming
    config = continuous(Path(folder) / "policy", checkpoint={"every": 3}, sampling={"in_flight": 7})
    with open_trainer(config, Path(folder) / "run") as trainer:
        if rank:
            usual = trainer.sampler.stream
            trainer.sampler.stream = lambda *given: time.sleep(0.5) or usual(*given)
        rollouts = taken(trainer)
        for _ in range(3):
            run_step(trainer)
    assert [len(rollout.responses) for rollout in rollouts] == [8] * 3


def two_ranks_go_on(rank, size, folder):
    import rlobj.training.loop.opening as opening

    opening.TransformersSampler = Streaming
    config = continuous(Path(folder) / "policy", checkpoint={"every": 5})
    with open_trainer(config, Path(folder) / "run", resume=True) as trainer:
        for _ in range(2):
            run_step(trainer)


@pytest.mark.slow
def test_ranks_draw_shares_of_the_stream_and_a_single_one_goes_on(tmp_path):
    save_tiny_policy(tmp_path / "policy")
    call_in_ranks(two_ranks, 2, tmp_path)
    call_in_ranks(two_ranks_go_on, 2, tmp_path)
    run = tmp_path / "run"
    assert [{row["group"] for row in rows} for rows in samples(run)] == [{0, 1, 2, 3}] * 5
    config = continuous(tmp_path / "policy")
    account(run, config)
    run_training(config, run, resume=True)
    assert steps(run) == [1, 2, 3, 4, 5, 6]
