"""Plan and loss: divisors and metrics by hand, frozen weights, empty updates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from strategies import awkward_batch, fitting, gradients, leaf, objectives, tokens
from torch import Tensor

from rlobj import (
    BatchError,
    ConfigError,
    Objective,
    TokenBatch,
    advantage,
    entropy,
    load_preset,
    prob,
)
from rlobj.objectives.divisors import FixedLength, PromptMean, SequenceMean, SequenceSum, TokenMean
from rlobj.objectives.penalties import KL
from rlobj.objectives.surrogates import Reinforce
from rlobj.objectives.tokens import COLUMN_NAMES

OBJECTIVES = objectives()
DAPO = load_preset("dapo").objective


def rebuilt(batch: TokenBatch, responses: Any) -> TokenBatch:
    """Some responses as a foreign trainer builds them: a new table from padded tensors."""
    few = batch.select(responses)
    mask = few.to_padded(torch.ones(len(few))) > 0
    columns = {name: getattr(few, name) for name in ("groups", "ids", "rewards")}
    for name, values in vars(few).items():
        if name in COLUMN_NAMES and getattr(values, "shape", ()) == few.logprobs.shape:
            columns[name] = few.to_padded(values)
    return TokenBatch.from_padded(mask, **columns)


@pytest.mark.parametrize("name", ["lp-reg", "stare-c2", "gspo", "ar-lopti"])
@pytest.mark.parametrize("tables", [1, 4])
def test_rebuilt_micro_batches_in_another_order_have_the_same_loss_and_gradient(name, tables):
    objective, whole, split = load_preset(name).objective, *map(leaf, [awkward_batch(3)] * 2)
    objective.loss(whole, objective.plan([whole])).loss.backward()
    plan = objective.plan(split.split(tables))
    order = torch.randperm(len(split.lengths), generator=torch.Generator().manual_seed(0))
    for responses in order.tensor_split(7):
        objective.loss(rebuilt(split, responses), plan).loss.backward()
    torch.testing.assert_close(gradients(split), gradients(whole), rtol=1e-12, atol=1e-15)


def test_a_loss_without_the_old_log_probs_of_the_plan_is_refused() -> None:
    batch = tokens([1, 1], [-1.0, -2.0], advantages=[1.0, -1.0], old_logprobs=[-1.5, -1.5])
    plan = DAPO.plan([batch])
    with pytest.raises(BatchError, match="the plan has old_logprobs; pass"):
        DAPO.loss(batch.replace(old_logprobs=None), plan)


def test_a_table_whose_place_in_the_plan_is_not_known_is_refused() -> None:
    batch = tokens([1, 1], [-1.0, -2.0], advantages=[1.0, -1.0])
    tables = [batch.select([i]).replace(ids=None) for i in range(2)]
    plan = DAPO.plan(tables)
    with pytest.raises(BatchError, match=r"this table of 1 tokens.* pass TokenBatch\(ids="):
        DAPO.loss(tables[0], plan)
    assert DAPO.loss(tables[1], plan, index=1).loss > 0
    assert DAPO.loss(tables[1].replace(index=1), plan).loss > 0
    for index in (2, -1):
        with pytest.raises(BatchError, match="this table of 1 tokens"):
            DAPO.loss(tables[1], plan, index)


def test_a_table_with_other_responses_than_the_plan_is_refused() -> None:
    """All tables have as many tokens as the plan's table at their place."""
    batch = tokens([1, 2, 2, 1], [-1.0] * 6, advantages=[1.0, -1.0] * 2, ids=[3, 5, 7, 9])
    tables = batch.split(2)
    plan = DAPO.plan(tables)
    repeated = [table.replace(ids=[0, 1]) for table in tables]
    for table, of, index, message in (
        (tables[1], plan, 0, "not made for this table of 3 tokens"),
        (batch.replace(ids=None).select([2, 3]), plan, 0, "not made for this table"),
        (tables[0].replace(ids=[3, 4]), plan, None, "no response with id 4 .* twice"),
        (batch.select([0, 0]), plan, None, "no response with id 3 .* twice"),
        (tables[1].replace(ids=[3, 9]), plan, None, "no response with id 3 and 2 tokens"),
        (repeated[0].replace(index=None), DAPO.plan(repeated), None, "several .* have the id 0"),
    ):
        with pytest.raises(BatchError, match=message):
            DAPO.loss(table, of, index)
    expected = DAPO.loss(tables[1], plan).loss
    for index in (0, 7):  # its ids say which responses it has
        assert DAPO.loss(tables[1].replace(index=index), plan).loss == expected


