"""Selection, loss and gradient of an update do not depend on how its tokens are split.

All presets and compositions are tested with 1 rank x 8 tables, 2 x 4, 4 x 2, ranks without tables
or rows, responses in random order, and groups on several ranks. Two ranks are processes with gloo,
four are threads; most of these are slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked import call_in_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import on_ranks
from strategies import NAN, awkward_batch, fitting, gradients, leaf, objectives
from torch import Tensor

from rlobj import BatchError, Objective, TokenBatch, covariance, entropy
from rlobj.objectives.advantages import Decoupled, MaximumLikelihood
from rlobj.objectives.controllers import Gate
from rlobj.objectives.mismatch import Truncate
from rlobj.objectives.surrogates import Clip

OBJECTIVES = objectives()
NAMES = sorted(OBJECTIVES)
BATCH = awkward_batch(1)
QUICK = ["stapo", "stare-c2", "ar-lopti", "gspo", "otb", "by position", "turn return", "sample"]
"""The objectives that run on ranks in the quick tests: one or more for each kind of exchange."""


def quick_ones_of(names: list[str]) -> list[Any]:
    """The names, of which all but QUICK are slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in QUICK else slow) for name in names]


class Group:
    """A `Comm` over the default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total


def cut(batch: TokenBatch, parts: int, seed: int) -> list[list[int]]:
    """The responses in random order, in this number of parts."""
    order = torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(seed))
    return [part.tolist() for part in order.tensor_split(parts)]


def tables_of(layout: str, rank: int, batch: TokenBatch) -> list[TokenBatch]:
    """The tables of one rank. Of two idle ranks, one has no table and one has an empty table."""
    if rank >= 2 and layout.endswith("idle"):
        return [] if rank == 2 else [batch.select([], index=0)]
    ranks, micro = int(layout[0]), int(layout[2])
    parts = cut(batch, ranks * micro, seed=len(layout))[rank * micro : (rank + 1) * micro]
    return [batch.select(part, index) for index, part in enumerate(parts)]


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
        torch.stack([w, a, *p, *(m.double() for m in masks.values())])
        for w, a, p, masks in zip(
            plan.weights, plan.advantages, plan.penalties, plan.values, strict=True
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


@functools.cache
def uncut(name: str) -> dict[str, Any]:
    """The outcome of one table with the whole update."""
    return outcome(OBJECTIVES[name], [BATCH], BATCH.starts)


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
            "column 'rewards' is -0.5 at response 0 of group",
        ),
        "column absent": (top, alone(without("entropy")), "needs the column 'entropy'"),
        "rewards absent": (top, alone(without("rewards")), "needs the column 'rewards'"),
        "no log-prob of the sampler is known": (
            Objective(mismatch=Truncate()),
            lambda me, tables: [
                t.replace(sampler_logprobs=torch.full_like(t.logprobs, NAN)) for t in tables
            ],
            "'sampler_logprobs' is NaN at all",
        ),
        "half a column": (top, on(1, without("entropy")), "in some tables but absent in"),
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
            "the TokenBatch has no reward 'a'",
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


def outcomes(names: list[str], rank: int, size: int, folder: str) -> dict[Any, Any]:
    """The outcomes of objectives on one rank."""
    comm, tables = start_rank(rank, size, folder), tables_of("2x4", rank, BATCH)
    found = {name: outcome(OBJECTIVES[name], tables, BATCH.starts, comm) for name in names}
    return {**found, **(meet_faults(comm) if names is QUICK else {})}


def quick_rank(rank: int, size: int, folder: str) -> None:
    """The program of one of two ranks: some objectives, and all faults."""
    torch.save(outcomes(QUICK, rank, size, folder), f"{folder}/{rank}.pt")


def whole_rank(rank: int, size: int, folder: str) -> None:
    """The program of one of two ranks: all objectives."""
    torch.save(outcomes(NAMES, rank, size, folder), f"{folder}/{rank}.pt")


def meet_faults(comm: Group) -> dict[Any, Any]:
    """The messages of all faults, and the tokens of a valid update after them."""
    found: dict[Any, Any] = {}
    for name, (objective, change, _) in faults().items():
        tables = change(comm.rank, tables_of("2x4", comm.rank, BATCH))
        try:
            objective.plan(tables, objective.observe(tables, comm=comm), comm)
        except BatchError as error:
            found["fault", name] = str(error)
    tables = [brought(BATCH)] if comm.rank == 0 else []
    found["brought"] = Objective().plan(tables, comm=comm).tokens
    return found


def both(folder: Path, program: Callable[[int, int, str], None]) -> Found:
    call_in_ranks(program, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return both(tmp_path_factory.mktemp("pair"), quick_rank)


@pytest.fixture(scope="module")
def whole_pair(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return both(tmp_path_factory.mktemp("pair"), whole_rank)


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_give_the_same_result_as_one_table(name: str, pair: Found) -> None:
    agree([found[name] for found in pair], uncut(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_give_the_same_result_as_one_table_with_every_objective(name, whole_pair) -> None:
    agree([found[name] for found in whole_pair], uncut(name))


@pytest.mark.parametrize("name", quick_ones_of(NAMES))
@pytest.mark.parametrize("layout", ["4x2", "2x2 and two idle"])
def test_four_ranks_give_the_same_result_as_one_table(name: str, layout: str) -> None:
    def found(comm: Any) -> dict[str, Any]:
        tables = tables_of(layout, comm.rank, BATCH)
        return outcome(OBJECTIVES[name], tables, BATCH.starts, comm)

    agree(on_ranks(4, found), uncut(name))


@pytest.mark.parametrize("name", NAMES)
def test_eight_tables_give_the_same_result_as_one_table(name: str) -> None:
    assert not uncut(name)["facts"][-1]
    assert uncut(name)["gradients"].count_nonzero() > 0
    tables = [BATCH.select(part, index) for index, part in enumerate(cut(BATCH, 8, seed=8))]
    agree([outcome(OBJECTIVES[name], tables, BATCH.starts)], uncut(name))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=40)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 10_000),
    parts=st.integers(1, 8),
    groups=st.integers(3, 8),
)
def test_any_split_of_the_batch_selects_the_same_tokens(dtype, name, seed, parts, groups):
    batch = awkward_batch(seed, groups, dtype, longest=9)
    tables = [batch.select(p, index) for index, p in enumerate(cut(batch, parts, seed))]
    one, many = (outcome(OBJECTIVES[name], part, batch.starts) for part in ([batch], tables))
    if dtype == torch.float64:
        agree([many], one)
    else:
        together = joined([many])
        selected, expected = together["frozen"] != 0, one["frozen"] != 0
        assert torch.equal(selected, expected)
        torch.testing.assert_close(together["gradients"], one["gradients"], rtol=1e-4, atol=1e-8)


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
