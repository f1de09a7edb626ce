"""Random objectives give the same result for any split, order and number of ranks.

They draw expressions with columns of one's own, populations by such a column, names of `let`,
interpolated quantiles, `staleness` and `sampler_known`, and ratios to the sampler's log-probs. The
batches have undecided responses, responses and turns without tokens, numbers in no unit, and
log-probs that the sampler did not report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_ranks
from strategies import (
    OWN,
    awkward_batch,
    by_own_columns,
    expressions,
    larger_numbers,
    larger_rules,
    owned,
    two_rewards,
)
from test_invariance import agree, cut, outcome

from rlobj import BatchError, Objective, TokenBatch
from rlobj.objectives.divisors import FixedLength, PromptMean, SequenceMean, TokenMean
from rlobj.objectives.rules import Expr


def written(expression: Expr) -> str:
    """The text of an expression, with a number in the place of each controller."""
    return re.sub(r"\b(W|M|Beta_2)\b", "0.75", str(expression.expanded()))


SIMPLE = expressions(depth=1, constants=st.sampled_from([-1, 0, 0.125, 0.5, 1, 2]))
DEEPER = larger_numbers(SIMPLE), larger_rules(SIMPLE)
NUMBERS, RULES = (
    deeper.map(written) | own.map(written)
    for deeper, own in zip(DEEPER, by_own_columns(SIMPLE), strict=True)
)
AGAINST = st.sampled_from(["old", "sampler"])
SURROGATES = st.sampled_from(
    [
        {"kind": "clip", "high": "0.2 + when(value < 9, clip(value, 0, 0.3), 0)"},
        {"kind": "unclipped"},
        {"kind": "cispo"},
        {"kind": "switch", "rule": "chosen", "otherwise": "unclipped"},
    ]
)
DIVISORS = st.sampled_from(
    [TokenMean(over="kept"), SequenceMean(over="all"), PromptMean(), FixedLength(length=9)]
)
ADVANTAGES = st.sampled_from(["group_normalized", "leave_one_out", "turn_return"])


@st.composite
def compositions(draw: Any) -> dict[str, Any]:
    """The fields of an objective that read two random expressions by their names, and others."""
    rule, number = draw(RULES), draw(NUMBERS)
    fields = {
        "keep": f"({rule}) | chosen",
        "drop": "chosen",
        "reweight": f"when(({number}) < 9, clip({number}, 0, 2), 0.5)",
        "shape": "advantage * when(value < 9, clip(value, 0, 1), 2)",
        "penalties": [{"kind": "kl", "coefficient": 0.1, "where": rule}],
    }
    surrogate, against = draw(SURROGATES), draw(AGAINST)
    if surrogate["kind"] == "switch":
        surrogate = {**surrogate, "then": {"kind": "clip", "against": against}}
    else:
        surrogate = {**surrogate, "against": against}
    chosen = draw(st.sets(st.sampled_from(sorted(fields)), min_size=1, max_size=3))
    return {
        "columns": OWN,
        "let": {"value": draw(NUMBERS), "chosen": draw(RULES)},
        "advantage": draw(ADVANTAGES),
        "surrogate": surrogate,
        "divisor": draw(DIVISORS),
        **{name: fields[name] for name in chosen},
    }


def batch_of(seed: int) -> TokenBatch:
    batch = owned(awkward_batch(seed, groups=3, longest=5), seed)
    return two_rewards(batch).replace(reward_names=("accuracy", "format"))


BATCHES = [batch_of(seed) for seed in range(8)]


def result(
    objective: Objective, tables: Sequence[TokenBatch], starts: Any, comm: Any = None
) -> Any:
    """The outcome; None if the values are refused."""
    try:
        return outcome(objective, tables, starts, comm)
    except BatchError:
        return None


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_random_objectives_do_not_depend_on_tables_order_and_ranks(examples: int) -> None:
    computed = Counter[bool]()

    @settings(max_examples=examples)
    @given(
        compositions(),
        st.sampled_from(range(len(BATCHES))),
        st.integers(1, 3),
        st.integers(0, 3),
        st.integers(0, 99),
    )
    def check(fields: dict[str, Any], number: int, ranks: int, more: int, seed: int) -> None:
        objective, batch = Objective(**fields), BATCHES[number]
        whole = result(objective, [batch], batch.starts)
        computed[whole is not None] += 1
        parts = cut(batch, ranks + more, seed)  # a rank may have no table
        places = torch.randint(ranks, (len(parts),), generator=torch.Generator().manual_seed(seed))
        tables = [batch.select(part, index) for index, part in enumerate(parts)]

        def on_rank(comm: Any) -> Any:
            mine = [table for table, rank in zip(tables, places, strict=True) if rank == comm.rank]
            return result(objective, mine, batch.starts, comm)

        shares = on_ranks(ranks, on_rank)
        if whole is None:
            assert shares == [None] * ranks
        else:
            agree(shares, whole)

    check()
    assert computed[True] > computed[False]
