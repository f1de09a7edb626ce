"""Names inside an objective, interpolated quantiles, and ratios to the sampler's log-probs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import on_ranks
from strategies import NAN

from rlobj import ConfigError, Objective, TokenBatch, parse
from rlobj.objectives.frame import Frame
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.surrogates import Cispo, Clip, Unclipped

OMEGA = "abs(advantage / old_prob * prob * (1 - prob) * (logprob + old_entropy))"
SPAN = "1.2 - 0.4 * ({0} - {0}.min()) / ({0}.max() - {0}.min())"


def batch() -> TokenBatch:
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 0, 5, 2])
    size = int(lengths.sum())

    def drawn() -> torch.Tensor:
        return torch.rand(size, generator=random, dtype=torch.float64)

    return TokenBatch(
        lengths=lengths,
        groups=torch.zeros(4),
        ids=torch.arange(4),
        rewards=torch.tensor([1.0, 0, 0, 1]),
        logprobs=(-drawn()).requires_grad_(),
        old_logprobs=-drawn(),
        sampler_logprobs=torch.where(drawn() < 0.3, NAN, -drawn()),
        entropy=drawn(),
        old_entropy=drawn(),
    )


def gradient(objective: Objective) -> torch.Tensor:
    table = batch()
    objective(table).loss.backward()
    assert table.logprobs.grad is not None
    return table.logprobs.grad


def test_a_name_means_the_expression_it_stands_for() -> None:
    written_out = Objective(reweight=SPAN.format(OMEGA))
    named = Objective(let={"omega": OMEGA}, reweight=SPAN.format("omega"))
    assert torch.equal(gradient(named), gradient(written_out))
    assert Objective(**named.model_dump(by_alias=True)) == named
    assert named.model_dump(exclude_defaults=True, by_alias=True) == {
        "let": {"omega": OMEGA},
        "reweight": SPAN.format("omega"),
    }
    assert str(named.explain()).count("old_prob * prob") == 1


def test_names_read_earlier_names_and_clauses_do_not() -> None:
    let = {"rare": "prob < 0.6", "rare_and_right": "rare & (advantage > 0)"}
    objective = Objective(let=let).drop("rare_and_right")
    plan = objective.plan([batch()], clauses=True)
    assert plan.clauses is not None
    [(effect, clause)] = plan.clauses.causes
    assert (effect, clause) == ("dropped", "(prob < 0.6) & (advantage > 0)")
    assert str(parse(clause)) == clause


@pytest.mark.parametrize(
    ("let", "message"),
    [
        ({"omega": "entropyy"}, "let.omega: unknown name 'entropyy'"),
        ({"prob": "entropy"}, "let: expected new names"),
        ({"first": "second", "second": "prob"}, "let.first: unknown name 'second'"),
        (["omega"], "let: expected names with their expressions"),
    ],
)
def test_a_wrong_name_is_refused(let: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(let=let)


@pytest.mark.parametrize("q", [0.0, 0.25, 0.7, 0.8, 1.0])
@pytest.mark.parametrize("size", [1, 2, 6, 11])
def test_an_interpolated_quantile_is_that_of_torch(q: float, size: int) -> None:
    values = -torch.rand(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    table = TokenBatch(lengths=[1] * size, groups=[0] * size, logprobs=values, ids=range(size))
    table = table.replace(advantages=values)
    number: Any = parse(f"logprob.quantile({q}, interpolate=true)")
    assert parse(str(number)) == number
    read = dict.fromkeys(("logprobs", "advantages"), "the test")

    def found(comm: Any, tables: list[TokenBatch]) -> float:
        return float(Frame(tables, read, comm).evaluate(number).data)

    expected = float(values.quantile(q))
    assert found(SingleProcess(), [table]) == pytest.approx(expected, abs=1e-15)
    parts = on_ranks(2, lambda comm: found(comm, [table.split(2)[comm.rank]]))
    assert parts == pytest.approx([expected, expected], abs=1e-15)


def test_sampler_known_is_where_the_sampler_reported_a_log_prob() -> None:
    table = batch()
    assert table.sampler_logprobs is not None
    plan = Objective(keep="sampler_known", divisor={"kind": "token_mean", "over": "kept"}).plan(
        [table]
    )
    known = table.sampler_logprobs.isfinite()
    assert torch.equal(plan.weights[0] != 0, known)
    assert plan.kept == int(known.sum())
    negated = Objective(keep="~sampler_known").plan([table])
    assert torch.equal(negated.weights[0] != 0, ~known)


@pytest.mark.parametrize(
    "surrogate", [Clip(low=0.1, high=0.1), Clip(ratio="sequence"), Unclipped(), Cispo(max=1.1)]
)
def test_a_ratio_against_the_sampler_reads_its_log_probs_and_the_old_ones_where_unknown(
    surrogate: Any,
) -> None:
    table = batch()
    known = table.sampler_logprobs
    assert known is not None
    filled = torch.where(known.isnan(), table.old_logprobs, known)
    with_old = Objective(surrogate=surrogate)(table.replace(old_logprobs=filled)).loss
    against = surrogate.model_copy(update={"against": "sampler"})
    assert torch.equal(Objective(surrogate=against)(table).loss, with_old)
    assert "sampler_logprobs" in Objective(surrogate=against).needs.loss
