"""Selection, loss and gradient of an update do not depend on how its tokens are split.

One property, objective x batch x split x ranks: presets and compositions by name, and objectives of
random expressions; tables of responses in random order, groups on several ranks, ranks without
tables, tables without rows. Ranks are threads; some objectives, and all faults, also run in two
processes with gloo.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import call_in_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_ranks
from strategies import (
    NAN,
    OWN,
    awkward_batch,
    by_own_columns,
    expressions,
    fitting,
    gradients,
    larger_numbers,
    larger_rules,
    leaf,
    objectives,
    owned,
    rolled,
    two_rewards,
)
from torch import Tensor

from rlobj import BatchError, Objective, TokenBatch, covariance, entropy
from rlobj.objectives.advantages import Decoupled, MaximumLikelihood
from rlobj.objectives.controllers import Gate
from rlobj.objectives.divisors import FixedLength, PromptMean, SequenceMean, TokenMean
from rlobj.objectives.mismatch import Truncate
from rlobj.objectives.rules import Expr
from rlobj.objectives.surrogates import Clip

OBJECTIVES = objectives()
NAMES = sorted(OBJECTIVES)
BATCH = awkward_batch(1)
ROLLED = rolled(BATCH, 1)
QUICK = [
    "stapo",
    "stare-c2",
    "ar-lopti",
    "gspo",
    "otb",
    "by position",
    "turn return",
    "bootstrap",
    "sample",
    "rollouts",
]
"""The objectives that run in two processes: one or more for each kind of exchange."""


class Group:
    """A `Comm` over the default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total


def spread(batch: TokenBatch, parts: int, ranks: int, seed: int) -> list[list[TokenBatch]]:
    """The tables of each rank: responses in random order, and a table without rows."""
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(batch.lengths), generator=random).tensor_split(parts)
    places = torch.randint(ranks, (parts,), generator=random).tolist()
    tables: list[list[TokenBatch]] = [[] for _ in range(ranks)]
    for index, (part, place) in enumerate(zip(order, places, strict=True)):
        tables[place].append(batch.select(part, index))
    tables[-1].append(batch.select([], parts))
    return tables


def outcome(
    objective: Objective, tables: Sequence[TokenBatch], starts: Tensor, comm: Any = None
) -> dict[str, Any]:
    """All results of observe, plan, loss and backward, with rows numbered as in the batch."""
    tables = [leaf(fitting(objective, table)) for table in tables]
    state = objective.observe(tables, {"update": 3}, comm)
    plan = objective.plan(tables, state, comm)
    outputs = [objective.loss(table, plan) for table in tables]
    for output in outputs:
        output.loss.backward()
    frozen = [
        torch.stack([w, a, *p, *v, *(m.double() for m in masks.values())])
        for w, a, p, v, masks in zip(
            plan.weights,
            plan.advantages,
            plan.penalties,
            plan.value_shares,
            plan.values,
            strict=True,
        )
    ]
    rows = [starts[table.ids][table.responses] + table.positions for table in tables]  # type: ignore[index]
    metrics: dict[str, Tensor] = {}
    for output in outputs:
        for name, value in output.metrics.items():
            metrics[name] = metrics.get(name, torch.zeros(())) + value
    return {
        "rows": torch.cat([torch.zeros(0, dtype=torch.int64), *rows]),
        "frozen": torch.cat(frozen, 1) if frozen else None,
        "gradients": torch.cat([torch.zeros(2, 0), *map(gradients, tables)], 1),
        "loss": sum((output.loss.detach() for output in outputs), torch.zeros(()).double()),
        "metrics": metrics,
        "largest": max(
            (float(output.extremes["policy/ratio_max"]) for output in outputs), default=0
        ),
        "facts": (state, plan.metrics, plan.tokens, plan.kept, plan.empty),
    }


