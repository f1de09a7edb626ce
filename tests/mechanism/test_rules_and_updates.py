"""Which planted tokens the rules find, and what one update does to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.stability.conditions import objective
from benchmarks.stability.mechanism import rules, updates
from benchmarks.stability.mechanism.batches import Policy, plant, roll_out, table_of
from benchmarks.stability.mechanism.gradients import slopes

from rlobj import TokenBatch
from rlobj.scoring import FILTERED


@pytest.fixture(scope="module")
def sharp() -> Policy:
    return Policy.load("sharp")


@pytest.fixture(scope="module")
def table(sharp: Policy) -> TokenBatch:
    rollout = plant(roll_out(sharp, 0), 0.01, 0)
    return objective("dapo-loss").with_advantages([table_of(sharp, rollout)])[0]


@pytest.fixture(scope="module")
def case(sharp: Policy) -> updates.Case:
    return updates.Case.make(sharp, 0.01, 0, 1e-4)


@pytest.fixture(scope="module")
def update(case: updates.Case) -> dict[str, dict[str, Any]]:
    return updates.compared(case)


def rates(found: dict[str, float]) -> tuple[float, float]:
    """(precision, recall)."""
    return found["caught"] / found["tokens"], found["caught"] / found["planted"]


def test_each_condition_of_stapo_removes_tokens_that_are_not_planted(table: TokenBatch) -> None:
    found = rules.judged(table)
    precision, recall = rates(found["stapo"])
    assert precision > 0.65
    assert 0.4 < recall < 0.8
    for name in ("A > 0", "rare", "certain", "A > 0, certain", "rare, certain"):
        other, more = rates(found[name])
        assert other < precision - 0.02, name
        assert more >= recall, name
    assert rates(found["A > 0, rare"])[1] > recall + 0.1  # H costs recall: some places are open


def test_stapos_set_is_the_intersection_of_its_conditions(table: TokenBatch) -> None:
    each = [rules.selected(rule, table) for rule in rules.CONDITIONS.values()]
    assert torch.equal(rules.selected(rules.SETS["stapo"], table), each[0] & each[1] & each[2])
    assert torch.equal(
        rules.selected(rules.SETS["stapo"], table), rules.touched(objective("stapo"), table)
    )


def test_what_the_other_objectives_touch(table: TokenBatch) -> None:
    found = rules.judged(table)
    assert found["stare"]["caught"] == found["stare"]["planted"]  # and gives them more weight
    assert 0.3 < rates(found["20-entropy"])[1] < 0.9
    for name in ("lp-reg", "clip-cov", "kl-cov"):  # they act on tokens with A < 0
        assert found[name]["caught"] == 0, name
    assert found["random"]["tokens"] == found["stapo"]["tokens"]
    assert found["random"]["caught"] < 0.2 * found["stapo"]["caught"]
    assert found["ar"]["caught"] > 0.5 * found["ar"]["planted"]


def test_lp_reg_finds_nothing_because_the_least_likely_tokens_are_outside_its_proxy(table):
    least = "logprob.bottom(0.01, within=advantage < 0, round='floor', none_below=2)"
    chosen = rules.selected(least, table)
    assert chosen.any()
    assert table.proxy_logprobs is not None
    assert (table.proxy_logprobs[chosen] == FILTERED).all()


def test_recall_rises_and_precision_falls_with_tau_p(table: TokenBatch) -> None:
    rows = [row for row in rules.swept(table) if row["tau_h"] == 1.0]
    caught = [row["caught"] for row in rows]
    assert caught == sorted(caught)
    assert rates(rows[0])[0] > rates(rows[-1])[0] + 0.2
    assert rates(rows[-1])[1] == 1


def test_rules_that_find_planted_tokens_remove_what_these_add_to_themselves(update):
    base = update["dapo-loss"]["planted"]
    apart = {name: found["planted"] - base for name, found in update.items()}
    perfect = apart["perfect rule"]
    assert perfect < -0.01
    assert 0.3 < apart["stapo"] / perfect < 0.9
    assert apart["stapo"] / perfect < apart["stapo, any entropy"] / perfect <= 1.05
    assert apart["stare"] > 0  # its weight acts on planted tokens as well
    assert abs(apart["random"]) < 0.2 * abs(perfect)


def test_on_policy_many_objectives_make_the_update_of_their_base(table, update):
    for base, others in {
        "dapo-loss": ("justrl", "cispo", "kl-cov", "lp-reg"),
        "grpo": ("gspo", "sapo"),
    }.items():
        own, _ = slopes(objective(base), table)
        for name in others:
            slope, _ = slopes(objective(name), table)
            assert torch.allclose(slope / slope.norm(), own / own.norm(), rtol=1e-3), name
            assert update[name]["planted"] == update[base]["planted"]
    assert update["stapo"]["planted"] != update["dapo-loss"]["planted"]


def test_the_policy_is_as_before_after_an_update(sharp: Policy, case: updates.Case) -> None:
    before = {name: tensor.clone() for name, tensor in sharp.model.state_dict().items()}
    first = updates.updated(case, objective("dapo-loss"))
    assert all(torch.equal(t, before[name]) for name, t in sharp.model.state_dict().items())
    assert updates.updated(case, objective("dapo-loss")) == first
