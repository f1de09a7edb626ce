"""What the step asks of a plan beyond `plan` and `loss`: parts of it, and cuts at little cost."""

from __future__ import annotations

import pytest
import torch
from strategies import awkward_batch, fitting, gradients, leaf, objectives

from rlobj import BatchError
from rlobj.objectives import statistics

OBJECTIVES = objectives()


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_counting_digits_selects_the_same_tokens(monkeypatch, name):
    objective = OBJECTIVES[name]
    batch = fitting(objective, awkward_batch(2))
    state = objective.observe([batch], {"update": 1})
    [direct] = objective.plan([batch], state).weights
    monkeypatch.setattr(statistics, "_FEW", 0)
    [counted] = objective.plan([batch], state).weights
    assert torch.equal(direct, counted)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_parts_of_a_plan_add_up_to_its_loss_and_gradient(name):
    objective = OBJECTIVES[name]
    batch = leaf(fitting(objective, awkward_batch(3)))
    plan = objective.plan([batch], objective.observe([batch], {"update": 1}))
    order = torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(0))
    total, found = torch.zeros(()).double(), torch.zeros(2, len(batch)).double()
    for part in order.tensor_split(5):
        rows, own = batch.rows(part), leaf(batch.select(part))
        loss = objective.loss(own, plan.part(rows)).loss
        loss.backward()
        total += loss.detach()
        found[:, rows] = gradients(own)
    whole = objective.loss(batch, plan).loss
    whole.backward()
    torch.testing.assert_close(total, whole.detach(), rtol=1e-12, atol=1e-16)
    torch.testing.assert_close(found, gradients(batch), rtol=1e-12, atol=1e-16)


def test_a_part_fits_its_own_rows_alone():
    objective, batch = OBJECTIVES["stapo"], awkward_batch(3).replace(ids=None)
    plan = objective.plan([batch])
    with pytest.raises(BatchError, match="the plan was not made for this table of"):
        objective.responses_with_gradient(batch.select([1, 2]), plan)
    with pytest.raises(BatchError, match="the plan was not made for this table of"):
        objective.tokens_with_gradient(batch, plan.part(batch.rows([1])))
