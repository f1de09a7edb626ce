"""The clauses of a plan: which part of a rule decided on each token."""

from __future__ import annotations

import pytest
import torch
from ranks import on_ranks
from strategies import awkward_batch, fitting, objectives, tokens

from rlobj import Objective, TokenBatch, parse
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Rule, Scope
from rlobj.objectives.statistics import SingleProcess

OBJECTIVES = objectives()
READ = (
    *("advantages", "logprobs", "old_logprobs", "entropy", "old_entropy", "collision", "rewards"),
    *("ref_logprobs", "sampler_logprobs", "proxy_logprobs", "old_collision", "stage"),
    *("turn", "turn_reward"),
)
TABLE = {
    "lengths": [3, 3],
    "logprobs": [-7.0, -0.1, -2.0, -7.0, -0.1, -2.0],
    "old_logprobs": [-7.0, -0.1, -2.0, -7.0, -0.1, -2.0],
    "sampler_logprobs": [-7.0, -3.1, -2.0, -7.0, -0.1, -1.0],
    "entropy": [0.1, 0.2, 2.0, 0.1, 0.2, 2.0],
    "rewards": [1.0, 0.0],
}


def touched(objective: Objective, batch: TokenBatch | None = None) -> list[tuple[str, str] | None]:
    """Effect and clause of each token."""
    batch = tokens(**TABLE) if batch is None else batch
    clauses = objective.plan([batch], clauses=True).clauses
    return [clauses.causes[i] if i >= 0 else None for i in clauses.codes.tolist()]


def test_a_dropped_token_has_the_first_part_of_the_rule_that_holds():
    objective = Objective(drop="(advantage > 0) & (prob < 0.01) | (prob < 0.002) | (entropy > 1)")
    first = ("dropped", "(advantage > 0) & (prob < 0.01)")
    second, third = ("dropped", "prob < 0.002"), ("dropped", "entropy > 1")
    assert touched(objective) == [first, None, third, second, None, third]


def test_a_token_that_is_not_kept_has_the_first_condition_that_it_fails():
    objective = Objective(keep="entropy.top(0.5) & (advantage > 0)")
    low, sign = ("dropped", "~entropy.top(0.5)"), ("dropped", "~(advantage > 0)")
    assert touched(objective) == [low, None, None, low, sign, sign]


def test_a_reweighted_token_has_the_condition_of_its_case():
    objective = Objective(reweight="when(prob < 0.01, 0, when(advantage > 0, 2, 1)) * (1)")
    zero, double = ("dropped", "prob < 0.01"), ("reweighted", "advantage > 0")
    assert touched(objective) == [zero, double, double, zero, None, None]
    nested = Objective(reweight="when(advantage > 0, when(prob < 0.5, 2, 1), 3)")
    inner, rest = "(advantage > 0) & (prob < 0.5)", ("reweighted", "~(advantage > 0)")
    assert touched(nested) == [("reweighted", inner), None, ("reweighted", inner), *[rest] * 3]
    assert touched(Objective(reweight="1 + entropy"))[0] == ("reweighted", "1 + entropy")


def test_the_mismatch_correction_touches_tokens_at_its_bounds():
    mask = Objective(mismatch={"kind": "mask", "low": 0.5, "high": 2.0})
    above, below = ("masked", "exp(sampler_gap) > 2.0"), ("masked", "exp(sampler_gap) < 0.5")
    assert touched(mask) == [None, above, None, None, None, below]
    capped = Objective(mismatch={"kind": "truncate", "cap": 2.0, "level": "geometric"})
    clause = ("reweighted", "exp(sampler_gap.mean(by='response')) > 2.0")
    assert touched(capped) == [*[clause] * 3, None, None, None]


def test_switches_and_penalties_touch_their_tokens_and_dropping_comes_first():
    switch = {"kind": "switch", "rule": "entropy > 1", "otherwise": {"kind": "clip"}}
    switch["then"] = {"kind": "switch", "rule": "advantage > 0", "then": {"kind": "unclipped"}}
    switch["then"]["otherwise"] = {"kind": "reinforce"}
    penalties = [{"kind": "kl", "against": "old", "where": "prob < 0.5"}, {"kind": "entropy_bonus"}]
    objective = Objective(surrogate=switch, penalties=penalties, drop="position < 1")
    dropped, other = ("dropped", "position < 1"), ("switched", "entropy > 1")
    assert touched(objective) == [dropped, None, other, dropped, None, other]
    penalised = ("penalised", "prob < 0.5")
    assert touched(Objective(penalties=penalties)) == [penalised, None, penalised] * 2


class Counted(SingleProcess):
    """Keeps the shapes of what is exchanged."""

    def __init__(self):
        self.shapes = []

    def sum(self, tensor):
        self.shapes.append(tensor.shape)
        return tensor


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_each_clause_read_back_holds_on_its_tokens(name):
    """The plan is the same without clauses, which are found without an exchange between ranks."""
    objective = OBJECTIVES[name]
    batch = fitting(objective, awkward_batch(2))
    state = objective.observe([batch], {"update": 1})
    for phase in objective.phases:
        one, two = Counted(), Counted()
        without = phase.plan([batch], state, one)
        plan = phase.plan([batch], state, two, clauses=True)
        assert one.shapes == two.shapes
        assert torch.equal(without.weights[0], plan.weights[0])
        assert without.metrics == plan.metrics
        assert without.clauses is plan.part(batch.rows([0])).clauses is None
        clauses = plan.clauses
        assert not (clauses.codes[~clauses.in_phase] >= 0).any()
        [table] = phase.with_advantages([batch])
        for code, (effect, text) in enumerate(clauses.causes):
            where = clauses.codes == code
            if effect in ("dropped", "masked"):
                assert (clauses.factor[where] == 0).all()
            clause = parse(text, Scope({"stage": "token"}))
            assert str(clause) == text
            frame = Frame([table], dict.fromkeys(READ, text), SingleProcess(), state)
            if isinstance(clause, Rule):
                assert frame.rule(clause)[where].all()
        left_out = clauses.in_phase & (clauses.factor == 0)
        effects = {code for code, (e, _) in enumerate(clauses.causes) if e in ("dropped", "masked")}
        assert set(clauses.codes[left_out].tolist()) <= effects


@pytest.mark.parametrize("name", ["stapo", "20-entropy", "mask", "switch", "clip-cov"])
def test_two_ranks_find_the_clauses_of_one(name):
    objective = OBJECTIVES[name]
    batch = fitting(objective, awkward_batch(3))
    state = objective.observe([batch], {"update": 1})
    tables = batch.split(2)

    def find(comm):
        return objective.plan([tables[comm.rank]], state, comm, clauses=True).clauses.codes

    whole = objective.plan([batch], state, clauses=True).clauses.codes
    assert torch.equal(torch.cat(on_ranks(2, find)), whole)