def test_plan_and_loss_do_not_modify_tables_and_a_plan_has_no_graph() -> None:
    batch = leaf(awkward_batch(2))
    before = copy.deepcopy({k: v for k, v in vars(batch).items() if isinstance(v, Tensor)})
    for objective in OBJECTIVES.values():
        table = fitting(objective, batch)
        state = objective.observe([table])
        kept = copy.deepcopy(state)
        plan = objective.plan([table], state)
        assert not any(w.requires_grad for w in (*plan.weights, *plan.advantages))
        assert state == kept
        objective.loss(table, plan)
    for name, column in before.items():
        assert torch.equal(column.nan_to_num(), getattr(batch, name).nan_to_num()), name


def test_an_update_without_kept_tokens_has_loss_zero_with_a_graph() -> None:
    batch = leaf(awkward_batch(2))
    for divisor in (TokenMean(), SequenceMean(), SequenceSum(), PromptMean()):
        objective = DAPO.replace(divisor=divisor, drop=prob <= 1)
        plan = objective.plan([batch])
        loss = objective.loss(batch, plan).loss
        assert plan.empty
        assert plan.kept == 0
        assert loss.item() == 0
        loss.backward()
    assert gradients(batch).count_nonzero() == 0
    assert not DAPO.replace(drop=prob <= 1, penalties=[KL()]).plan([batch]).empty


def test_values_that_are_not_finite_have_no_effect_on_dropped_tokens() -> None:
    logprobs = torch.tensor([-1.0, -200.0], dtype=torch.float64, requires_grad=True)
    batch = tokens([2], logprobs, advantages=[1.0])  # type: ignore[arg-type]
    objective = Objective(surrogate=Reinforce(), drop=prob < 0.1)
    plan = objective.plan([batch])
    infinite = batch.replace(
        logprobs=torch.where(torch.tensor([True, False]), logprobs, -torch.inf)
    )
    loss = objective.loss(infinite, plan).loss
    loss.backward()
    assert loss.item() == 1.0
    assert logprobs.grad.tolist() == [-1.0, 0.0]


def test_metrics_equal_values_by_hand() -> None:
    """Ratios 2 and 1; the first is clipped; one of three tokens is dropped."""
    batch = tokens(
        [2, 1],
        [0.0, -1.0, -9.0],
        old_logprobs=[-torch.log(torch.tensor(2.0, dtype=torch.float64)).item(), -1.0, -9.0],
        advantages=[1.0, 1.0],
        entropy=[1.0, 2.0, 6.0],
    )
    objective = DAPO.drop(prob < 0.1)
    plan, output = objective.plan([batch]), objective(batch)
    assert plan.metrics == {
        "objective/kept_fraction": pytest.approx(2 / 3),
        "objective/dropped_tokens": 1.0,
    }
    found = {name: value.item() for name, value in output.metrics.items()}
    assert found.keys() == {
        *("loss/policy", "policy/kl_old", "policy/ratio", "policy/entropy"),
        *("objective/clip_fraction", "clip/high_fraction", "clip/low_fraction"),
    }
    assert found["objective/clip_fraction"] == pytest.approx(1 / 2)
    assert found["policy/ratio"] == pytest.approx(4 / 3)
    assert found["policy/entropy"] == pytest.approx(3)
    assert found["loss/policy"] == pytest.approx(-(1.28 + 1) / 2)
    assert output.extremes["policy/ratio_max"].item() == pytest.approx(2)


def test_the_selected_fraction_of_a_cut_is_a_metric() -> None:
    batch = tokens([4], [-1.0] * 4, advantages=[1.0], entropy=[1.0, 2.0, 2.0, 0.0])
    metrics = DAPO.keep(entropy.top(0.25)).plan([batch]).metrics
    assert metrics["selected/entropy.top(0.25)"] == 0.5  # a tie at the cut is kept


