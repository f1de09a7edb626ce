"""Prompts computed once: the same run as with whole rows, in one process and in several."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import restarts
from runs import distance, metrics, open_trainer, ranks, weights, write_config
from tiny import tiny_config

import rlobj
from rlobj.training import run_training
from rlobj.training.loop.forward import whole_rows
from rlobj.training.loop.inputs import CallerInputs

SHARED, WHOLE = {"shared_prompts": True}, {"shared_prompts": False}
ENVIRONMENT = {"target": f"{__name__}:Numbers", "max_turns": 3}


DRAWN = """
import zlib

def drawn(response, answer):
    value = zlib.crc32(response.encode()) % 3
    return {"reward": value / 2, "correct": value == 2}
"""
"""A reward that differs between the responses of any policy."""


class Numbers:
    """Says a number that the tiny policy can read, and draws rewards."""

    conversation_seed = 0

    def reset(self, problem):
        self.random = random.Random(self.conversation_seed)

    def step(self, messages):
        return rlobj.Turn(observation="7,", reward=self.random.random())


def config_of(policy, preset, training, **sections):
    """Three steps of four groups, whose micro-batches cut groups."""
    usual = {
        "sampling": {"prompts_per_step": 9, "group_size": 8, "max_tokens": 3},
        "training": {"steps": 3, "micro_batch_tokens": 100, "strategy": "ddp", "adam_epsilon": 1e-3}
        | training,
        "checkpoint": {"every": 3},
    }
    if "environment" not in sections:
        file = policy.with_name("drawn.py")
        file.write_text(DRAWN)
        usual["rewards"] = {"kind": "custom", "target": f"{file}:drawn"}
    return tiny_config(policy, preset, **{**usual, **sections})


def assert_same_run(one, other):
    """Equal weights and metrics but for rounding; what the passes compute differs."""
    assert distance(weights(one), weights(other)) < 2e-6
    ours, theirs = metrics(one), metrics(other)
    assert [line.keys() for line in ours] == [line.keys() for line in theirs]
    passes = ("tokens/computed", "tokens/shared_share", "tokens/useful_share", "tokens/rank")
    for first, second in zip(ours, theirs, strict=True):
        for name in first:
            if not name.startswith((*passes, "sampler/")):
                expected = second[name]  # None = there is no such response
                expected = expected and pytest.approx(expected, rel=2e-4, abs=1e-5)
                assert first[name] == expected, name


CASES = {
    "groups cut": ("stapo", {}, {}),
    "several updates": ("lp-reg", {"updates_per_step": 2, "passes": 2}, {}),
    "a reference": ("archer", {"micro_batch_tokens": 10**6}, {}),
    "conversations": (
        "grpo",
        {},
        {"environment": ENVIRONMENT, "sampling": {"prompts_per_step": 4, "max_tokens": 12}},
    ),
    "rows of rollouts": (
        "grpo",
        {},
        {
            "environment": {"target": f"{restarts.__file__}:Delegates"},
            "rewards": {"kind": "environment"},
            "sampling": {"prompts_per_step": 4, "max_tokens": 24, "stop": [*"0123456"]},
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_shared_prompts_make_the_run_of_whole_rows(policy, tmp_path, case):
    preset, training, sections = CASES[case]
    for name, how in (("shared", SHARED), ("whole", WHOLE)):
        config = config_of(policy, preset, {**training, **how}, **sections)
        run_training(config, tmp_path / name)
    assert_same_run(tmp_path / "shared", tmp_path / "whole")
    shared, whole = (
        [line for line in metrics(tmp_path / name) if "tokens/computed" in line]
        for name in ("shared", "whole")
    )
    assert shared
    for ours, theirs in zip(shared, whole, strict=True):
        assert 0 < ours["tokens/computed"] < theirs["tokens/computed"]
        assert (ours["tokens/shared_share"], theirs["tokens/shared_share"]) == (1, 0)
        assert ours["tokens/useful_share"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "count"), [("ddp", 3), ("zero3", 2)])
def test_several_processes_share_prompts_as_one_does(policy, tmp_path, strategy, count):
    """Groups do not divide evenly over the ranks, so some ranks make empty passes."""
    run_training(config_of(policy, "archer", WHOLE), tmp_path / "alone")
    training = {**SHARED, "strategy": strategy}
    file = write_config(config_of(policy, "archer", training), tmp_path / "run.yaml")
    ranks(["train", "--config", file, "--out", tmp_path / "together"], count)
    assert_same_run(tmp_path / "together", tmp_path / "alone")
    assert any(line.get("train/grad_norm") for line in metrics(tmp_path / "together"))


def test_auto_shares_prompts_where_that_saves_tokens_and_the_header_says_so(policy, tmp_path):
    facts = {}

    class Header(rlobj.Callback):
        def started(self, shown):
            facts.update(shown)

    sampling = {"prompts_per_step": 8, "group_size": 40, "max_tokens": 2}
    training = {"steps": 1, "micro_batch_tokens": 4096}
    config = config_of(policy, "stapo", training, sampling=sampling)
    run_training(config, tmp_path / "many", inputs=CallerInputs(callbacks=[Header()]))
    [line] = metrics(tmp_path / "many")
    assert line["tokens/shared_share"] == 1
    assert facts["prompts"] == "computed once for all responses where that saves tokens"
    config = config_of(policy, "stapo", {"steps": 1})
    run_training(config, tmp_path / "few")
    [line] = metrics(tmp_path / "few")
    assert 0 <= line["tokens/shared_share"] <= 1


def test_recomputation_keeps_whole_rows_and_says_why(policy, tmp_path):
    training = {"steps": 1, "gradient_checkpointing": True}
    with open_trainer(config_of(policy, "archer", training), tmp_path / "auto") as trainer:
        assert "recomputation" in trainer.learner.forward.whole_rows
        [reference] = trainer.learner.scores.all.values()
        assert reference.shareable is False


def test_a_model_that_cannot_share_prompts_has_whole_rows(policy):
    scorer: Any = SimpleNamespace(model=None, unshareable="it is recurrent")
    for training in (SHARED, {}):
        assert whole_rows(config_of(policy, "stapo", training), scorer) == "it is recurrent"


def test_a_resumed_run_may_change_how_prompts_are_computed(policy, tmp_path):
    run_training(config_of(policy, "stapo", SHARED), tmp_path / "run")
    changes = {"training.shared_prompts": False, "training.steps": 4}
    rlobj.resume(tmp_path / "run", settings=changes, progress=False, trust=True)
    shares = [line["tokens/shared_share"] for line in metrics(tmp_path / "run")]
    assert shares == [1, 1, 1, 0]
