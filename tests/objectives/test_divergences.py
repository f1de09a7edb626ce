"""Divergences from a teacher over the vocabulary: the function, and the penalty that reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from strategies import tokens
from torch import Tensor

from rlobj import BatchError, ConfigError, Objective, load_preset
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.objectives.functional import divergence

CASES: list[tuple[str, dict[str, Any]]] = [
    ("reverse_kl", {}),
    ("forward_kl", {}),
    *(("jsd", {"beta": beta}) for beta in (0.0, 0.2, 0.5, 1.0)),
    ("reverse_kl_topk", {"k": 3}),
    ("reverse_kl_topk", {"k": 3, "renormalise": True}),
    ("reverse_kl_topk", {"k": 3, "outside": -100.0}),
    ("forward_kl_topk", {"k": 3}),
    ("cross_entropy_topk", {"k": 3}),
    ("mixed_kl_topk", {"k": 3, "weight": 0.3}),
    ("mixed_kl_topk", {"k": 3, "weight": 0.3, "outside": -100.0}),
]


def logits(seed: int, vocabulary: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(5, vocabulary, dtype=torch.float64, generator=generator)


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def expected(kind: str, policy: list[float], teacher: list[float], **settings: Any) -> float:
    """One position, in plain loops."""
    p, q = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in (policy, teacher))
    if kind == "jsd":
        beta = settings["beta"]
        if beta in (0, 1):
            return kl(p, q) if beta else kl(q, p)
        m = [(1 - beta) * a + beta * b for a, b in zip(p, q, strict=True)]
        return beta * kl(q, m) + (1 - beta) * kl(p, m)
    weight, outside = settings.get("weight", 0.5), settings.get("outside")
    rest = 0.0
    if "k" in settings:
        owner = p if kind == "reverse_kl_topk" else q  # as in verl
        top = sorted(range(len(q)), key=lambda token: -owner[token])[: settings["k"]]
        others = [p[token] for token in range(len(q)) if token not in top]
        if outside is not None:
            rest = sum(a * (math.log(a) - outside) for a in others)
        p, q = [p[token] for token in top], [q[token] for token in top]
        mixed = kind == "mixed_kl_topk" and outside is None
        if mixed or settings.get("renormalise"):
            p = [a / sum(p) for a in p]
        if mixed or settings.get("renormalise") or kind == "cross_entropy_topk":
            q = [b / sum(q) for b in q]
    if kind == "cross_entropy_topk":
        return -sum(b * math.log(a) for a, b in zip(p, q, strict=True))
    if kind.startswith("mixed"):
        return weight * kl(q, p) + (1 - weight) * (kl(p, q) + rest)
    return kl(q, p) if kind.startswith("forward") else kl(p, q) + rest


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_a_divergence_is_that_of_plain_loops_and_its_gradient_that_of_differences(kind, settings):
    policy, teacher = logits(0).requires_grad_(), logits(1)
    values = divergence(kind, policy, teacher, **settings)
    pairs = zip(policy.tolist(), teacher.tolist(), strict=True)
    loops = torch.tensor([expected(kind, *pair, **settings) for pair in pairs])
    torch.testing.assert_close(values, loops.double(), rtol=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(lambda z: divergence(kind, z, teacher, **settings), (policy,))


@pytest.mark.parametrize(("kind", "settings"), CASES[:6])
def test_the_slopes_by_log_probs_give_the_gradient_by_logits(kind, settings):
    policy, teacher = logits(0).requires_grad_(), logits(1)
    value = divergence(kind, policy, teacher, **settings).sum()
    [gradient] = torch.autograd.grad(value, policy)
    logp = policy.detach().log_softmax(-1)
    measure = DivergenceSettings(of=kind.removesuffix("_kl"), **settings)
    slope = measure.terms(logp, teacher.log_softmax(-1))[1]
    torch.testing.assert_close(slope - logp.exp() * slope.sum(-1, keepdim=True), gradient)


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_padding_of_a_larger_vocabulary_has_no_probability(kind, settings):
    policy, teacher = logits(0), logits(1)
    values = divergence(kind, policy, teacher, **settings)
    longer = torch.cat([teacher, 5 + logits(2, 4)], -1)
    assert torch.equal(divergence(kind, policy, longer, **settings), values)
    assert torch.equal(
        divergence(kind, torch.cat([policy, teacher], -1), teacher, **settings), values
    )
    masked = [torch.cat([z, torch.full((5, 2), -torch.inf)], -1) for z in (policy, teacher)]
    torch.testing.assert_close(divergence(kind, *masked, **settings), values)


@pytest.mark.parametrize(
    ("kind", "settings", "infinite"),
    [
        ("reverse_kl", {}, [True, False]),
        ("forward_kl", {}, [False, True]),
        ("jsd", {"beta": 0.0}, [False, True]),
        ("jsd", {"beta": 1.0}, [True, False]),
        ("jsd", {"beta": 0.5}, [False, False]),
        ("reverse_kl_topk", {"k": 2}, [True, False]),
        ("reverse_kl_topk", {"k": 1, "outside": -9.0}, [True, False]),
        ("forward_kl_topk", {"k": 2}, [False, True]),
        ("forward_kl_topk", {"k": 1}, [False, False]),  # the one token is another
        ("cross_entropy_topk", {"k": 2}, [False, True]),
        ("mixed_kl_topk", {"k": 3, "weight": 0.5}, [True, True]),
        ("mixed_kl_topk", {"k": 3, "weight": 1.0}, [False, True]),
    ],
)
def test_a_token_that_only_one_of_them_can_draw_makes_a_divergence_infinite(
    kind, settings, infinite
):
    both = torch.tensor([[3.0, 2.0, 1.0, -math.inf], [-math.inf, 5.0, 1.0, -math.inf]])
    other = torch.tensor([[-math.inf, 2.0, 1.0, -math.inf], [4.0, 5.0, 1.0, -math.inf]])
    policy = both.double().requires_grad_()
    values = divergence(kind, policy, other, **settings)
    assert values.isinf().tolist() == infinite
    assert not values.isnan().any()
    values[~values.isinf()].sum().backward()
    assert policy.grad is not None
    assert policy.grad.isfinite().all()


def test_a_teacher_gets_no_gradient():
    policy, teacher = logits(0).requires_grad_(), logits(1).requires_grad_()
    divergence("jsd", policy, teacher).sum().backward()
    assert policy.grad is not None
    assert teacher.grad is None


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("jds", {}, "no divergence 'jds'. Did you mean 'jsd'"),
        ("jsd", {"alpha": 0.1}, "no setting 'alpha'"),
        ("reverse_kl", {"k": 3}, "no setting 'k'"),
        ("forward_kl_topk", {}, "needs k, the number of tokens: k=20"),
        ("forward_kl_topk", {"k": 0}, "at least|greater than or equal to 1, got 0"),
        ("jsd", {"beta": 1.5}, "beta: .*got 1.5"),
        ("mixed_kl_topk", {"k": 3, "weight": 2}, "beta: .*got 2"),
        ("forward_kl_topk", {"k": 2.5}, "top: .*got 2.5"),
        ("reverse_kl_topk", {"k": 2, "outside": 3.0}, "outside: .*got 3"),
        ("reverse_kl_topk", {"k": 2, "outside": math.nan}, "outside: .*finite"),
        ("mixed_kl_topk", {"k": 3, "renormalise": True, "outside": -1.0}, "without renormalise"),
    ],
)
def test_a_wrong_kind_or_setting_is_refused(kind, settings, message):
    with pytest.raises(ConfigError, match=message):
        divergence(kind, logits(0), logits(1), **settings)


def test_logits_of_other_positions_are_refused():
    with pytest.raises(BatchError, match="differ in N"):
        divergence("jsd", logits(0), logits(1)[1:])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"of": "forward", "top": 3, "outside": -9.0}, "belongs to reverse and mixed with top"),
        ({"of": "reverse", "outside": -9.0}, "outside: belongs to reverse and mixed with top"),
        ({"of": "reverse", "renormalise": True}, "renormalise: belongs to top"),
        ({"of": "kl"}, "of: "),
        ({"of": "forward", "beta": 0.2}, "beta: belongs to jsd and mixed"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings, message):
    penalty = {"kind": "divergence", "against": "teacher", **settings}
    with pytest.raises(ConfigError, match=message):
        Objective(scores=("teacher",), penalties=(penalty,))


def test_two_divergences_from_one_teacher_are_the_same_one():
    jsd = {"kind": "divergence", "against": "teacher", "of": "jsd"}
    Objective(scores=("teacher",), penalties=(jsd, {**jsd, "where": "prob < 0.5"}))
    with pytest.raises(ConfigError, match="give all divergences from 'teacher' the same"):
        Objective(scores=("teacher",), penalties=(jsd, {**jsd, "of": "reverse"}))


def test_a_column_of_ones_own_does_not_have_the_name_of_a_divergence():
    jsd = {"kind": "divergence", "against": "teacher", "of": "jsd"}
    with pytest.raises(ConfigError, match=r"new names .* got 'teacher_divergence'"):
        Objective(scores=("teacher",), penalties=(jsd,), columns={"teacher_divergence": "token"})


def test_a_divergence_from_an_unknown_score_is_refused():
    with pytest.raises(ConfigError, match="there is no score 'coach'"):
        Objective(penalties=({"kind": "divergence", "against": "coach"},))


def objective() -> Objective:
    penalty = {
        "kind": "divergence",
        "against": "teacher",
        "of": "jsd",
        "where": "prob < 0.9",
        "coefficient": "1 + teacher_kl",
    }
    return Objective(shape=0, scores=("teacher",), penalties=(penalty,))


def batch(policy: Tensor) -> Any:
    """Three responses, of which one is empty."""
    targets = torch.tensor([0, 2, 4, 1, 3])
    logprobs = policy.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    columns = {
        "teacher_divergence": divergence("jsd", policy, logits(1)),
        "teacher_kl": divergence("reverse_kl", policy.detach(), logits(1)),
    }
    return tokens([2, 0, 3], logprobs, columns=columns)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_penalty_has_the_gradient_of_all_logits_in_any_number_of_tables(parts):
    policy = logits(0).requires_grad_()
    whole = batch(policy)
    tables = whole.split(parts)
    plan = objective().plan(tables)
    loss = sum(objective().loss(table, plan).loss for table in tables)
    values = divergence("jsd", policy, logits(1))
    factor = 1 + divergence("reverse_kl", policy, logits(1)).detach()
    where = whole.logprobs.detach().exp() < 0.9
    by_hand = (factor * values)[where].sum() / 5
    torch.testing.assert_close(loss, by_hand)
    torch.testing.assert_close(
        torch.autograd.grad(loss, policy, retain_graph=True), torch.autograd.grad(by_hand, policy)
    )


def test_the_preset_gkd_is_the_mean_of_the_jsd_over_all_tokens():
    policy, teacher = logits(0), logits(1)
    pairs = zip(policy.tolist(), teacher.tolist(), strict=True)
    by_hand = sum(expected("jsd", *pair, beta=0.5) for pair in pairs) / len(policy)
    assert load_preset("gkd").objective(batch(policy)).loss.item() == pytest.approx(by_hand)


def test_tokens_whose_divergence_has_no_weight_have_no_gradient():
    table = batch(logits(0))
    plan = objective().plan([table])
    outside = table.logprobs.exp() >= 0.9
    assert torch.equal(objective().tokens_with_gradient(table, plan, 0), ~outside)


def test_the_objective_reads_the_score_of_its_divergence():
    assert objective().read_scores == {"teacher"}
    assert objective().needs.loss >= {"teacher_divergence"}
    assert objective().needs.plan >= {"teacher_kl"}
    assert objective().scores_alone