def test_low_precision_tables_keep_their_advantages_and_weights_in_float32() -> None:
    batch = awkward_batch(2, dtype=torch.bfloat16)
    tables = DAPO.with_advantages([batch])
    exact = DAPO.with_advantages([awkward_batch(2)])[0].advantages
    torch.testing.assert_close(tables[0].advantages, exact.float())
    assert DAPO.plan([batch]).weights[0].dtype == torch.float32
    assert DAPO(batch).loss.isfinite()


def test_an_error_is_raised_if_max_tokens_is_not_resolved() -> None:
    limit = FixedLength(length="max_tokens")
    objective = Objective(divisor=limit, penalties=[KL(divisor=limit)])
    batch = tokens([1], [-1.0], advantages=[1.0], ref_logprobs=[-1.0])
    with pytest.raises(ConfigError, match=r"objective\.resolve"):
        objective(batch)
    assert objective.resolve(4).plan([batch]).weights[0].tolist() == [0.25]
    assert objective.resolve(4).plan([batch]).penalties[0][0].tolist() == [0.25]


# Divisors by hand: responses of 2, 1, 0 and 1 tokens in groups 0, 0, 1, 2; tokens 0 and 3 dropped.


@pytest.mark.parametrize(
    ("divisor", "expected"),
    [
        (TokenMean(), [0, 1 / 2, 1 / 2, 0]),
        (TokenMean(over="all"), [0, 1 / 4, 1 / 4, 0]),
        (SequenceMean(), [0, 1 / 2, 1 / 2, 0]),
        (SequenceMean(over="all"), [0, 1 / 6, 1 / 3, 0]),
        (SequenceSum(), [0, 1 / 2, 1 / 2, 0]),
        (FixedLength(length=10), [0, 1 / 20, 1 / 20, 0]),
        (PromptMean(), [0, 1 / 2, 1 / 2, 0]),
        (PromptMean(over="all"), [0, 1 / 6, 1 / 6, 0]),
    ],
    ids=str,
)
def test_divisors_equal_values_by_hand(divisor: Any, expected: list[float]) -> None:
    columns: Any = {"groups": [0, 0, 1, 2], "advantages": [1.0, -1.0, 0.0, 1.0]}
    batch = tokens([2, 1, 0, 1], [-5.0, -0.1, -0.2, -5.0], **columns)
    plan = Objective(divisor=divisor, drop=prob < 0.1).plan([batch])
    assert plan.weights[0].tolist() == pytest.approx(expected)


def test_penalties_have_their_own_tokens_and_divisor() -> None:
    batch = tokens([2, 1], [-5.0, -0.1, -0.2], advantages=[1.0, -1.0], ref_logprobs=[-1.0] * 3)
    penalties = [KL(), KL(coefficient=3, where=prob > 0.1), KL(divisor=SequenceMean())]
    plan = Objective(penalties=penalties, drop=prob < 0.1, reweight=7).plan([batch])
    third, half, quarter = pytest.approx(1 / 3), 1 / 2, 1 / 4
    every, where, by_response = (p.tolist() for p in plan.penalties[0])
    assert every == [third] * 3
    assert where == [0, pytest.approx(1), pytest.approx(1)]  # over="all": 3 tokens, c = 3
    assert by_response == [quarter, quarter, half]
    own = KL(where=prob > 0.1, divisor=TokenMean())
    kept = Objective(penalties=[own]).plan([batch]).penalties[0][0]
    assert kept.tolist() == [0, half, half]


# Random choice.


def test_the_size_of_a_sample_may_be_a_count_of_the_update() -> None:
    batch = awkward_batch(2)
    few = (advantage > 0) & (prob < 0.3)

    def chosen(rule: Any, tables: list[TokenBatch]) -> list[bool]:
        return (torch.cat(Objective(keep=rule).plan(tables).weights) != 0).tolist()

    sample = (advantage > 0).sample(few.count(), seed=1)
    whole = chosen(sample, [batch])
    assert sum(whole) == sum(chosen(few, [batch])) > 3
    assert whole != chosen(few, [batch])
    assert not any(torch.tensor(whole) & ~torch.tensor(chosen(advantage > 0, [batch])))
    assert chosen(sample, batch.split(5)) == whole
    with pytest.raises(BatchError, match="is -4, not >= 0"):
        chosen((advantage > 0).sample((prob < 0).count() - 4), [batch])
    with pytest.raises(BatchError, match="not >= 0"):
        chosen((prob > 0).sample(entropy.mean(within=prob > 1)), [batch])
