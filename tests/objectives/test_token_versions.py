"""The column `staleness`: steps between the weights that drew a token and those that train."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from ranks import on_ranks
from strategies import awkward_batch, owned, tokens
from test_column_levels import numbers

from rlobj import BatchError, Objective, TokenBatch, Truncate
from rlobj.objectives.mismatch import Mismatch

BATCH = tokens([2, 1, 1], [-1.0] * 4, rewards=[1, 0, 1])
MIXED = BATCH.replace(versions=[3, 4, 2, 4])


def test_staleness_is_a_number_of_tokens_and_0_without_versions() -> None:
    assert numbers("staleness", [BATCH]) == [0] * 4
    assert numbers("staleness", [MIXED]) == [1, 0, 2, 0]  # the newest version is 4
    assert numbers("staleness", [MIXED.replace(version=6)]) == [3, 2, 4, 2]
    assert numbers("staleness.max(by='response')", [MIXED]) == [1, 1, 2, 0]
    assert numbers("staleness > 0", MIXED.split(3)) == [1, 0, 1, 0]
    assert Objective(drop="staleness > 0").plan([MIXED]).kept == 2
    undecided = MIXED.replace(rewards=[1, 0, math.nan])  # as if it was empty
    assert numbers("staleness", [undecided.replace(versions=[3, 4, 2, 9])]) == [1, 0, 2]


def test_staleness_of_a_response_is_that_of_each_of_its_tokens() -> None:
    late = BATCH.replace(staleness=[0, 3, 9])
    assert late.staleness.tolist() == [0, 0, 3, 9]
    assert numbers("staleness.mean()", [late]) == [3] * 4  # of tokens
    assert numbers("staleness > 2", late.split(2)) == [0, 0, 1, 1]
    assert BATCH.replace(staleness=[0, 1, 2, 3]).staleness.tolist() == [0, 1, 2, 3]
    few = tokens([2, 0], [-1.0] * 2, staleness=[1, 5])  # as many tokens as responses
    assert few.staleness.tolist() == [1, 1]
    assert few.replace(lengths=[1, 1], staleness=[1, 5]).staleness.tolist() == [1, 5]


@pytest.mark.parametrize("version", [None, 7])
def test_every_operation_keeps_versions(version: int | None) -> None:
    batch = MIXED.replace(version=version)
    parts = [batch.select([2, 1]), TokenBatch.concat([*reversed(batch.split(3)[1:])])]
    for part in parts:
        assert (part.versions.tolist(), part.version) == ([4, 2], version)
    mask = torch.tensor([[1, 1], [0, 1], [1, 0]])
    values = torch.tensor([[3, 4], [0, 2], [4, 0]])
    padded = TokenBatch.from_padded(mask, -1.0 * mask, versions=values, version=version)
    assert (padded.versions.tolist(), padded.version) == ([3, 4, 2, 4], version)
    for staleness in ([1, 2, 3], [[1, 1], [0, 2], [3, 0]]):
        padded = TokenBatch.from_padded(mask, -1.0 * mask, staleness=staleness)
        assert padded.staleness.tolist() == [1, 1, 2, 3]
    few = TokenBatch.from_padded(mask[:1], -1.0 * mask[:1], staleness=[[1, 2]])
    assert few.staleness.tolist() == [1, 2]


def test_what_is_given_twice_or_differs_between_tables_is_refused() -> None:
    with pytest.raises(BatchError, match="leave out staleness"):
        MIXED.replace(staleness=[0, 0, 0])
    with pytest.raises(BatchError, match="leave out staleness"):
        TokenBatch.from_padded(torch.ones(1, 1), -torch.ones(1, 1), versions=[[1]], staleness=[[0]])
    with pytest.raises(BatchError, match=r"'versions' has shape \[3\], expected \[4\]"):
        BATCH.replace(versions=[1, 2, 3])
    with pytest.raises(BatchError, match="the tables differ in version"):
        TokenBatch.concat([MIXED, MIXED.replace(version=5)])


def by_response(tables: Any, weights: Any) -> dict[int, list[float]]:
    """The weights of the tokens of each response, by its id."""
    whole = TokenBatch.concat(tables)
    parts = torch.cat(weights).split(whole.lengths.tolist())
    return {i: part.tolist() for i, part in zip(whole.ids.tolist(), parts, strict=True)}


RULES = ("staleness > 1", "staleness.max(by='response') > 2", "staleness > staleness.mean()")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_newest_version_is_that_of_the_update_for_any_split_order_and_ranks(
    rule: str, seed: int
) -> None:
    batch = owned(awkward_batch(seed, groups=4, longest=5), seed)
    newest = batch.versions.argmax()  # of an undecided response, which is treated as empty
    assert not batch.decided[newest]
    objective = Objective(drop=rule)
    expected = by_response([batch], objective.plan([batch]).weights)
    order = torch.randperm(len(batch.lengths), generator=torch.Generator().manual_seed(seed))
    tables = [*batch.select(order).split(5), batch.select([])]
    assert by_response(tables, objective.plan(tables).weights) == expected
    first, *others = batch.split([1, 5, 11])
    shares = [[first], [], [batch.select([]), *others]]
    plans = on_ranks(3, lambda comm: objective.plan(shares[comm.rank], comm=comm))
    found = [by_response(shares[rank], plans[rank].weights) for rank in (0, 2)]
    assert found[0] | found[1] == expected
    dropped = sum(weight == 0 for weights in expected.values() for weight in weights)
    assert 0 < dropped < len(batch)


MASKED = tokens(
    [4, 3, 2],
    [-1.0] * 9,
    rewards=[1, 0, 1],
    versions=[20, 16, 15, 20, 20, 20, 11, 14, 14],
    sampler_logprobs=[-1, -1.5, -1, -1, -1, -1, -1, -1.25, -0.5],
)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("staleness > 4", [1, 1, 0, 1, 1, 1, 0, 0, 0]),
        ("staleness.max(by='response') > 8", [1, 1, 1, 1, 0, 0, 0, 1, 1]),
        ("(staleness > 4).share(by='response') > 0.5", [1, 1, 1, 1, 1, 1, 1, 0, 0]),
        ("staleness.mean(by='response') > 2.9", [1, 1, 1, 1, 0, 0, 0, 0, 0]),
        # 4 * 0.5 / 4, 0 and 6 * (0.25 + 0.5) / 2
        ("(staleness * abs(sampler_gap)).mean(by='response') > 0.4", [0, 0, 0, 0, 1, 1, 1, 0, 0]),
        ("(staleness * abs(sampler_gap)).mean(by='response') > 1", [1, 1, 1, 1, 1, 1, 1, 0, 0]),
    ],
)
def test_masks_by_staleness_drop_what_they_say(rule: str, kept: list[int]) -> None:
    weights = Objective(drop=rule).plan([MASKED]).weights[0]
    assert (weights != 0).tolist() == [bool(each) for each in kept]


def weight_of(mismatch: Mismatch, batch: TokenBatch) -> torch.Tensor:
    """The factor of each token."""
    with_it, without = (Objective(mismatch=each).plan([batch]) for each in (mismatch, None))
    return with_it.weights[0] / without.weights[0]


def test_the_correction_is_exact_for_a_response_that_several_weights_drew() -> None:
    """E_sampler[f · weight] = E_policy[f], over all responses of two tokens out of three."""
    random = torch.Generator().manual_seed(0)

    def policy() -> tuple[torch.Tensor, torch.Tensor]:
        first, second = torch.randn(3, generator=random), torch.randn(3, 3, generator=random)
        return first.double().log_softmax(0), second.double().log_softmax(1)

    new, old = policy(), policy()
    pairs = [(a, b) for a in range(3) for b in range(3)]

    def logprobs(first: Any, second: Any) -> torch.Tensor:
        return torch.stack([x for a, b in pairs for x in (first[0][a], second[1][a, b])])

    mixed = logprobs(old, new)  # the weights changed after the first token
    facts = {"groups": [0] * 9, "rewards": [1.0, 0.0] * 4 + [1.0], "versions": [3, 4] * 9}
    batch = TokenBatch(
        lengths=[2] * 9, logprobs=logprobs(new, new), sampler_logprobs=mixed, version=4, **facts
    )
    factors = weight_of(Truncate(cap=1e6, level="sequence"), batch)[::2]
    drawn, wanted = mixed.view(9, 2).sum(1).exp(), batch.logprobs.view(9, 2).sum(1).exp()
    f = torch.randn(9, generator=random).double()
    assert float((drawn * factors * f).sum()) == pytest.approx(float((wanted * f).sum()), rel=1e-12)
    assert abs(float((drawn * f).sum()) - float((wanted * f).sum())) > 0.01
    by_token = weight_of(Truncate(cap=1e6), batch)
    assert (by_token[1::2] == 1).all()  # fresh
    assert (by_token[::2] != 1).all()
    unknown = batch.replace(sampler_logprobs=mixed.index_fill(0, torch.tensor([0]), math.nan))
    assert weight_of(Truncate(cap=1e6), unknown)[0] == 1
    rule = "sampler_known & (staleness > 0)"
    assert (Objective(keep=rule).plan([unknown]).weights[0] != 0).tolist() == [
        place % 2 == 0 and place > 0 for place in range(18)
    ]
