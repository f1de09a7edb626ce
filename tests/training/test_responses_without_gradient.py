"""Responses that cannot have a gradient are left out of an update, and the update is the same."""

from __future__ import annotations

import pytest
import torch
from runs import distance, metrics, weights
from strategies import awkward_batch, fitting, gradients, leaf, objectives
from tiny import tiny_config

from rlobj import Objective, TokenBatch
from rlobj.objectives.penalties import KL, EntropyBonus, Penalty, ProxyKL
from rlobj.objectives.surrogates import Clip, Reinforce, Surrogate, Switch
from rlobj.training import run_training
from rlobj.training.loop.opening import open_trainer
from rlobj.training.loop.step import run_step

OBJECTIVES = objectives()
PHASES = {
    f"{name}, phase {i}": phase
    for name, objective in OBJECTIVES.items()
    for i, phase in enumerate(objective.phases, 1)
}
PENALISED = {name for name, objective in PHASES.items() if objective.penalties}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", sorted(PHASES))
def test_skipping_responses_without_gradient_leaves_loss_and_gradient_unchanged(name, seed):
    objective = PHASES[name]
    batch = leaf(fitting(objective, awkward_batch(seed)))
    plan = objective.plan([batch], objective.observe([batch], {"update": 3}))
    whole = objective.loss(batch, plan)
    whole.loss.backward()
    found = objective.responses_with_gradient(batch, plan)
    assert bool(found.any())
    assert not bool(found.all())
    chosen = found.nonzero()[:, 0]
    rows = batch.rows(chosen)
    few = leaf(batch.select(chosen))
    share = objective.loss(few, plan.part(rows))
    share.loss.backward()
    expected, found = gradients(batch), torch.zeros_like(gradients(batch))
    found[:, rows] = gradients(few)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-16)
    torch.testing.assert_close(share.loss, whole.loss, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("name", sorted(PHASES))
def test_what_is_measured_of_the_parts_adds_up_to_the_whole(name):
    objective = PHASES[name]
    batch = fitting(objective, awkward_batch(1))
    plan = objective.plan([batch], objective.observe([batch], {"update": 3}))
    whole = objective.loss(batch, plan).metrics
    found = objective.responses_with_gradient(batch, plan)
    [few, rest] = [side.nonzero()[:, 0] for side in (found, ~found)]
    trained = objective.loss(batch.select(few), plan.part(batch.rows(few))).metrics
    left = objective.loss(batch.select(rest), plan.part(batch.rows(rest))).metrics
    for key, value in whole.items():
        total = trained[key] + left[key]
        torch.testing.assert_close(total, value, rtol=1e-12, atol=1e-16, msg=key)


@pytest.mark.parametrize("name", sorted(PHASES.keys() - PENALISED))
def test_groups_of_equal_rewards_have_no_gradient_unless_a_penalty_acts_on_them(name):
    """The first group of the batch has equal rewards; each of the surrogates knows it."""
    objective = PHASES[name]
    batch = fitting(objective, awkward_batch(1))
    plan = objective.plan([batch], objective.observe([batch], {"update": 3}))
    dead = [plan.advantages[0][batch.responses == i].abs().sum() == 0 for i in range(4)]
    found = objective.responses_with_gradient(batch, plan)
    assert not any(bool(found[i]) for i in range(4) if dead[i])


def with_gradient(objective: Objective, batch: TokenBatch) -> torch.Tensor:
    return objective.responses_with_gradient(batch, objective.plan([batch]))


def dead_batch() -> TokenBatch:
    return TokenBatch(
        lengths=[2, 2, 1, 1],
        groups=[0, 0, 1, 1],
        rewards=[1.0, 1.0, 1.0, 0.0],
        logprobs=-torch.ones(6),
        entropy=torch.ones(6),
        ref_logprobs=-torch.ones(6),
        proxy_logprobs=-torch.ones(6),
    )


@pytest.mark.parametrize("penalty", [KL(), ProxyKL(), EntropyBonus()])
def test_a_penalty_gives_a_gradient_to_the_responses_it_acts_on(penalty):
    batch = dead_batch()
    plain = Objective()
    assert with_gradient(plain, batch).tolist() == [False, False, True, True]
    everywhere = plain.replace(penalties=[penalty])
    assert with_gradient(everywhere, batch).all()
    nowhere = plain.replace(
        penalties=[penalty.model_copy(update={"coefficient": 0 * KL().coefficient})]
    )
    assert with_gradient(nowhere, batch).tolist() == [False, False, True, True]


class Between(Surrogate):
    """Reads other responses: S = l·A + mean(l)."""

    def __call__(self, terms):
        return terms.logprobs * terms.advantages + terms.logprobs.mean()


class Louder(Clip):
    """Another equation than its parent's: not 0 where A is."""

    def __call__(self, terms):
        return terms.token_ratio * (terms.advantages + 1)


class Halved(Reinforce):
    """Declares that it is skippable: proportional to A."""

    skippable = True

    def __call__(self, terms):
        return super().__call__(terms) / 2


class Mean(Penalty):
    """A penalty of one's own."""

    def __call__(self, terms):
        return terms.logprobs - terms.logprobs.mean()


def test_every_response_may_have_a_gradient_under_a_custom_primitive_that_is_not_skippable():
    batch = dead_batch()
    switch = Switch("prob < 0.5", Louder(), Clip())
    for objective in (
        Objective(surrogate=Between()),
        Objective(surrogate=Louder()),
        Objective(surrogate=switch),
        Objective(surrogate=Switch("prob < 0.5", Between(), Clip()), drop="length > 1"),
        Objective(penalties=[Mean(where="advantage > 9")]),
    ):
        found = with_gradient(objective, batch)
        if objective.surrogate is switch:  # m is 1 everywhere
            assert found.tolist() == [True] * 4
        assert found.all()
    halved = Objective(surrogate=Halved())
    assert with_gradient(halved, batch).tolist() == [False, False, True, True]


SECTIONS = {
    "sampling": {"max_tokens": 3, "dynamic": None, "prompts_per_step": 12},
    "training": {"steps": 4, "micro_batch_tokens": 150},
}


@pytest.mark.parametrize(
    ("preset", "updates"),
    [("stapo", 1), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in ("dapo", "lp-reg"))],
)
def test_a_run_is_the_same_with_and_without_skipping(policy, tmp_path, preset, updates):
    """Measured too, where a scoring pass of the same weights was made; else of trained tokens."""
    lines = {}
    for skip in (True, False):
        training = {**SECTIONS["training"], "updates_per_step": updates, "skip_inactive": skip}
        config = tiny_config(policy, preset, **{**SECTIONS, "training": training})
        run_training(config, tmp_path / str(skip))
        lines[skip] = metrics(tmp_path / str(skip))
    assert distance(weights(tmp_path / "True"), weights(tmp_path / "False")) < 5e-6
    assert all(line["tokens/skipped_share"] == 0 for line in lines[False])
    assert any(line["tokens/skipped_share"] > 0.1 for line in lines[True])
    unknown = {"policy/entropy", "policy/kl_old", "policy/ratio", "policy/ratio_max"}
    unknown |= {"tokens/unscored", "entropy/measured_change"}
    unknown |= {name for name in lines[False][-1] if name.startswith(("entropy/q", "prob/"))}
    known = preset in ("stapo", "lp-reg")
    for one, other in zip(lines[True], lines[False], strict=True):
        needs_all = {"sampler/excess", "sampler/excess_error"}
        assert one.keys() - needs_all == other.keys() - needs_all
        counts = {f"tokens/{which}_share" for which in ("skipped", "skipped_logits", "useful")}
        numbers = ("kl", "logprob_gap", "ratio_max", "bias", "slope")
        noise = {f"sampler/{which}" for which in numbers}
        for name in one.keys() - needs_all - counts - noise - (set() if known else unknown):
            expected = other[name] is not None and pytest.approx(other[name], rel=2e-4, abs=1e-5)
            assert one[name] == expected, name
        assert one["policy/ratio"] == pytest.approx(1, abs=0.1)


