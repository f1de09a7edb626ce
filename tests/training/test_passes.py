"""Several passes over a rollout: what they compute, resume and record."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import distance, open_trainer, optimizer_of
from tiny import tiny_config

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.scoring import score_samples
from rlobj.settings.building import compose
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop.step import run_step
from rlobj.training.rollouts.collector import Rollout


def config_of(policy: Path, preset: str = "dapo-loss", **sections: Any) -> RunConfig:
    training = {
        "steps": 4,
        "updates_per_step": 2,
        "passes": 2,
        "adam_epsilon": 1e-3,
        **sections.pop("training", {}),
    }
    sampling = {"prompts_per_step": 7, "max_tokens": 3, "dynamic": None}
    if preset == "lopti":  # so that tokens of a random policy are in both phases
        sections["objective"] = {"split": "old_prob < 0.05"}
    return tiny_config(policy, preset, sampling=sampling, training=training, **sections)


def by_hand(model: Any, rollout: Rollout, config: RunConfig) -> None:
    """The updates of one step in a plain loop: passes, phases, mini-batches."""
    objective, training = config.resolved_objective(), config.training
    groups = [r.group for r in rollout.responses]
    sequences = [(list(r.prompt), list(r.tokens)) for r in rollout.responses]
    settings = {"temperature": config.sampling.temperature, "entropy": True}
    with torch.no_grad():
        old = score_samples(model, sequences, **settings)
    whole = rlobj.TokenBatch(
        lengths=torch.tensor([len(tokens) for _, tokens in sequences]),
        groups=torch.tensor(groups),
        rewards=torch.tensor([r.reward for r in rollout.responses], dtype=torch.float64),
        logprobs=old.logprobs,
        old_logprobs=old.logprobs,
        entropy=old.entropy,
    )
    if "ref_logprobs" in objective.needs.ever:  # the policy is not trained yet
        whole = whole.replace(ref_logprobs=old.logprobs)
    [whole] = objective.with_advantages([whole])
    optimizer = optimizer_of(model, training)
    order = list(dict.fromkeys(groups))
    halves = [set(order[:4]), set(order[4:])]
    for _ in range(training.passes):
        for phase in objective.phases:
            for half in halves:
                rows = [i for i, group in enumerate(groups) if group in half]
                few = [sequences[i] for i in rows]
                now = score_samples(model, few, **settings)
                current = {"logprobs": now.logprobs, "entropy": now.entropy}
                table = whole.select(rows).replace(**current)
                still = table.replace(**{name: x.detach() for name, x in current.items()})
                loss = phase.loss(table, phase.plan([still], {}), 0).loss
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
                optimizer.step()


@pytest.mark.parametrize(
    ("preset", "passes"), [("dapo-loss", 1), ("dapo-loss", 3), ("20-entropy", 2), ("lopti", 2)]
)
def test_passes_make_the_updates_of_a_plain_loop(policy, tmp_path, preset, passes):
    config = config_of(policy, preset, training={"passes": passes, "warmup_steps": 0})
    with open_trainer(config, tmp_path / "run") as trainer:
        taken = trainer.pipeline.take(0)
        graded = [
            dataclasses.replace(r, grade=dataclasses.replace(r.grade, reward=float(r.id % 3 == 0)))
            for r in taken.responses
        ]
        rollout = dataclasses.replace(taken, responses=graded)
        trainer.pipeline.take = lambda _: rollout
        model = copy.deepcopy(trainer.policy.model)
        before = {name: x.clone() for name, x in model.state_dict().items()}
        run_step(trainer)
        found = {name: x.detach() for name, x in trainer.policy.model.state_dict().items()}
        line = trainer.metrics
    by_hand(model, rollout, config)
    moved = distance(found, before)
    assert moved > 1e-4
    assert distance(found, model.state_dict()) < 1e-3 * moved
    phases = len(config.objective.phases)
    assert line["policy/ratio_max"] > 1
    assert trainer.learner.state["update"] == 2 * phases * passes


def test_the_embedded_profile_limits_updates_and_passes_together():
    def limited(preset: str, **recipe: Any) -> tuple[int, int]:
        training = compose(preset, [("--set", recipe)] if recipe else []).training
        return training.updates_per_step, training.passes

    assert limited("archer") == (2, 1)
    assert limited("archer", training={"passes": 3}) == (2, 3)
    assert limited("grpo") == (1, 1)
    for passes in (0, 1.5, "two"):
        with pytest.raises(ConfigError, match=r"training\.passes"):
            limited("grpo", training={"passes": passes})
