"""Neutral settings, phases and equivalent rules give the same loss to the bit."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from strategies import awkward_batch, loss_and_gradients, tokens

from rlobj import Objective, entropy, load_preset, old_prob, prob, surprisal, when
from rlobj.objectives import functional
from rlobj.objectives.divisors import TokenMean
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Clip, SoftGate, Switch, Unclipped

DAPO = load_preset("dapo").objective


BATCH = awkward_batch(2)


@pytest.mark.parametrize(
    ("neutral", "base"),
    [
        (DAPO.drop(prob < 0), DAPO),
        (DAPO.drop(entropy.bottom(0)), DAPO),
        (DAPO.keep(prob <= 1), DAPO),
        (DAPO.keep(entropy.top(1.0)), DAPO),
        (DAPO.keep(entropy <= entropy.quantile(1.0)), DAPO),
        (DAPO.reweight(1), DAPO),
        (DAPO.reweight(0 * old_prob + 1), DAPO),  # Advantage Reweighting with alpha = 0
        (DAPO.reweight(when(surprisal.top(0), 3, 1)), DAPO),
        (DAPO.drop((prob < 1).sample(0)), DAPO),
        (DAPO.replace(penalties=[KL(coefficient=0)]), DAPO),
        (DAPO.replace(reward_kl=0.0), DAPO),
        (DAPO.replace(divisor=TokenMean(over="all")), DAPO),
        (DAPO.replace(surrogate=Switch("prob < 0", Unclipped(), DAPO.surrogate)), DAPO),
        (DAPO.replace(surrogate=Clip(low=0.2, high=0.28, dual=1e9)), DAPO),
        (DAPO.replace(surrogate=Clip(low=1e9, high=1e9)), DAPO.replace(surrogate=Unclipped())),
        (DAPO.drop(prob < 0.3), DAPO.keep(prob >= 0.3)),
        (DAPO.keep(entropy.bottom(0.3)), DAPO.keep(entropy <= entropy.quantile(0.3))),
        (DAPO.keep(entropy.top(0.3)), DAPO.drop(entropy < -((-entropy).quantile(0.3)))),
        (DAPO.drop(prob < 0.3).drop(prob > 0.6), DAPO.drop((prob < 0.3) | (prob > 0.6))),
        (DAPO.keep(prob > 0.3).keep(prob < 0.6), DAPO.keep((prob > 0.3) & (prob < 0.6))),
        (DAPO.reweight(2).reweight(prob), DAPO.reweight(2 * prob)),
        (load_preset("stare").objective, DAPO.replace(surrogate=Clip(low=0.2, high=0.28, dual=10))),
    ],
)
def test_a_neutral_setting_equals_the_base_to_the_bit(neutral: Objective, base: Objective) -> None:
    loss, gradient = loss_and_gradients(neutral, BATCH)
    expected, expected_gradient = loss_and_gradients(base, BATCH)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


def test_mismatch_correction_of_equal_policies_equals_the_base_to_the_bit() -> None:
    batch = BATCH.replace(sampler_logprobs=BATCH.old_logprobs)
    expected = loss_and_gradients(DAPO, batch)
    for kind, level in product(("truncate", "mask"), ("token", "sequence", "geometric")):
        corrected = DAPO.replace(mismatch={"kind": kind, "level": level})
        assert all(map(torch.equal, loss_and_gradients(corrected, batch), expected))


def test_sapo_on_policy_has_the_gradient_of_the_unclipped_objective() -> None:
    batch = BATCH.replace(old_logprobs=None)
    _, soft = loss_and_gradients(Objective(surrogate=SoftGate()), batch)
    _, plain = loss_and_gradients(Objective(surrogate=Unclipped()), batch)
    torch.testing.assert_close(soft, plain, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", ["lopti", "ar-lopti"])
def test_the_losses_of_lopti_phases_add_up_to_the_unsplit_loss(name: str) -> None:
    objective = load_preset(name).objective
    first, second = (loss_and_gradients(phase, BATCH) for phase in objective.phases)
    for whole in (objective.replace(split=None), objective):
        loss, gradient = loss_and_gradients(whole, BATCH)
        torch.testing.assert_close(first[0] + second[0], loss, rtol=1e-13, atol=0)
        assert torch.equal(first[1] + second[1], gradient)
    assert first[1].any()
    assert second[1].any()
    assert not ((first[1] != 0) & (second[1] != 0)).any()


def test_penalties_of_a_phase_are_divided_by_all_tokens() -> None:
    """As in Lopti's release: `agg_loss(kld * phase_mask, response_mask)`."""
    batch = tokens([3], [-0.1, -3.0, -4.0], advantages=[1.0], ref_logprobs=[-1.0, -2.0, -5.0])
    objective = Objective(penalties=[KL()]).split(old_prob < 0.5)
    for phase, mask in zip(objective.phases, ([0, 1, 1], [1, 0, 0]), strict=True):
        expected = (functional.k3(batch.logprobs, batch.ref_logprobs) * torch.tensor(mask)).mean()
        torch.testing.assert_close(phase(batch).metrics["loss/kl_reference"], expected)
    selected = objective.replace(penalties=[KL(where=prob < 0.04, divisor=TokenMean())])
    shares = [phase.plan([batch]).penalties[0][0].tolist() for phase in selected.phases]
    assert shares == [[0, 0, 1], [0, 0, 0]]
