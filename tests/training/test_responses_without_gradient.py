"""Responses that cannot have a gradient are left out of an update, and the update is the same."""

from __future__ import annotations

import pytest
import torch
from runs import distance, metrics, open_trainer, weights
from tiny import tiny_config

from rlobj import Objective, TokenBatch
from rlobj.objectives.penalties import KL, EntropyBonus, Penalty, ProxyKL
from rlobj.objectives.surrogates import Clip, Reinforce, Surrogate, Switch
from rlobj.training import run_training
from rlobj.training.loop.step import run_step


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


def test_every_token_may_have_a_gradient_under_a_custom_primitive_that_is_not_skippable():
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
    between = Objective(surrogate=Between())
    assert between.tokens_with_gradient(batch, between.plan([batch])).all()
    halved = Objective(surrogate=Halved())
    assert with_gradient(halved, batch).tolist() == [False, False, True, True]


SECTIONS = {
    "sampling": {"max_tokens": 3, "dynamic": None, "prompts_per_step": 12},
    "training": {"steps": 4, "micro_batch_tokens": 150},
}


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
