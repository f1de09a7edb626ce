"""Cuts that rank responses, and the cut at a mean."""

from __future__ import annotations

import pytest
import torch
from strategies import tokens

from rlobj import BatchError, ConfigError, Objective, TokenBatch, parse
from rlobj.objectives.statistics import SingleProcess, mean_cut_by, order_keys


def selected(rule: str, batch: TokenBatch) -> list[bool]:
    assert parse(str(parse(rule))) == parse(rule)
    return (Objective(keep=parse(rule)).plan([batch]).weights[0] != 0).tolist()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("surprisals", "limit", "kept"),
    [
        ([0.0, 1.0, 2.0, 3.0], 1.5, [0, 1, 2, 3]),
        ([3.0, 1.0, 2.0, 0.0], 1.0, [1, 2, 3]),
        ([3.0, 1.0, 2.0, 0.0], 0.99, [1, 3]),
        ([1.0, 4.0, 4.0, 0.0], 2.0, [0, 3]),  # with one 4 the mean is 5/3, with both it is 9/4
        ([2.0, 2.0, 3.0], 1.9, []),
        ([1.0, 1.0, 1 + 3e-8], 1 + 1.5e-8, [0, 1, 2]),  # in float32, all of these are 1
    ],
)
def test_a_cut_at_a_mean_selects_as_many_of_the_smallest_as_the_mean_allows(
    surprisals: list[float], limit: float, kept: list[int]
) -> None:
    batch = tokens([len(surprisals)], [-x for x in surprisals], advantages=[1.0])
    rule = f"surprisal.bottom_to_mean({limit})"
    assert selected(rule, batch) == [i in kept for i in range(len(surprisals))]


def test_a_cut_at_a_mean_is_the_same_for_large_updates_in_float32() -> None:
    values = torch.rand(300_000, generator=torch.Generator().manual_seed(1))
    unit = torch.arange(len(values)) % 3
    ends = mean_cut_by(values, unit, 4, 0.2, SingleProcess())
    for k in range(3):
        own = values[unit == k].sort().values
        means = own.double().cumsum(0) / torch.arange(1, len(own) + 1)
        assert int((order_keys(own) < ends[k]).sum()) == int((means <= 0.2).sum())
    assert ends[3] == torch.iinfo(torch.int64).max  # no values


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("logprob.top(0.5, of='response')", "Rank logprob.mean.by='resp"),
        ("abs(advantage).quantile(0.5, of='response') > 0", "abs.advantage..mean.by='response'"),
        ("reward.top(0.5, of='responses')", "of='responses': expected one of token, response"),
        ("prob.bottom_to_mean(W)", "a number in a rule must be finite, got W"),
        ("prob.bottom_to_mean('1')", "expected a number, got '1'"),
        (
            "prob.bottom_to_mean(1, by='position')",
            "expected one of update, group, rollout, response",
        ),
    ],
)
def test_a_wrong_cut_is_refused(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(rule)


def test_an_infinite_value_of_a_response_without_tokens_is_refused() -> None:
    batch = tokens([2, 0], [-1.0, -2.0], rewards=[0.0, 1.0])
    with pytest.raises(BatchError, match=r"'reward / length' .*is NaN or infinite at response 1"):
        selected("(reward / length).top(0.5, of='response')", batch)


def test_explain_says_whether_tokens_or_responses_are_ranked() -> None:
    def words(rule: str) -> str:
        [[_, _, meaning]] = Objective(keep=parse(rule)).explain().rules  # type: ignore[arg-type]
        return meaning

    whole = "length.bottom(0.5, by='group', of='response')"
    assert "the k smallest length of each group's n rollouts, k = ceil(0.5·n)" in words(whole)
    assert "the k smallest length of the update's n tokens" in words("length.bottom(0.5)")
    assert "as many as have a mean of at most 0.5" in words("entropy.bottom_to_mean(0.5)")
    sample = words("(length > 1).sample(0.5, of='response')")
    assert "ceil(0.5·n) random rollouts with length > 1; n counts the rule's rollouts" in sample
