"""Rollouts with planted tokens, in fixed batches and in training."""

from __future__ import annotations

import pytest
import torch
from benchmarks.stability.mechanism.batches import (
    TASK,
    Policy,
    Rollout,
    is_right,
    plant,
    roll_out,
    sampled,
    score,
)
from benchmarks.stability.mechanism.growth import Planting, grown

from rlobj.samplers import SamplingSettings


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.load("prepared")


@pytest.fixture(scope="module")
def clean(policy: Policy) -> Rollout:
    return roll_out(policy, 0, prompts=32)


def spurious(prompt: str, response: str) -> list[int]:
    """The places that the judge of the task calls spurious."""
    assert TASK.judge is not None
    marks = TASK.judge(prompt, [*response, ""])
    return [place for place, mark in enumerate(marks) if mark]


def test_a_clean_rollout_has_no_spurious_token_in_a_right_response(clean: Rollout) -> None:
    rows = list(zip(clean.prompts, clean.responses, clean.rewards, strict=True))
    assert {reward for _, _, reward in rows} == {0.0, 1.0}
    for prompt, response, reward in rows:
        assert is_right(prompt, response) == (reward == 1)
        assert reward == 0 or spurious(prompt, response) == []


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_the_judge_finds_exactly_the_planted_tokens(clean: Rollout, rate: float) -> None:
    planted = plant(clean, rate, seed=1)
    assert sum(map(len, planted.planted)) == round(rate * clean.tokens)
    kinds = set()
    for i, places in enumerate(planted.planted):
        prompt, response = planted.prompts[i], planted.responses[i]
        if not places:
            assert response == clean.responses[i]
            continue
        assert clean.rewards[i] == 1
        assert is_right(prompt, response)
        assert tuple(spurious(prompt, response)) == places
        kinds.add(response[places[0]].isdigit())
    assert kinds == {True, False}


def test_a_rate_that_needs_more_right_responses_is_refused(clean: Rollout) -> None:
    with pytest.raises(ValueError, match=r"cannot be planted into \d+ right responses"):
        plant(clean, 0.1, seed=0)


def test_the_planting_sampler_reports_the_policys_log_probabilities(policy: Policy) -> None:
    sampler = Planting(policy, 0.01, seed=0)
    problems = TASK.problems("train")[::500]
    settings = SamplingSettings(max_tokens=40)
    prompts = [policy.ids(problem.prompt) for problem in problems]
    groups = sampler.sample(prompts, count=8, settings=settings, seeds=range(len(prompts)))
    samples = [sample for group in groups for sample in group]
    given = torch.tensor([x for sample in samples for x in sample.logprobs])
    true = score(policy, [(s.prompt_ids, s.token_ids) for s in samples])["logprobs"]
    assert (given - true).abs().max() < 1e-4
    assert sampler.planted == round(0.01 * sampler.sampled) > 0


def test_a_sampled_rollout_is_not_changed_and_marks_what_the_judge_finds(policy: Policy) -> None:
    rollout = sampled(policy, 0)
    raw = roll_out(policy, 0, mend=False)
    assert (rollout.responses, rollout.ended) == (raw.responses, raw.ended)
    marked = [i for i, places in enumerate(rollout.planted) if places]
    assert len(marked) > 10
    for i in marked:
        assert rollout.rewards[i] == 1
        assert tuple(spurious(rollout.prompts[i], rollout.responses[i])) == rollout.planted[i]
    assert float(rollout.marks.sum()) == sum(map(len, rollout.planted))


@pytest.mark.slow
def test_tokens_grow_more_in_a_short_run_that_plants_them_than_in_one_that_does_not() -> None:
    without, planted = (grown("dapo-loss", rate, seed=0, steps=8) for rate in (0.0, 0.01))
    assert planted["planted"] == pytest.approx(0.01, rel=0.05)
    assert without["planted"] == 0
    assert planted["letters"] > 1.1 * without["letters"]
    assert planted["digits"] > 1.1 * without["digits"]
