"""The phases of an objective add up to it."""

from __future__ import annotations

import pytest
import torch
from strategies import awkward_batch, loss_and_gradients, tokens

from rlobj import Objective, load_preset, old_prob, prob
from rlobj.objectives import functional
from rlobj.objectives.divisors import TokenMean
from rlobj.objectives.penalties import KL

BATCH = awkward_batch(2)


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
