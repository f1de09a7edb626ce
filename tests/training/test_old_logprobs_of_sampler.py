"""`training.old_logprobs: sampler`: l0 is what the sampler reported, and a step scores less."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import distance, metrics, open_trainer, optimizer_of
from tiny import tiny_config
from torch import Tensor

from rlobj import RunError, TokenBatch, read_tables
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.loss_metrics import sampler_gap
from rlobj.scoring import score_samples
from rlobj.settings.run_config import RunConfig
from rlobj.training import run_training
from rlobj.training.loop.step import run_step
from rlobj.training.rollouts.collector import Rollout


def config_of(policy: Path, preset: str = "grpo", **sections: Any) -> RunConfig:
    training = {
        "steps": 1,
        "updates_per_step": 2,
        "old_logprobs": "sampler",
        "adam_epsilon": 1e-3,
        "warmup_steps": 0,
        **sections.pop("training", {}),
    }
    sampling = {"prompts_per_step": 6, "max_tokens": 3, "dynamic": None, "max_logprob_gap": 9.0}
    sampling |= sections.pop("sampling", {})
    return tiny_config(policy, preset, sampling=sampling, training=training, **sections)


@dataclasses.dataclass
class Step:
    """One step on a rollout whose log-probs are not quite the policy's.

    Attributes:
        rollout: what was trained on.
        before: the policy before the step.
        after: its tensors after it.
        scored, trained: passes over responses without and with gradient.
        line: the metrics.
        remembered: the mean entropy that the step keeps for the next one.
    """

    rollout: Rollout
    before: Any
    after: dict[str, Tensor]
    scored: int
    trained: int
    line: dict[str, Any]
    remembered: float


def shifted(logprobs: Any) -> list[float]:
    """Log-probs as a sampler with other arithmetic reports them."""
    return [value - 0.1 - 0.2 * (i % 2) for i, value in enumerate(logprobs)]


def every_third(response: Any) -> float:
    return float(response.id % 3 == 0)


def step(
    config: RunConfig, folder: Path, logprobs: Any = shifted, reward: Any = every_third
) -> Step:
    passes: Counter[bool] = Counter()
    with open_trainer(config, folder) as trainer:
        taken, forward = trainer.pipeline.take(0), trainer.learner.forward
        graded = [
            dataclasses.replace(
                response,
                grade=dataclasses.replace(response.grade, reward=reward(response)),
                logprobs=logprobs(response.logprobs),
            )
            for response in taken.responses
        ]
        rollout = dataclasses.replace(taken, responses=graded)
        trainer.pipeline.take = lambda _: rollout
        before, run = copy.deepcopy(trainer.policy.model), forward.run

        def counted(*arguments: Any, **settings: Any) -> Any:
            for part in run(*arguments, **settings):
                passes[torch.is_grad_enabled()] += len(part[0])
                yield part

        forward.run = counted
        run_step(trainer)
        after = {name: x.detach() for name, x in trainer.policy.model.state_dict().items()}
        remembered = trainer.learner.state["entropy"][0]
        return Step(
            rollout, before, after, passes[False], passes[True], trainer.metrics, remembered
        )


def halves(rollout: Rollout) -> list[list[int]]:
    """The responses of each of two mini-batches of three groups."""
    groups = list(dict.fromkeys(response.group for response in rollout.responses))
    return [
        [i for i, r in enumerate(rollout.responses) if r.group in part]
        for part in (groups[:3], groups[3:])
    ]


def by_hand(done: Step, config: RunConfig) -> tuple[Any, list[float], dict[str, float], float]:
    """The updates in a plain loop with the sampler's log-probs as l0.

    Returns:
        The policy, the losses, and the gap and the mean entropy of the first mini-batch.
    """
    objective, training = config.resolved_objective(), config.training
    model, responses = copy.deepcopy(done.before), done.rollout.responses
    sequences = [(list(r.prompt), list(r.tokens)) for r in responses]
    reported = torch.tensor([value for r in responses for value in r.logprobs])
    whole = TokenBatch(
        lengths=[r.length for r in responses],
        groups=[r.group for r in responses],
        rewards=[r.reward for r in responses],
        logprobs=reported,
        old_logprobs=reported,
        sampler_logprobs=reported,
    )
    [whole] = objective.with_advantages([whole])
    optimizer = optimizer_of(model, training)
    losses, gap, entropy = [], {}, math.nan
    for rows in halves(done.rollout):
        few = [sequences[i] for i in rows]
        scores = score_samples(model, few, temperature=1.0, entropy=True)
        table = whole.select(rows).replace(logprobs=scores.logprobs)
        if not losses:
            assert scores.entropy is not None
            known = (scores.logprobs, table.sampler_logprobs, SingleProcess())
            gap, entropy = sampler_gap(*known), float(scores.entropy.detach().mean())  # type: ignore[arg-type]
        still = table.replace(logprobs=scores.logprobs.detach())
        loss = objective.loss(table, objective.plan([still]), 0).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses, gap, entropy


def test_updates_take_the_samplers_log_probs_without_a_scoring_pass(policy, tmp_path):
    config = config_of(policy, training={"skip_inactive": False})
    done = step(config, tmp_path / "run")
    model, losses, gap, entropy = by_hand(done, config)
    assert done.scored == 0
    moved = distance(done.after, dict(done.before.state_dict()))
    assert moved > 1e-4
    assert distance(done.after, dict(model.state_dict())) < 1e-3 * moved
    assert done.line["loss/total"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    found = {name: done.line[name] for name in gap}  # not of the second, which has moved weights
    assert found == pytest.approx(gap, rel=1e-3, abs=1e-5)
    assert gap["sampler/logprob_gap"] > 0.1
    assert done.remembered == pytest.approx(entropy, rel=1e-5)


@pytest.mark.parametrize(("alive", "share"), [(0, 0.5), (1, 1.0)])
def test_only_the_first_update_scores_responses_without_a_gradient(policy, tmp_path, alive, share):
    """They are compared with the sampler there; later updates leave them out."""

    def reward(response: Any) -> float:
        return float(response.id % 3 == 0 and response.group // 3 == alive)

    done = step(config_of(policy), tmp_path / "run", reward=reward)
    assert {response.group for response in done.rollout.responses} == {*range(6)}
    assert (done.scored, done.trained) == (0, share * len(done.rollout.responses))
    assert done.line["sampler/logprob_gap"] > 0.1


def test_scores_are_compared_with_what_the_first_update_scored(policy, tmp_path):
    """Before the first step the reference is the policy, and reads the same tokens."""
    config = config_of(policy, objective={"penalties": ["kl"]})
    done = step(config, tmp_path / "run")
    assert done.scored == len(done.rollout.responses)  # by the reference
    assert done.line["score/reference/gap"] == pytest.approx(0, abs=1e-6)


def test_a_log_prob_that_the_sampler_does_not_know_is_refused(policy, tmp_path):
    calls: list[int] = []

    def unknown(logprobs: Any) -> list[float]:
        calls.append(len(logprobs))
        return [*logprobs[:-1], math.nan] if len(calls) in (3, 5) else logprobs

    message = r"no log-prob of 2 tokens of this step\. Use training\.old_logprobs=policy"
    with pytest.raises(RunError, match=message):
        step(config_of(policy), tmp_path / "run", unknown)
    calls.clear()
    step(config_of(policy, training={"old_logprobs": "policy"}), tmp_path / "policy", unknown)


@pytest.mark.parametrize(
    ("keep", "updates", "passes"),
    [
        ("entropy > 0", 2, 1.5),  # and once more for the second update
        ("old_entropy > 0", 2, 1.0),
        ("old_prob < 2", 2, 0.0),
        ("old_entropy > 0", 1, 0.0),  # the update's own pass serves the rule
    ],
)
def test_a_pass_that_a_rule_needs_is_made_and_leaves_the_samplers_log_probs(
    policy, tmp_path, keep, updates, passes
):
    config = config_of(
        policy,
        objective={"keep": keep},
        training={"updates_per_step": updates, "shared_prompts": False},
        output={"tables_every": 1},
    )
    done = step(config, tmp_path / "run")
    responses = done.rollout.responses
    assert done.scored == passes * len(responses)
    reported = torch.tensor([value for r in responses for value in r.logprobs])
    tables = [update.table for update in read_tables(tmp_path / "run")]
    old = torch.cat([table.old_logprobs for table in tables])
    assert torch.equal(old, reported)
    if "old_entropy" in keep:
        sequences = [(list(r.prompt), list(r.tokens)) for r in responses]
        with torch.no_grad():
            entropy = score_samples(done.before, sequences, entropy=True).entropy
        torch.testing.assert_close(torch.cat([table.old_entropy for table in tables]), entropy)


ALWAYS = {"objective": {"shape": "when(position < 1, 1, -1)"}}
"""An objective that trains on every response of a policy that is never right."""


def test_ratios_of_stale_samples_refer_to_the_weights_that_sampled(policy, tmp_path):
    """Of two runs with one update a step, only the one on the sampler's log-probs has ratios."""
    ratios = {}
    for which in ("policy", "sampler"):
        training = {"steps": 3, "updates_per_step": 1, "old_logprobs": which, "learning_rate": 1e-2}
        config = config_of(policy, sampling={"async_depth": 1}, training=training, **ALWAYS)
        run_training(config, tmp_path / which)
        ratios[which] = [line["policy/ratio_max"] for line in metrics(tmp_path / which)]
    assert ratios["policy"] == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)
    fresh, *stale = ratios["sampler"]
    assert fresh == pytest.approx(1.0, abs=1e-4)
    assert min(stale) > 1.001
