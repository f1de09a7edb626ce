"""The presets of late 2026 equal their equations, written as plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_sources
import torch
from ranks import on_ranks
from strategies import tokens
from test_sources import (
    Response,
    Rollout,
    centred,
    clipped,
    loss_of,
    normalized,
    source_of,
    total,
    updates_of,
)
from torch import Tensor

from rlobj import TokenBatch, load_preset
from rlobj.objectives.statistics import Comm


def probabilities(each: Response, low: float, high: float) -> list[float]:
    return [min(max(math.exp(float(new.detach())), low), high) for new in each.l]


def k3(each: Response, most: float = math.inf) -> list[Tensor]:
    gaps = [(ref - new).clamp(-20, 20) for ref, new in zip(each.reference, each.l, strict=True)]
    return [(gap.exp() - gap - 1).clamp(-most, most) for gap in gaps]


def members(update: Rollout, group: int) -> Rollout:
    return [each for each in update if each.group == group]


def steer(update: Rollout) -> Any:
    changes = []
    for each in update:
        old, entropy = each.l0, each.others["old_entropy"]
        for t, p in enumerate(probabilities(each, 1e-8, 1 - 1e-8)):
            slope = p * (1 - p) * (math.log(p) + entropy[t])
            changes.append(abs(each.advantage / max(math.exp(old[t]), 1e-8) * slope))
    least, most = min(changes, default=0.0), max(changes, default=0.0)
    weights = [1.2 - 0.4 * (x - least) / (most - least) if most > least else 1.0 for x in changes]
    losses = [clipped(r, x.advantage, (0.8, 1.28), dual=10) for x in update for r in x.ratios]
    return total([w * loss for w, loss in zip(weights, losses, strict=True)])


def vimpo(update: Rollout) -> Any:
    """huggingface/trl, vimpo_trainer.py; half a square has the gradient of l times its slope."""
    beta, values, terms = 5e-4, [], []
    for each in update:
        kls = each.others["reference_kl"]
        changes = [
            beta * (float(new.detach()) - ref - kl)
            for new, ref, kl in zip(each.l, each.reference, kls, strict=True)
        ]
        values += [math.fsum(changes[t:]) for t in range(len(changes))]
        slope = beta * (math.fsum(changes) - each.advantage)
        terms += [sum(slope * new for new in each.l)] if each.l else []
    ratios = [
        (new - old).exp() for each in update for new, old in zip(each.l, each.l0, strict=True)
    ]
    middle = math.fsum(values) / max(len(values), 1)
    scale = math.sqrt(math.fsum((v - middle) ** 2 for v in values) / max(len(values), 1)) + 1e-8
    losses = [
        clipped(r, (value - middle) / scale, (0.8, 1.2))
        for r, value in zip(ratios, values, strict=True)
    ]
    return total(terms) + 0.005 * total(losses)


def wapo(update: Rollout) -> Any:
    losses, better = [], [each for each in update if each.advantage > 0 and each.l]
    for each in better:
        size = len(members(update, each.group)) * 8192
        for new, old in zip(each.l, each.l0, strict=True):
            losses.append(-(new - old).exp().clamp(max=10) * each.advantage / size)
    return total(losses, len({each.group for each in better}))


def kpop(update: Rollout) -> Any:
    losses = []
    for each in (each for each in update if each.advantage != 0):
        for t, p in enumerate(probabilities(each, 1e-6, 1 - 1e-6)):
            q = min(max(math.exp(each.sampler[t]), 1e-6), 1 - 1e-6)
            forward = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
            backward = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
            gap = each.l[t] - each.sampler[t]
            policy = 0 if max(forward, backward) > 0.1 else -gap.exp() * each.advantage
            losses.append(policy + 1e-3 * gap**2)
    return total(losses)


def up_grpo(update: Rollout) -> Any:
    losses = []
    for each in update:
        for new, ratio in zip(each.l, each.ratios, strict=True):
            negative = clipped(ratio, each.advantage, (0.8, 1.2), dual=3)
            losses.append(-new * each.advantage if each.advantage > 0 else negative)
    return total(losses) + 0.001 * total([x for each in update for x in k3(each, most=10)])


def delight(update: Rollout) -> Any:
    losses = []
    for each in (each for each in update if each.l):
        tokens = []
        for new, ratio, kl in zip(each.l, each.ratios, k3(each, most=10), strict=True):
            surprise = each.advantage * min(-float(new.detach()), 10.0)
            policy = clipped(ratio, each.advantage, (0.8, 1.28))
            tokens.append(2 * policy / (1 + math.exp(-surprise)) + 0.01 * kl)
        losses.append(total(tokens))
    return total(losses)


def codapo(update: Rollout) -> Any:
    losses = []
    for each in update:
        group = members(update, each.group)
        p = sum(x.reward == 1 for x in group) / len(group)
        means = [math.fsum(x.l0) / len(x.l0) for x in group if x.l0]
        for ratio in each.ratios:
            value = 4 * math.exp(math.fsum(means) / len(means)) * p * (1 - p)
            losses.append(clipped(ratio, each.advantage * (value + 0.1), (0.8, 1.2), dual=3))
    return total(losses)


def cppo(update: Rollout) -> Any:
    losses, length = [], 8192
    for each in update:
        rows = zip(each.l, each.l0, strict=True)
        changes = [abs(math.exp(float(new.detach())) - math.exp(old)) for new, old in rows]
        b = float(np.quantile(changes, 0.9).clip(0.02, 0.1)) if changes else 0.0
        weights = [0.8 + 0.2 * (length - t) / (length - 1) for t in range(1, len(changes) + 1)]
        for t, (new, ratio) in enumerate(zip(each.l, each.ratios, strict=True)):
            spent = math.fsum(w * d for w, d in zip(weights[:t], changes[:t], strict=True))
            limit = min(0.15, 0.15 + b * math.fsum(weights[:t]) - spent)
            towards = each.advantage * (float(ratio.detach()) - 1) <= 0
            kept = towards or weights[t] * changes[t] <= limit
            losses.append(-kept * ratio.detach().clamp(max=20) * each.advantage * new)
    return total(losses, sum(bool(each.l) for each in update) * length)


def bapo(update: Rollout) -> Any:
    """The search of WooooDyy/BAPO, recipe/bapo/policy_loss.py, step by step."""
    tokens = [(float(r.detach()), each.advantage) for each in update for r in each.ratios]

    def balance(floor: float, cap: float) -> float:
        gain = math.fsum(min(r, cap) * a for r, a in tokens if a >= 0)
        cost = math.fsum(max(r, floor) * -a for r, a in tokens if a < 0)
        return gain / (cost + 1e-8) if cost > 0 else math.inf

    floor, cap = 0.8, 1.2
    while balance(floor, cap) < 0.5 and floor < 0.95:
        floor = min(floor + 0.05, 0.95)
    while balance(floor, cap) < 0.5 and cap < 2:
        cap = min(cap + 0.1, 2.0)
    bounds = (floor, cap)
    return total([clipped(r, x.advantage, bounds, dual=3) for x in update for r in x.ratios])


def gigpo(update: Rollout) -> Any:
    """compute_step_discounted_returns, step_norm_reward and the joint advantages of verl-agent."""
    gains: dict[tuple[int, float], float] = {}
    states: dict[tuple[int, float], list[float]] = {}
    for i, each in enumerate(update):
        turns = dict(zip(*(each.others[name] for name in ("turn", "turn_reward")), strict=True))
        state = dict(zip(*(each.others[name] for name in ("turn", "state")), strict=True))
        gain = 0.0
        for number in sorted(turns, reverse=True):
            gains[i, number] = gain = turns[number] + 0.95 * gain
            states.setdefault((each.group, state[number]), []).append(gain)
    losses = []
    for i, each in enumerate(update):
        rows = zip(each.ratios, *(each.others[name] for name in ("turn", "state")), strict=True)
        for ratio, number, state in rows:
            same, own = states[each.group, state], 0.0
            if state >= 0 and max(same) > min(same):
                spread = float(np.std(same, ddof=1)) + 1e-6
                own = (gains[i, number] - math.fsum(same) / len(same)) / spread
            losses.append(clipped(ratio, each.advantage + own, (0.8, 1.2), dual=3))
    return total(losses) + 0.01 * total([x for each in update for x in k3(each, most=10)])


SOURCES: dict[str, tuple[Callable[..., float], Callable[[Rollout], Any]]] = {
    "bapo": (normalized, bapo),
    "codapo": (normalized, codapo),
    "cppo": (centred, cppo),
    "delight": (normalized, delight),
    "gigpo": (normalized, gigpo),
    "kpop": (centred, kpop),
    "steer": (normalized, steer),
    "up-grpo": (normalized, up_grpo),
    "vimpo": (centred, vimpo),
    "wapo": (centred, wapo),
}


CLOSE = {"rtol": 1e-12, "atol": 1e-14}
COLUMNS = ("logprobs", "old_logprobs", "sampler_logprobs", "ref_logprobs")


def rollout_of(seed: int, kind: str) -> TokenBatch:
    """Tokens are improbable, except if `kind` is "certain": then probabilities change much."""
    if kind != "certain":
        return test_sources.rollout_of(seed, kind)
    batch = test_sources.rollout_of(seed, "binary")
    return batch.replace(**{name: getattr(batch, name) / 8 for name in COLUMNS})


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("kind", ["coarse", "binary", "equal", "certain"])
@pytest.mark.parametrize("seed", range(4))
def test_a_preset_equals_its_equation_in_plain_loops(name: str, kind: str, seed: int) -> None:
    objective = load_preset(name).objective
    rollout, moved = rollout_of(seed, kind), 0
    [table] = objective.with_advantages([rollout])
    for chosen in updates_of(rollout, number=1 + seed % 2):
        loss, gradient = loss_of(objective, table.select(chosen), parts=1 + seed, seed=seed)
        expected, slope = source_of(name, rollout.select(chosen), rollout, SOURCES)
        torch.testing.assert_close(gradient, slope, **CLOSE)
        torch.testing.assert_close(loss, expected, **CLOSE)
        moved += int(gradient.count_nonzero())
    assert moved or kind == "equal"


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_three_ranks_give_the_same_gradient(name: str) -> None:
    rollout = rollout_of(5, "certain")
    _, slope = source_of(name, rollout, rollout, SOURCES)
    order = torch.randperm(len(rollout.lengths), generator=torch.Generator().manual_seed(0))
    parts = [order[:2], order[2:9], order[9:]]

    def on_rank(comm: Comm) -> Tensor:
        mine = rollout.select(parts[comm.rank])
        return loss_of(load_preset(name).objective, mine, 1 + comm.rank, 0, comm)[1]

    for part, gradient in zip(parts, on_ranks(3, on_rank), strict=True):
        torch.testing.assert_close(gradient, slope[rollout.rows(part)], **CLOSE)


SEARCHED = [(2.3 + 0.2 * k, 0.95, 1.2 + 0.1 * k) for k in range(1, 9)]


@pytest.mark.parametrize(("cost", "floor", "cap"), [(2.39, 0.8, 1.2), *SEARCHED, (9, 0.95, 2.0)])
def test_bapo_takes_the_first_cap_that_suffices(cost: float, floor: float, cap: float) -> None:
    """A ratio of e with A = 1, one of 1 with A = -cost, and one of 0.9 with a small A < 0."""
    small = 1e-3
    batch = tokens(
        [1, 1, 1],
        [-1.0, -2.0, -2.0 + math.log(0.9)],
        old_logprobs=[-2.0, -2.0, -2.0],
        advantages=[1.0, -cost, -small],
    )
    expected = -(cap - cost - small * max(0.9, floor)) / 3
    assert load_preset("bapo").objective(batch).loss.item() == pytest.approx(expected, abs=1e-12)


def weights_of(name: str, batch: TokenBatch) -> list[float]:
    return load_preset(name).objective.plan([batch]).weights[0].tolist()


@pytest.mark.parametrize(("change", "kept"), [(0.143, True), (0.147, False)])
def test_cppo_interpolates_the_quantile_of_changes(change: float, kept: bool) -> None:
    """Of 0.06, `change` and ten of 0, b is 0.9 of 0.06. The limit is 0.15 + b - 0.06 = 0.144."""
    changes = [0.06, change, *[0.0] * 10]
    batch = tokens([12], [math.log(0.5 + x) for x in changes], advantages=[1.0])
    batch = batch.replace(old_logprobs=torch.full((12,), math.log(0.5), dtype=torch.float64))
    assert [w > 0 for w in weights_of("cppo", batch)] == [True, kept, *[True] * 10]


@pytest.mark.parametrize(("q", "kept"), [(0.01, True), (0.02, False)])
def test_kpop_reads_a_probability_below_1e_6_as_1e_6(q: float, kept: bool) -> None:
    """The KLs are q*log(q/1e-6) and less: 0.082 and 0.178. Of 1e-12 they would be 0.22 and more."""
    read = {name: [math.log(q)] for name in ("old_logprobs", "sampler_logprobs")}
    batch = tokens([1], [math.log(1e-12)], advantages=[1.0], **read)
    assert [w > 0 for w in weights_of("kpop", batch)] == [kept]