def test_fresh_samples_are_still_scored_if_no_response_has_a_gradient(
    policy, tmp_path, monkeypatch
):
    """GRPO makes no scoring pass; the update's own forward compares sampler and trainer."""
    from rlobj.rewards.kinds import Graded

    monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "yes", None))
    config = tiny_config(policy, "grpo", sampling={"dynamic": None}, training={"steps": 1})
    with open_trainer(config, tmp_path / "run") as trainer:
        run_step(trainer)
        [line] = trainer.run.lines()
    assert line["tokens/skipped_share"] == 0
    assert 0 < line["sampler/logprob_gap"] < 1e-4


def test_an_update_without_any_gradient_moves_the_weights_by_its_momentum(
    policy, tmp_path, monkeypatch
):
    """AdamW goes on by its momentum where the gradient is zero, with and without leaving out."""
    from rlobj.rewards import kinds

    original, calls = kinds._exact, []

    def dead_from_the_second_step(*given):
        calls.append(1)
        return original(*given) if len(calls) <= 96 else kinds.Graded(1, True, "", None)

    for skip in (True, False):
        calls.clear()
        monkeypatch.setattr("rlobj.rewards.kinds._exact", dead_from_the_second_step)
        training = {**SECTIONS["training"], "steps": 2, "skip_inactive": skip}
        config = tiny_config(policy, "stapo", **{**SECTIONS, "training": training})
        run_training(config, tmp_path / str(skip))
    assert metrics(tmp_path / "True")[-1]["tokens/skipped_share"] == 1
    assert distance(weights(tmp_path / "True"), weights(tmp_path / "False")) < 5e-6
