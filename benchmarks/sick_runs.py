"""Runs that are made sick on purpose, each in one way, and what the diagnosis must say of them.

All of them train the embedded policy of `addition`, which takes seconds. Their healthy twin is the
same run without the change.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rlobj
from rlobj.config.run_config import ModelConfig
from rlobj.data.tasks import TASKS
from rlobj.models.embedded import embedded_policy
from rlobj.models.loading import load_model, load_tokenizer
from rlobj.samplers import TransformersSampler

RATE = 5e-4
"""The learning rate of the embedded policy's profile."""


@dataclass(frozen=True)
class SickRun:
    """A sick run and its findings.

    Attributes:
        sickness: what was done, in words.
        steps: its length.
        settings: of the run.
        arguments: makes further arguments of `rlobj.train`.
        must: findings that it must have -> the step by which they must begin.
        never: findings that it must not have.
        preset: the objective.
    """

    sickness: str
    steps: int
    must: Mapping[str, int]
    never: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: Callable[[], dict[str, Any]] = dict
    preset: str = "grpo"

    def train(self, out: Path, seed: int = 0) -> rlobj.Diagnosis:
        """Train, whether the run ends well or not, and diagnose it."""
        settings = {
            "training.steps": self.steps,
            "evaluation.every": 0,
            "checkpoint.every": 0,
            "seed": seed,
            **self.settings,
        }
        arguments = {"data": "addition", **self.arguments()}
        with contextlib.suppress(rlobj.RunError):  # the run's own guards may end it first
            rlobj.train(self.preset, out=out, settings=settings, **arguments)
        return rlobj.diagnose(out)


def constant(response: str, answer: str, **columns: Any) -> float:
    """A reward that pays for everything."""
    return 1.0


def poisoned(response: str, answer: str, **columns: Any) -> float:
    """A reward that pays for one token, the digit 7 at the beginning."""
    return float(response.startswith("7"))


def wrong_gold_answers() -> dict[str, Any]:
    """The problems of `addition`, one in five with another answer."""
    choice = random.Random(0)
    rows = []
    for problem in TASKS["addition"].problems("train"):
        wrong = choice.random() < 0.2
        answer = str((int(problem.answer) + choice.randint(1, 9)) % 28) if wrong else problem.answer
        rows.append({"prompt": problem.prompt, "answer": answer})
    return {"data": rows, "reward": "exact"}


def stale_sampler() -> dict[str, Any]:
    """A sampler that reports each sync and keeps the weights that it began with."""
    folder = str(embedded_policy("addition"))
    config = ModelConfig(name=folder)
    model: Any = load_model(config, folder)
    return {"sampler": TransformersSampler(model, load_tokenizer(config, folder))}


OTHERS = ("sampler-drift", "verifier-trouble", "inert-setting", "rule-never-fires")
"""Findings that have nothing to do with the policy's movement."""

SICK: dict[str, SickRun] = {
    "learning rate x30": SickRun(
        "training.learning_rate 30 times the profile's",
        20,
        {"collapse": 8, "learning-rate-too-high": 8, "entropy-falling": 20},
        (*OTHERS, "ratio-spike"),
        {"training.learning_rate": 30 * RATE},
    ),
    "learning rate x1e6": SickRun(
        "training.learning_rate a million times the profile's",
        8,
        {"collapse": 5, "learning-rate-too-high": 5},
        (*OTHERS, "ratio-spike"),
        {"training.learning_rate": 1e6 * RATE},
    ),
    "clip off": SickRun(
        "an unclipped surrogate and 8 updates a rollout",
        40,
        {"ratio-spike": 40},
        (*OTHERS, "collapse", "truncation", "groups-without-signal"),
        {"objective.surrogate": {"kind": "unclipped"}, "training.updates_per_step": 8},
    ),
    "entropy bonus too large": SickRun(
        "an entropy bonus with the coefficient 2",
        30,
        {"entropy-exploding": 30},
        (*OTHERS, "ratio-spike", "entropy-falling", "learning-rate-too-high"),
        {"objective.penalties": [{"kind": "entropy_bonus", "coefficient": 2.0}]},
    ),
    "constant reward": SickRun(
        "a reward function that always returns 1",
        8,
        {"groups-without-signal": 6},
        (*OTHERS, "collapse", "learning-rate-too-high", "entropy-falling", "length-growth"),
        arguments=lambda: {"reward": constant},
    ),
    "poisoned token": SickRun(
        "a reward function that pays for the digit 7 at the beginning",
        60,
        {"collapse": 60},
        (*OTHERS, "entropy-exploding", "ratio-spike"),
        arguments=lambda: {"reward": poisoned},
    ),
    "wrong gold answers": SickRun(
        "one in five gold answers is wrong",
        20,
        {"verifier-trouble": 20},
        ("collapse", "sampler-drift", "ratio-spike", "learning-rate-too-high", "entropy-falling"),
        {"sampling.temperature": 0.7, "data.template": "{prompt}"},
        wrong_gold_answers,
    ),
    "max_tokens too short": SickRun(
        "scratchpads of about 25 tokens with sampling.max_tokens=12",
        8,
        {"truncation": 4, "groups-without-signal": 6},
        (*OTHERS, "collapse", "learning-rate-too-high", "length-growth"),
        {"sampling.max_tokens": 12, "sampling.prompts_per_step": 8},
        lambda: {"data": "scratchpad"},
    ),
    "tokens just enough": SickRun(
        "two tokens for answers of two digits: cut, and right all the same",
        15,
        {},
        ("truncation", *OTHERS, "collapse", "learning-rate-too-high", "length-growth"),
        {"sampling.max_tokens": 2},
    ),
    "stale sampler": SickRun(
        "a sampler object that keeps its first weights; the run's own check stops it",
        5,
        {"sampler-drift": 3},
        ("collapse", "ratio-spike", "learning-rate-too-high", "verifier-trouble"),
        arguments=stale_sampler,
    ),
    "stale sampler, unchecked": SickRun(
        "the same with sampling.max_logprob_gap=100",
        12,
        {"sampler-drift": 12},
        ("verifier-trouble",),
        {"sampling.max_logprob_gap": 100.0},
        stale_sampler,
    ),
    "group size 2": SickRun(
        "two responses a prompt",
        10,
        {"wrong-group-size": 8},
        (*OTHERS, "collapse", "learning-rate-too-high"),
        {"sampling.group_size": 2, "sampling.prompts_per_step": 64},
    ),
    "a rule that drops everything": SickRun(
        "objective.drop=(prob > 0)",
        6,
        {"rule-fires-on-everything": 4},
        ("collapse", "rule-never-fires", "groups-without-signal"),
        {"objective.drop": "prob > 0"},
    ),
    "a rule that never fires": SickRun(
        "objective.drop=(prob < 1e-9)",
        25,
        {"rule-never-fires": 25},
        ("collapse", "rule-fires-on-everything"),
        {"objective.drop": "prob < 1e-9", "sampling.prompts_per_step": 128},
    ),
    "a setting without effect": SickRun(
        "DAPO's clip with one update a rollout",
        3,
        {"inert-setting": 1},
        ("collapse", "rule-never-fires"),
        {"training.updates_per_step": 1},
        preset="dapo",
    ),
}
"""Name -> run."""
