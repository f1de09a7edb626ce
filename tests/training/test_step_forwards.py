"""How often each preset's step goes through the model: no pass is made that nothing reads."""

from __future__ import annotations

import copy
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from forked import call_in_ranks
from runs import open_trainer
from tiny import save_tiny_policy, tiny_config

from rlobj.scoring import score_samples
from rlobj.training.loop.step import run_step

RULES_READ_THE_POLICY = {"archer", "lp-reg", "stapo"}
READ_THE_OLD_POLICY = {"tis"}
TWO_PHASES = {"lopti"}
KL_TO_A_REFERENCE = {"archer", *TWO_PHASES}


def expected(preset: str, updates: int, shared: bool) -> dict[str, float]:
    """Passes over each response of a step: trained, scored without gradient, reference.

    A scoring pass is made where rules read the policy and no single forward serves both, or where
    later updates need the log-probs of the rollout's policy. Rules that read the current policy
    have later updates of it scored anew; Lp-Reg's proxy comes from the same pass.
    """
    reads = preset in RULES_READ_THE_POLICY | READ_THE_OLD_POLICY
    several = updates > 1 or preset in TWO_PHASES
    scored = float(several or (reads and not shared))
    if preset in RULES_READ_THE_POLICY:
        scored += 1 - 1 / updates
    return {
        "trained": 2.0 if preset in TWO_PHASES else 1.0,
        "scored": scored,
        "reference": float(preset in KL_TO_A_REFERENCE),
    }


SEVERAL = ("archer", "grpo", "lopti", "stapo", "tis")
CASES = [
    *((preset, updates, 10**6) for preset in SEVERAL for updates in (1, 4)),
    *(("stapo", 1, 400), ("lp-reg", 4, 10**6)),
]
"""A step scores in a pass of its own, in the update's only forward, and for several updates."""


@pytest.mark.parametrize(
    ("preset", "updates", "micro_batch_tokens"),
    [
        case if case[0] in ("grpo", "stapo") else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_a_step_makes_the_passes_that_its_objective_reads(
    policy, tmp_path, preset, updates, micro_batch_tokens
):
    training = {
        "steps": 1 if updates == 1 else 2,
        "updates_per_step": updates,
        "micro_batch_tokens": micro_batch_tokens,
        "skip_inactive": False,
        "shared_prompts": False,  # they make micro-batches smaller
    }
    config = tiny_config(policy, preset, training=training)
    passes: Counter[str] = Counter()
    with open_trainer(config, tmp_path / "run") as trainer:
        learner = trainer.learner
        original = learner.forward.run

        def counted(scorer, *rest, **settings):
            trained = "trained" if torch.is_grad_enabled() else "scored"
            frozen = [each.scorer for each in learner.scores.all.values()]
            kind = "reference" if scorer in frozen else trained
            for found in original(scorer, *rest, **settings):
                passes[kind] += len(found[0])
                yield found

        learner.forward.run = counted
        for _ in range(config.training.steps):
            run_step(trainer)
        lines = trainer.run.lines()
    assert [line["step"] for line in lines] == [1, 2][: config.training.steps]
    assert all(math.isfinite(line["loss/total"]) for line in lines)
    responses = sum(line["reward/groups"] for line in lines) * config.sampling.group_size
    found = {kind: passes[kind] / responses for kind in ("trained", "scored", "reference")}
    assert found == pytest.approx(expected(preset, updates, micro_batch_tokens == 10**6), abs=0.02)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_p": 0.04, "relative": False},
        {"temperature": 0.5},
        {"policy": "current"},
        {"min_p": 0.04, "relative": False, "temperature": 2.0, "policy": "current"},
    ],
    ids=str,
)
def test_the_proxy_has_the_threshold_temperature_and_policy_of_its_penalty(
    policy, tmp_path, settings
):
    penalty = {"kind": "proxy_kl", "min_p": 0.1, **settings}
    config = tiny_config(
        policy,
        "lp-reg",
        objective={"penalties": [penalty]},
        training={"steps": 1, "updates_per_step": 2, "micro_batch_tokens": 400},
    )
    asked = {key: value for key, value in settings.items() if key != "policy"}
    asked = {"temperature": config.sampling.temperature, "min_p": 0.1, **asked}
    gaps = []
    with open_trainer(config, tmp_path / "run") as trainer:
        learner, plan = trainer.learner, trainer.learner.plan
        before = copy.deepcopy(learner.model)

        def compared(phase, batch):
            found = batch.table.proxy_logprobs
            for model in (before, learner.model):
                with torch.no_grad():
                    proxy = score_samples(model, batch.sequences, **asked).proxy_logprobs
                gaps.append(float((found - proxy).abs().max()))
            return plan(phase, batch)

        learner.plan = compared
        run_step(trainer)
    old, current = gaps[2:]  # of the second update
    same, other = (current, old) if settings.get("policy") == "current" else (old, current)
    assert max(gaps[:2]) < 1e-5
    assert same < 1e-5 < other


def synced(rank: int, size: int, folder: str) -> None:
    """Each backward pass of two steps: whether it is the last, and the exchanges that it makes."""
    training = {"steps": 2, "updates_per_step": 2, "micro_batch_tokens": 100}
    training |= {"skip_inactive": False, "shared_prompts": False}
    config = tiny_config(Path(folder) / "policy", training=training)
    with open_trainer(config, Path(folder) / "run") as trainer:
        calls, backwards = [], []

        def hook(_, bucket):
            calls.append(bucket.is_last())
            exchange = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
            return exchange.get_future().then(lambda future: future.value()[0] / size)

        trainer.learner.scorer.__self__._module.register_comm_hook(None, hook)
        original = trainer.parallel.backward

        def backward(loss, last):
            before = len(calls)
            original(loss, last)
            backwards.append((last, len(calls) - before))

        trainer.parallel.backward = backward
        run_step(trainer)
        run_step(trainer)
    assert all((exchanges > 0) == last for last, exchanges in backwards), backwards
    assert len({exchanges for last, exchanges in backwards if last}) == 1
    assert sum(last for last, _ in backwards) == 4 < len(backwards) / 3


@pytest.mark.slow
def test_processes_exchange_gradients_with_the_last_micro_batch_only(tmp_path):
    """Two updates a step, two steps: four exchanges, however many micro-batches."""
    save_tiny_policy(tmp_path / "policy")
    call_in_ranks(synced, 2, tmp_path)