def joined(shares: list[dict[str, Any]]) -> dict[str, Any]:
    """The joined outcomes of all ranks, with rows in the order of the batch."""
    order = torch.cat([share["rows"] for share in shares]).argsort()
    frozen = [share["frozen"] for share in shares if share["frozen"] is not None]
    names = {name for share in shares for name in share["metrics"]}
    return {
        "rows": torch.cat([share["rows"] for share in shares])[order],
        "frozen": torch.cat(frozen, 1)[:, order],
        "gradients": torch.cat([share["gradients"] for share in shares], 1)[:, order],
        "loss": torch.stack([share["loss"] for share in shares]).sum(),
        "metrics": {n: sum(share["metrics"].get(n, 0) for share in shares) for n in names},
        "largest": max(share["largest"] for share in shares),
        "facts": shares[0]["facts"],
    }


def agree(shares: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Masks, weights and facts are equal to the bit, loss and gradient up to rounding."""
    together = joined(shares)
    assert torch.equal(together["rows"], whole["rows"])
    assert torch.equal(together["frozen"], whole["frozen"])
    for share in shares:
        assert share["facts"] == whole["facts"]
    close = {"rtol": 1e-12, "atol": 1e-16}
    torch.testing.assert_close(together["gradients"], whole["gradients"], **close)
    torch.testing.assert_close(together["loss"], whole["loss"], **close)
    assert together["metrics"].keys() == whole["metrics"].keys()
    for name, value in whole["metrics"].items():
        torch.testing.assert_close(together["metrics"][name], value, **close)
    assert together["largest"] == whole["largest"]


# Objectives of random expressions.


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
BATCHES += [rolled(batch, 1) for batch in BATCHES]


def result(
    objective: Objective, tables: Sequence[TokenBatch], starts: Any, comm: Any = None
) -> Any:
    """The outcome; None if the values are refused."""
    try:
        return outcome(objective, tables, starts, comm)
    except BatchError:
        return None


@st.composite
def cases(draw: Any) -> tuple[Objective, TokenBatch, list[list[TokenBatch]]]:
    """An objective, a batch, and the tables of each rank."""
    seed = draw(st.integers(0, 10_000))
    if draw(st.booleans()):
        objective = OBJECTIVES[draw(st.sampled_from(NAMES))]
        dtype = draw(st.sampled_from([torch.float64, torch.float32]))
        batch = awkward_batch(seed, draw(st.integers(3, 8)), dtype, longest=9)
        batch = rolled(fitting(objective, batch), seed) if draw(st.booleans()) else batch
    else:
        objective, batch = Objective(**draw(compositions())), draw(st.sampled_from(BATCHES))
    tables = spread(batch, draw(st.integers(1, 8)), draw(st.integers(1, 3)), seed)
    return objective, batch, tables


def invariant(objective: Objective, batch: TokenBatch, tables: list[list[TokenBatch]]) -> Any:
    """Check the outcome of all ranks; returns that of one table, None if values are refused."""
    whole = result(objective, [batch], batch.starts)
    ranks = len(tables)
    shares = on_ranks(ranks, lambda at: result(objective, tables[at.rank], batch.starts, at))
    if whole is None:
        assert shares == [None] * ranks
    elif batch.logprobs.dtype == torch.float64:
        agree(shares, whole)
    else:
        together = joined(shares)
        assert torch.equal(together["frozen"] != 0, whole["frozen"] != 0)
        torch.testing.assert_close(together["gradients"], whole["gradients"], rtol=1e-4, atol=1e-8)
    return whole


# Faults: what one rank holds is wrong, and every rank must raise.

Found = list[dict[Any, Any]]  # of each rank
Fault = tuple[Objective, Callable[[int, list[TokenBatch]], list[TokenBatch]], str]


def on(rank: int, change: Callable[[TokenBatch], TokenBatch]) -> Any:
    """Changes the first table of one rank."""
    return lambda me, tables: [change(tables[0]), *tables[1:]] if me == rank else tables


def spoil(name: str) -> Callable[[TokenBatch], TokenBatch]:
    """NaN on the first decided row of a column."""

    def change(table: TokenBatch) -> TokenBatch:
        column = getattr(table, name).clone()
        column[int(table.decided.nonzero()[0])] = NAN
        return table.replace(**{name: column})

    return change


def without(name: str) -> Callable[[TokenBatch], TokenBatch]:
    return lambda table: table.replace(**{name: None})


def entropy_of_77(table: TokenBatch) -> TokenBatch:
    """An entropy of 77 on the first decided row."""
    values = table.column("entropy", "the test").clone()
    values[int(table.decided.nonzero()[0])] = 77.0
    return table.replace(entropy=values)


INFINITE: dict[str, tuple[dict[str, Any], str]] = {
    "weight": ({"reweight": "1 / (entropy - 77)"}, "'1 / (entropy - 77)' is NaN or infinite at"),
    "number in a population": (
        {"keep": "entropy > log(77 - entropy).mean(by='group')"},
        "'log(77 - entropy)' is NaN or infinite at row",
    ),
    "setting": ({"surrogate": Clip(high="1 / (77 - entropy)")}, "is NaN or infinite at row"),
}


def brought(table: TokenBatch) -> TokenBatch:
    return table.replace(advantages=torch.ones(len(table.lengths)))


def faults() -> dict[str, Fault]:
    top, gate = Objective(keep=entropy.top(0.2)), {"W": Gate(target=1.0, on=1.1)}
    sample = Objective(drop=(covariance > 0).sample(0.5))
    alone = lambda change: lambda me, tables: [change(t) for t in tables] if me == 1 else tables  # noqa: E731
    return {
        "nan in a rule": (top, on(0, spoil("entropy")), "'entropy' is nan at row"),
        "nan in the loss": (top, on(1, spoil("old_logprobs")), "'old_logprobs' is nan"),
        "nan in the reward": (
            top.replace(reward_kl=0.1),
            on(1, spoil("ref_logprobs")),
            "'ref_logprobs' is nan",
        ),
        "reward below 0": (
            top.replace(advantage=MaximumLikelihood()),
            lambda me, tables: [t.replace(rewards=0 * t.rewards - 0.5 * me) for t in tables],  # type: ignore[operator]
            "column 'rewards' is -0.5 at response 0",
        ),
        "column absent": (top, alone(without("entropy")), "needs the column 'entropy'"),
        "rewards absent": (top, alone(without("rewards")), "needs the column 'rewards'"),
        "no log-prob of the sampler is known": (
            Objective(mismatch=Truncate()),
            lambda me, tables: [
                t.replace(sampler_logprobs=torch.full_like(t.logprobs, NAN)) for t in tables
            ],
            "'sampler_logprobs' is NaN everywhere",
        ),
        "half a column": (top, on(1, without("entropy")), "in some tables and not in all"),
        "half the rollouts": (
            top,
            alone(lambda table: table.replace(rollouts=table.ids)),
            "'rollouts' is in some tables",
        ),
        "a rollout in two groups": (
            top,
            lambda me, tables: [t.replace(rollouts=torch.arange(len(t.ids))) for t in tables],
            "rows of rollout 0; expected the same",
        ),
        "half the advantages": (top, alone(brought), "'advantages' is in some tables"),
        **{
            f"infinite {name}": (Objective(**settings), on(1, entropy_of_77), message)
            for name, (settings, message) in INFINITE.items()
        },
        "setting out of bounds": (
            Objective(surrogate=Clip(high="76 - entropy")),
            on(1, entropy_of_77),
            "surrogate.high '76 - entropy' is not a number >= 0 at row",
        ),
        "own column absent on one rank": (
            Objective(columns=["stage"]).keep("stage > 0"),
            alone(lambda table: table.replace(columns={})),
            "needs the column 'stage'",
        ),
        "other names of rewards": (
            Objective(keep="reward('a') > 0"),
            alone(lambda table: table.replace(reward_names=("b",))),
            "reward_names has no reward 'a'",
        ),
        "other rewards": (
            top.replace(advantage=Decoupled()),
            on(1, lambda table: table.replace(rewards=torch.zeros(len(table.lengths), 2))),
            "different numbers of rewards",
        ),
        "ids absent": (sample, alone(without("ids")), "needs TokenBatch"),
        "nan to a controller": (
            top.replace(controllers=gate),
            on(0, spoil("old_entropy")),
            "'old_entropy' is nan",
        ),
    }


def start_rank(rank: int, size: int, folder: str) -> Group:
    torch.set_num_threads(1)
    store, patience = f"file://{folder}/store", timedelta(seconds=300)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=patience)
    return Group()


def rank_of_two(rank: int, size: int, folder: str) -> None:
    """The program of one of two ranks: some objectives, and all faults."""
    comm = start_rank(rank, size, folder)
    found = {
        (name, of_rollouts): outcome(
            OBJECTIVES[name], spread(batch, 8, 2, seed=0)[rank], BATCH.starts, comm
        )
        for name in QUICK
        for batch, of_rollouts in ((BATCH, False), (ROLLED, True))
    }
    torch.save({**found, **meet_faults(comm)}, f"{folder}/{rank}.pt")


def meet_faults(comm: Group) -> dict[Any, Any]:
    """The messages of all faults, and the tokens of a valid update after them."""
    found: dict[Any, Any] = {}
    for name, (objective, change, _) in faults().items():
        tables = change(comm.rank, spread(BATCH, 8, 2, seed=0)[comm.rank])
        try:
            objective.plan(tables, objective.observe(tables, comm=comm), comm)
        except BatchError as error:
            found["fault", name] = str(error)
    tables = [brought(BATCH)] if comm.rank == 0 else []
    found["brought"] = Objective().plan(tables, comm=comm).tokens
    return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("pair")
    call_in_ranks(rank_of_two, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", QUICK)
def test_two_processes_give_the_same_result_as_one_table(name: str, pair: Found) -> None:
    for batch, of_rollouts in ((BATCH, False), (ROLLED, True)):
        whole = outcome(OBJECTIVES[name], [batch], batch.starts)
        agree([found[name, of_rollouts] for found in pair], whole)


@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_each_objective_gives_the_same_result_for_any_tables(name: str, ranks: int) -> None:
    whole = invariant(OBJECTIVES[name], BATCH, spread(BATCH, 8, ranks, seed=8))
    of_rollouts = rolled(fitting(OBJECTIVES[name], BATCH), 1)
    assert invariant(OBJECTIVES[name], of_rollouts, spread(of_rollouts, 8, ranks, seed=8))
    assert not whole["facts"][-1]
    assert whole["gradients"].count_nonzero() > 0


@pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_any_objective_gives_the_same_result_for_any_split_order_and_ranks(examples: int) -> None:
    computed = Counter[bool]()

    @settings(max_examples=examples)
    @given(cases())
    def check(case: Any) -> None:
        computed[invariant(*case) is not None] += 1

    check()
    assert computed[True] > 3 * computed[False]


def test_the_batch_has_ties_at_the_threshold_of_each_rule() -> None:
    """Without ties, the tests above could not detect a selection that depends on position."""
    plan = Objective(keep=entropy.top(0.2)).plan([BATCH])
    assert plan.kept > -(-plan.tokens // 5)


@pytest.mark.parametrize("name", sorted(faults()))
def test_an_error_on_one_rank_is_raised_on_all_ranks(name: str, pair: Found) -> None:
    messages = [found["fault", name] for found in pair]
    expected = faults()[name][2]
    assert any(expected in message for message in messages), messages
    assert all(expected in m or "another rank" in m for m in messages), messages


def test_given_advantages_work_if_a_rank_has_no_table(pair: Found) -> None:
    assert [found["brought"] for found in pair] == [int(BATCH.decided.sum())] * 2
