"""Surrogates and penalties: finite differences, closed forms, limits, values by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from strategies import tokens
from torch import Tensor
from torch.autograd import gradcheck

from rlobj import BatchError, Objective, TokenBatch
from rlobj.objectives.mismatch import Mask, Truncate
from rlobj.objectives.penalties import KL, EntropyBonus, Penalty, ProxyKL
from rlobj.objectives.surrogates import (
    Cispo,
    Clip,
    ClippedRatio,
    DppoTv,
    GeometricMean,
    Reinforce,
    SoftGate,
    Surrogate,
    Switch,
    Terms,
    Unclipped,
    Vespo,
)

OLD = torch.tensor([-1.0, -2.0, -0.5, -0.7, -1.5, -3.0], dtype=torch.float64)
MOVED = torch.tensor([0.3, -0.35, 0.05, 0.31, -0.28, 0.45], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.5, 1.5, 1.5, -0.5, -0.5, -0.5], dtype=torch.float64)
LENGTHS = [3, 0, 2, 1]
RULE = "surprisal.top(0.5)"
ESTIMATORS: Any = ("k1", "abs", "k2", "k3")


def batch(logprobs: Tensor, **columns: Any) -> TokenBatch:
    columns = {"old_logprobs": OLD, "advantages": ADVANTAGES, **columns}
    return tokens(LENGTHS, logprobs, **columns)  # type: ignore[arg-type]


def terms(logprobs: Tensor, masks: Mapping[str, Tensor] | None = None, **columns: Any) -> Terms:
    table = batch(logprobs, **columns)
    return Terms(table, logprobs, table.advantages, masks or {})


def gradient_of(term: Surrogate | Penalty, **columns: Any) -> Tensor:
    logprobs = (OLD + MOVED).requires_grad_()
    term(terms(logprobs, **columns)).sum().backward()
    return logprobs.grad


@pytest.mark.parametrize(
    "term",
    [
        Clip(low=0.2, high=0.28),
        Clip(low=0.2, high=0.28, dual=1.2),
        Clip(low=0.1, high=0.1, ratio="product"),
        ClippedRatio(min=0.75, max=1.3),
        Unclipped(),
        Reinforce(),
        SoftGate(tau_pos=0.8, tau_neg=1.3),
        GeometricMean(eps=0.32),
        Switch(RULE, Unclipped(), Clip()),
        *(KL(estimator=name) for name in ESTIMATORS),
        *(KL(estimator=name, unbiased=True) for name in ESTIMATORS),
        KL(estimator="k2", against="old"),
        *(ProxyKL(estimator=name) for name in ESTIMATORS),
    ],
    ids=str,
)
def test_gradients_equal_finite_differences(term: Surrogate | Penalty) -> None:
    masks = {RULE: torch.tensor([True, False, True, False, True, False])}
    columns = {"ref_logprobs": OLD - 0.21, "proxy_logprobs": OLD + 0.11}

    def value(logprobs: Tensor) -> Tensor:
        return term(terms(logprobs, masks, **columns))

    assert gradcheck(value, ((OLD + MOVED).requires_grad_(),))


def test_the_entropy_bonus_lowers_the_loss_for_higher_entropy() -> None:
    def value(entropy: Tensor) -> Tensor:
        return EntropyBonus()(terms(OLD, entropy=entropy))

    entropy = torch.arange(6, dtype=torch.float64).requires_grad_()
    assert gradcheck(value, (entropy,))
    assert value(entropy).tolist() == [0, -1, -2, -3, -4, -5]


def test_extreme_log_ratios_stay_finite() -> None:
    logprobs = torch.full((6,), -1e4, dtype=torch.float64, requires_grad=True)
    ratios = (Clip(), ClippedRatio(), Unclipped(), Cispo(), SoftGate(), GeometricMean())
    for surrogate in (*ratios, DppoTv(), Vespo()):
        (gradient,) = torch.autograd.grad(surrogate(terms(logprobs)).sum(), logprobs)
        assert gradient.isfinite().all(), surrogate
        far = surrogate(terms(OLD, old_logprobs=logprobs.detach()))
        assert far.isfinite().all(), surrogate


def test_the_mismatch_factor_equals_values_by_hand() -> None:
    """Of gaps log 4, log 0.5 | log 2.5; the golden cases have the other levels."""
    table = tokens([2, 1], [-1.0] * 3)
    gap = torch.tensor([4, 0.5, 2.5], dtype=torch.float64).log()
    assert Truncate(cap=3, level="sequence")(gap, table).tolist() == pytest.approx([2, 2, 2.5])
    geometric = Truncate(cap=2.2, level="geometric")
    assert geometric(gap, table).tolist() == pytest.approx([2**0.5, 2**0.5, 2.2])


FAR = torch.tensor([5.0, 15.0, 30.0])


@pytest.mark.parametrize(
    ("max_gap", "max_value", "gradient"),
    [  # TRL, Lp-Reg, AR-Lopti, verl: 1 − exp(gap) where no clamp acts
        (None, None, [-147.41, -3.2690e6, -1.06865e13]),
        (None, 10.0, [0.0, 0.0, 0.0]),
        (5.0, 10.0, [0.0, 0.0, 0.0]),
        (20.0, None, [-147.41, -3.2690e6, 0.0]),
    ],
)
@pytest.mark.parametrize("kind", [KL, ProxyKL])
def test_the_clamps_of_k3_are_those_of_the_releases(kind, max_gap, max_value, gradient):
    penalty = kind(max_gap=max_gap, max_value=max_value)
    logprobs = torch.full((3,), -31.0, requires_grad=True)
    column = "ref_logprobs" if kind is KL else "proxy_logprobs"
    table = TokenBatch([3], [0], logprobs, **{column: (-31.0 + FAR)})
    value = penalty(Terms(table, logprobs, torch.zeros(3), {}))
    value.sum().backward()
    gap = FAR if max_gap is None else FAR.clamp(max=max_gap)
    expected = (gap.exp() - gap - 1).clamp(max=max_value or torch.inf)
    torch.testing.assert_close(value.detach(), expected)
    torch.testing.assert_close(logprobs.grad, torch.tensor(gradient), rtol=1e-4, atol=0)


@pytest.mark.parametrize(("name", "low"), [("k1", -9), ("abs", 9), ("k2", 9)])
def test_a_clamped_value_acts_on_each_estimator(name: Any, low: float) -> None:
    gap = torch.tensor([-40.0, 2.0, 40.0])
    found = KL(estimator=name, max_value=9.0).estimate(gap, torch.zeros(3))
    assert found.tolist() == [low, 2, 9]


LIMITED = [kind for kind in Surrogate.registry.values() if "max_log_ratio" in kind.model_fields]
RATIOS = [*LIMITED, partial(Clip, ratio="sequence"), partial(Clip, ratio="product")]


@pytest.mark.parametrize("ratio", ["token", "sequence", "product"])
@pytest.mark.parametrize(("limit", "value"), [(None, 30.0), (40.0, 30.0), (20.0, 20.0), (10.0, 10)])
def test_ratios_are_clamped_as_set(ratio: Any, limit: float | None, value: float) -> None:
    """A response of one token with A < 0, where no clip acts above."""
    logprobs = torch.tensor([-1.0], requires_grad=True)
    table = TokenBatch([1], [0], logprobs, old_logprobs=[-31.0])
    surrogate = Clip(ratio=ratio, max_log_ratio=limit)
    found = surrogate(Terms(table, logprobs, -torch.ones(1), {}))
    found.backward()
    torch.testing.assert_close(found.detach(), -torch.tensor([math.exp(value)]))
    expected = torch.zeros(1) if value < 30 else -torch.tensor([math.exp(30)])
    torch.testing.assert_close(logprobs.grad, expected)


def test_the_sequence_ratio_has_no_floor_and_no_clamp_of_single_tokens() -> None:
    logprobs = torch.tensor([-41.0, -1.0])
    table = TokenBatch([2], [0], logprobs, old_logprobs=[-1.0, -17.0])  # gaps −40 and 16
    found = Clip(ratio="sequence", max_log_ratio=10.0)(Terms(table, logprobs, torch.ones(2), {}))
    torch.testing.assert_close(found, torch.full((2,), math.exp(-12)))


@pytest.mark.parametrize("build", RATIOS)
def test_a_token_with_advantage_0_has_no_value_and_no_gradient_at_any_ratio(build: Any) -> None:
    """`skippable` says so, also without a clamp: exp(200) is infinite in float32."""
    surrogate = build(max_log_ratio=None)
    assert surrogate.skippable
    logprobs = torch.tensor([-1.0, -300.0], requires_grad=True)
    columns = {"old_logprobs": [-201.0, -1.0]}
    for lengths in ([2], [1, 1]):
        table = TokenBatch(lengths, [0] * len(lengths), logprobs, **columns)
        value = surrogate(Terms(table, logprobs, torch.zeros(2), {}))
        (gradient,) = torch.autograd.grad(value.sum(), logprobs)
        assert value.tolist() == gradient.tolist() == [0, 0]


SURROGATES = [
    *(kind for name, kind in Surrogate.registry.items() if name not in ("switch", "custom")),
    lambda: Clip(ratio="sequence"),
    lambda: Clip(ratio="product"),
    lambda: Switch("surprisal > 100", Unclipped(), Clip()),
]


@pytest.mark.parametrize("build", SURROGATES)
@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_log_prob_that_is_not_finite_is_an_error_with_every_surrogate(build, bad, sign):
    objective = Objective(surrogate=build())
    old = torch.full((4,), -1.0)
    columns = {"rewards": [1.0, 0.0, math.nan], "old_logprobs": old, "sampler_logprobs": old}
    table = TokenBatch([2, 1, 1], [0, 0, 0], old, advantages=[sign, -sign, 0.0], **columns)
    plan = objective.plan([table])
    broken = table.replace(logprobs=torch.tensor([-1.0, bad, -1.0, -1.0]))
    message = rf"'logprobs' is {bad} at row 1 \(response 0, token 1\)"
    with pytest.raises(BatchError, match=message):
        objective.loss(broken, plan)
    assert not objective.loss(broken, plan, check=False).loss.isfinite()
    undecided = table.replace(logprobs=torch.tensor([-1.0, -1.0, -1.0, bad]))
    assert objective.loss(undecided, plan).loss.isfinite()


def test_a_penalty_that_is_not_finite_is_an_error() -> None:
    table = TokenBatch([1], [0], [-1.0], advantages=[1.0], entropy=[1.0])
    objective = Objective(penalties=[EntropyBonus()])
    plan = objective.plan([table])
    with pytest.raises(BatchError, match=r"'entropy' is nan at row 0"):
        objective.loss(table.replace(entropy=[math.nan]), plan)
    huge = Objective(penalties=[KL(estimator="k2", coefficient=1e38)])
    far = table.replace(ref_logprobs=[-100.0])
    with pytest.raises(BatchError, match=r"the loss is inf at finite log-probs"):
        huge.loss(far, huge.plan([far]))


READERS: list[dict[str, Any]] = [
    {"mismatch": Truncate()},
    {"mismatch": Mask(level="sequence")},
    {"mismatch": Truncate(level="geometric")},
    {"drop": "sampler_gap > 0.1"},
    {"surrogate": DppoTv(against="sampler")},
    {"penalties": [KL(against="sampler")]},
]


@pytest.mark.parametrize("reader", READERS, ids=str)
@pytest.mark.parametrize("old", [OLD, None])
def test_an_unknown_sampler_log_prob_has_gap_0_and_is_counted(reader, old):
    objective = Objective(**reader)
    unknown = torch.tensor([True, False, False, True, False, False])
    logprobs = (OLD + MOVED).requires_grad_()
    same = OLD if old is not None else logprobs.detach()
    given = torch.where(unknown, same, OLD - 0.2)
    known, absent = (
        batch(logprobs, old_logprobs=old, sampler_logprobs=column)
        for column in (given, given.masked_fill(unknown, math.nan))
    )
    expected, found = objective(known), objective(absent)
    assert torch.equal(found.weights, expected.weights)
    assert found.loss.item() == expected.loss.item()
    assert objective.plan([absent]).metrics["sampler/nan_tokens"] == 2
    assert "sampler/nan_tokens" not in objective.plan([known]).metrics
    unread = Objective()  # alike with one table and with several
    assert unread.plan([absent]).metrics == unread.plan(absent.split(2)).metrics


@pytest.mark.parametrize("reader", READERS, ids=str)
def test_a_sampler_column_without_any_known_log_prob_is_refused(reader: dict[str, Any]) -> None:
    """One known log-prob in any table of the update is enough; an undecided one is not."""
    objective = Objective(**reader)
    table = batch(OLD, sampler_logprobs=OLD, rewards=[1.0, 0.0, 1.0, math.nan])
    unknown = table.replace(sampler_logprobs=torch.full((6,), math.nan))
    undecided = table.replace(sampler_logprobs=torch.where(table.decided, math.nan, OLD))
    for column in (unknown, undecided):
        with pytest.raises(BatchError, match="'sampler_logprobs' is NaN everywhere"):
            objective.plan(column.split(2))
    assert objective.plan([unknown.replace(ids=[1, 2, 3, 4]), table.replace(ids=[5, 6, 7, 8])])
    assert Objective().plan([unknown]).tokens == 5
    assert objective.plan([unknown.replace(rewards=[math.nan] * 4)]).empty
