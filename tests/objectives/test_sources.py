"""Presets equal their sources, written as plain loops over responses and tokens.

Each equation is read from the code of the release that the preset names. The rollouts have groups
without signal, undecided rewards, empty responses, a group of one, and ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import on_ranks
from strategies import NAN, awkward_batch, tokens
from torch import Tensor

from rlobj import Clip, Objective, SequenceMean, TokenBatch, load_preset
from rlobj.objectives.functional import gradient_norm
from rlobj.objectives.statistics import Comm


@dataclass
class Response:
    """A decided response.

    `l` are log-probs with gradient. `several` says that its group has further responses. `others`
    are further columns, by name.
    """

    group: int
    reward: float
    several: bool
    l: list[Tensor]  # noqa: E741
    l0: list[float]
    sampler: list[float]
    reference: list[float]
    entropy: list[float]
    collision: list[float]
    teacher: list[float]
    others: dict[str, list[float]]
    advantage: float = 0.0

    @property
    def ratios(self) -> list[Tensor]:
        return [(new - old).clamp(-20, 20).exp() for new, old in zip(self.l, self.l0, strict=True)]


Rollout = list[Response]


def responses(batch: TokenBatch, logprobs: Tensor) -> Rollout:
    assert batch.rewards is not None
    groups, rewards = batch.groups.tolist(), batch.rewards.tolist()
    rows = torch.arange(len(batch)).split(batch.lengths.tolist())
    old = ("old_logprobs", "sampler_logprobs", "ref_logprobs", "entropy", "old_collision")
    others = {name: getattr(batch, name) for name in ("old_entropy", "turn", "turn_reward")}
    others |= {name: batch.columns.get(name) for name in ("state", "reference_kl")}
    others = {name: values for name, values in others.items() if values is not None}
    return [
        Response(
            *(groups[i], rewards[i], groups.count(groups[i]) > 1, list(logprobs[rows[i]])),
            *(getattr(batch, name)[rows[i]].tolist() for name in old),
            batch.columns["teacher_logprob"][rows[i]].tolist() if batch.columns else [],
            {name: values[rows[i]].tolist() for name, values in others.items()},
        )
        for i in range(len(groups))
        if not math.isnan(rewards[i])
    ]


def of_group(rollout: Rollout, group: int) -> list[float]:
    return [each.reward for each in rollout if each.group == group]


def mean(response: Response, rollout: Rollout) -> float:
    """The mean of the group, and 0 for a group of one."""
    rewards = of_group(rollout, response.group)
    return math.fsum(rewards) / len(rewards) if response.several else 0.0


def std(rewards: Sequence[float]) -> float:
    middle = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in rewards) / max(len(rewards) - 1, 1))


def equal(response: Response, rollout: Rollout) -> bool:
    return response.several and len(set(of_group(rollout, response.group))) == 1


# Advantages of a response in its rollout.


def centred(response: Response, rollout: Rollout) -> float:
    return response.reward - mean(response, rollout)


def normalized(response: Response, rollout: Rollout) -> float:
    scale = std(of_group(rollout, response.group)) if response.several else 1.0
    return centred(response, rollout) / (scale + 1e-6)


def by_the_batch(response: Response, rollout: Rollout) -> float:
    """TRL, grpo_trainer.py, scale_rewards="batch"."""
    return centred(response, rollout) / (std([each.reward for each in rollout]) + 1e-4)


def gpg(response: Response, rollout: Rollout) -> float:
    """AMAP-ML/GPG, gpg_trainer.py: the loss is divided by the share of groups with a signal."""
    valid = sum(not equal(each, rollout) for each in rollout)
    return centred(response, rollout) * len(rollout) / valid if valid else 0.0


def maxrl(response: Response, rollout: Rollout) -> float:
    """tajwarfahim/maxrl, core_algos.py; a group of one is divided by its own reward here."""
    own = of_group(rollout, response.group)
    return centred(response, rollout) / (math.fsum(own) / len(own) + 1e-6)


# Losses of an update. `count` is the number of its tokens.


def clipped(
    ratio: Tensor, advantage: float, bounds: tuple[float, float], dual: float = 0
) -> Tensor:
    loss = torch.maximum(-ratio * advantage, -ratio.clamp(*bounds) * advantage)
    return loss.clamp(max=-dual * advantage) if dual and advantage < 0 else loss


def total(values: Sequence[Any], count: float | None = None) -> Any:
    """The mean over `count` tokens, 0 without tokens."""
    return sum(values) / ((len(values) if count is None else count) or 1)


def reinforce(update: Rollout) -> Any:
    return total([-new * each.advantage for each in update for new in each.l])


def ppo(update: Rollout, high: float = 1.2) -> Any:
    return total([clipped(r, each.advantage, (0.8, high)) for each in update for r in each.ratios])


def groups_of(update: Rollout) -> list[Rollout]:
    """The responses of each group that has tokens."""
    groups = dict.fromkeys(each.group for each in update if each.l)
    return [[each for each in update if each.group == group] for group in groups]


def quantile(response: Response, rollout: Rollout) -> float:
    """The smallest reward x of the group with F(x) ≥ 0.4; of one reward, itself."""
    own = sorted(of_group(rollout, response.group))
    baseline = next(x for x in own if sum(y <= x for y in own) >= Fraction(2, 5) * len(own))
    return (response.reward - baseline) / ((std(own) if response.several else 1.0) + 1e-6)


def dapo(update: Rollout) -> Any:
    return ppo(update, high=1.28)


def expected_pass_at_k(response: Response, rollout: Rollout) -> float:
    """The rewards of all pairs of responses; the release has their mean in closed form."""
    members = [each for each in rollout if each.group == response.group]
    sets = list(itertools.combinations(members, 2))
    solved = [float(any(each.reward > 0.5 for each in chosen)) for chosen in sets]
    rate = math.fsum(solved) / len(sets) if sets else 0.0
    twin = next(each for each in members if each.reward == response.reward)
    own = [x for x, chosen in zip(solved, sets, strict=True) if any(y is twin for y in chosen)]
    scale = math.sqrt(rate * (1 - rate)) + 1e-6
    return (math.fsum(own) / len(own) - rate) / scale if own else 0.0


def aspo(update: Rollout) -> Any:
    """compute_policy_loss_archer of Archer2.0, with the KL of dp_actor.py."""
    losses, penalty = [], []
    for each in update:
        certain = certain_tokens(each)
        for i, ratio in enumerate(each.ratios):
            width, a = 0.2 if certain[i] else 0.4, each.advantage
            if a < 0:
                kept = ratio.clamp(min=1 - width)
                loss = -a * 3 * each.l[i] if kept > 3 else -a * kept
            else:
                kept = ratio.clamp(max=1 + width)
                loss = -a * kept / kept.detach() ** 2
                loss = -a * 3 * each.l[i] if 1 / kept > 3 else loss
            losses.append(loss)
            gap = (each.reference[i] - each.l[i]).clamp(-20, 20)
            penalty.append((gap.exp() - gap - 1).clamp(-10, 10))
    return total(losses) + 0.001 * total(penalty)


def real(update: Rollout) -> Any:
    """compute_policy_loss_real: log(1 + sum of exp) over the correct and over the wrong ones."""
    losses = []
    for group in groups_of(update):
        correct = {each.reward > 0.5 for each in group if each.l}
        for sign in correct if len(correct) == 2 else ():
            members = [each for each in group if each.l and (each.reward > 0.5) == sign]
            scores = [(torch.stack(x.l) - torch.tensor(x.l0)).mean() / 0.5 for x in members]
            inside = [torch.exp(-score if sign else score) for score in scores]
            losses.append(torch.log(1 + total(inside, 1) + torch.tensor(0.0)))
    return total(losses, len(groups_of(update)))


def tpo(update: Rollout) -> Any:
    """Equations 1 to 3: the cross-entropy from q, p_old times exp(u), to p."""
    losses = []
    for group in groups_of(update):
        rewards = torch.tensor([each.reward for each in group], dtype=torch.float64)
        u = (rewards - rewards.mean()) / rewards.std(correction=0).clamp(min=1e-6)
        old = torch.tensor([math.fsum(each.l0) for each in group], dtype=torch.float64)
        new = torch.stack([torch.stack([*each.l, torch.tensor(0.0)]).sum() for each in group])
        q = (old.log_softmax(0) + u).softmax(0)
        losses.append(-(q * new.log_softmax(0)).sum())
    return total(losses)


def prime_rl(update: Rollout) -> Any:
    """orchestrator/train_sink.py, _prune_zero_advantages, and trainer/rl/loss.py."""
    losses = []
    for each in update:
        for new, sampler in zip(each.l, each.sampler, strict=True):
            if each.advantage == 0.0:
                continue
            moved = float(new.detach().exp()) - math.exp(sampler)
            masked = moved > 0.2 if each.advantage > 0 else moved < -0.2
            log_ratio = new - sampler
            losses.append(
                (0 if masked else -1) * each.advantage * log_ratio.exp() + 1e-3 * log_ratio**2
            )
    return total(losses)


def certain_tokens(response: Response) -> list[bool]:
    """dp_actor.py: `entropy <= torch.nanquantile(entropy, 0.8)`, with linear interpolation."""
    ranked = [*sorted(map(Fraction, response.entropy)), Fraction(0)]
    place = Fraction(8, 10) * max(len(response.l) - 1, 0)
    low = math.floor(place)
    cut = ranked[low] + (place - low) * (ranked[min(low + 1, len(ranked) - 1)] - ranked[low])
    return [entropy <= cut for entropy in response.entropy]


def archer(update: Rollout) -> Any:
    """dp_actor.py of ArcherCodeR."""
    policy, penalty = [], []
    for each in update:
        certain = certain_tokens(each)
        for i, ratio in enumerate(each.ratios):
            width = 0.2 if certain[i] else 0.5
            policy.append(clipped(ratio, each.advantage, (1 - width, 1 + width), dual=10))
            if certain[i]:
                gap = each.reference[i] - each.l[i]
                penalty.append((gap.exp() - gap - 1).clamp(-10, 10))
    return total(policy) + 0.001 * total(penalty)


def ce_gppo(update: Rollout) -> Any:
    """compute_gppo_loss_general_beta, and positive_loss in dp_actor.py."""
    policy, positive = [], []
    for each in update:
        a = each.advantage
        for new, old in zip(each.l, each.l0, strict=True):
            ratio = (new - old).exp()
            loss = -ratio * a
            if a < 0 and ratio < 0.8:
                loss = -0.75 * 0.8 / ratio.detach() * ratio * a
            elif a > 0 and ratio > 1.2:
                loss = -1.2 / ratio.detach() * ratio * a
            policy.append(loss.clamp(max=-10 * a) if a < 0 else loss)
            if each.reward == 1:
                positive.append(-new)
    return total(policy) + 0.1 * total(positive)


def fipo(update: Rollout) -> Any:
    """compute_policy_loss_future_kl with the numbers of run_fipo_qwen2.5_32b.sh."""
    losses = []
    for each in update:
        a, ratios = each.advantage, each.ratios
        gaps = [float(ratio.detach().log()) for ratio in ratios]
        if sum(a < 0 and ratio > 10 for ratio in ratios) > 1:
            continue
        for t, ratio in enumerate(ratios):
            future = math.fsum(
                2 ** (-(s - t) / 32) * gaps[s] for s in range(t, len(gaps)) if ratios[s] <= 10
            )
            weight = min(max(math.exp(min(future, 50)), 1.0), 1.2)
            weight = 1.0 if a < 0 and ratio > 10 else weight
            losses.append(clipped(ratio, weight * a, (0.8, 1.28), dual=10))
    return total(losses)


def otb(update: Rollout) -> Any:
    """compute_optimal_token_baseline_advantage of verl, in the columns of the rollout's policy."""
    losses, energies = [], {}
    for each in update:
        steps = [1 - 2 * math.exp(l) + c for l, c in zip(each.l0, each.collision, strict=True)]  # noqa: E741
        energies[id(each)] = [math.fsum(steps[: t + 1]) for t in range(len(steps))]
    for each in update:
        for t, ratio in enumerate(each.ratios):
            group = [x for x in update if x.group == each.group and len(x.l) > t]
            weights = [energies[id(x)][t] for x in group]
            baseline = math.fsum(w * x.reward for w, x in zip(weights, group, strict=True))
            baseline = baseline / (math.fsum(weights) + 1e-8) if len(group) > 1 else 0.0
            losses.append(clipped(ratio, each.reward - baseline, (0.8, 1.2)))
    return total(losses)


def rare(response: Response) -> list[bool]:
    return [bool(response.advantage > 0 and new.exp() < 0.002) for new in response.l]


def without_rare_ones(update: Rollout, share: Fraction, entropies: list[float]) -> Any:
    """Drop the rare tokens whose entropy is among the ⌈share·n⌉ lowest of n."""
    cut = sorted(entropies)[math.ceil(share * len(entropies)) - 1] if entropies else 0.0
    losses = []
    for each in update:
        for ratio, entropy, dropped in zip(each.ratios, each.entropy, rare(each), strict=True):
            if not (dropped and entropy <= cut):
                losses.append(clipped(ratio, each.advantage, (0.8, 1.28), dual=10))
    return total(losses)


def stapo(update: Rollout) -> Any:
    """Versions 1 to 3: A > 0, π < 0.002, and one of the ⌈0.8·n⌉ lowest entropies of the update."""
    return without_rare_ones(update, Fraction(8, 10), [h for each in update for h in each.entropy])


def stapo_v4(update: Rollout) -> Any:
    """Versions 4 and 5: one of the ⌈0.75·n⌉ lowest among the n tokens with A > 0, π < 0.002."""
    own = [
        entropy
        for each in update
        for entropy, chosen in zip(each.entropy, rare(each), strict=True)
        if chosen
    ]
    return without_rare_ones(update, Fraction(3, 4), own)


def m2po(update: Rollout) -> Any:
    """Algorithm 1 of the paper: mask the largest until the mean over the trust region fits."""
    rows = [(x.advantage, new, old) for x in update for new, old in zip(x.l, x.l0, strict=True)]
    gaps = [float(new.detach()) - old for _, new, old in rows]
    region = [gap**2 for (a, _, _), gap in zip(rows, gaps, strict=True) if a * gap > 0]
    while region and math.fsum(region) / len(region) > 0.04:
        region = [x for x in region if x < max(region)]
    most, losses = max(region, default=-1.0), []
    for (a, new, old), gap in zip(rows, gaps, strict=True):
        losses.append(0 if a * gap > 0 and gap**2 > most else -(new - old).exp() * a)
    return total(losses)


def gfpo(update: Rollout) -> Any:
    """The k = G/2 shortest have their own mean and std, as in TRL; all others have A = 0."""
    losses = []
    for each in update:
        group = [x for x in update if x.group == each.group]
        longest = sorted(len(x.l) for x in group)[math.ceil(len(group) / 2) - 1]
        kept = [x.reward for x in group if len(x.l) <= longest]
        a = (each.reward - math.fsum(kept) / len(kept)) / (std(kept) + 1e-6)
        a = a if len(each.l) <= longest else 0.0
        losses += [clipped(ratio, a, (0.8, 1.2)) for ratio in each.ratios]
    return total(losses)


SOURCES: dict[str, tuple[Callable[..., float], Callable[[Rollout], Any]]] = {
    "stapo": (normalized, stapo),
    "stapo-v4": (normalized, stapo_v4),
    "gpg": (gpg, reinforce),
    "prime-rl": (centred, prime_rl),
    "maxrl": (maxrl, ppo),
    "archer": (normalized, archer),
    "ce-gppo": (normalized, ce_gppo),
    "lite-ppo": (by_the_batch, ppo),
    "fipo": (normalized, fipo),
    "otb": (centred, otb),
    "passk": (expected_pass_at_k, ppo),
    "aspo": (normalized, aspo),
    "qae": (quantile, dapo),
    "real": (centred, real),
    "tpo": (centred, tpo),
    "m2po": (normalized, m2po),
    "gfpo": (normalized, gfpo),
}
GRADIENT_ONLY = {"prime-rl", "aspo", "real", "tpo"}
"""Presets with another value than their source: they write w*l for a term whose gradient is w."""


def rollout_of(seed: int, kind: str) -> TokenBatch:
    """A rollout whose policy has moved far on some tokens."""
    batch = awkward_batch(seed, groups=5, longest=9)
    assert batch.rewards is not None
    random = torch.Generator().manual_seed(seed)
    rewards = batch.rewards.clone()
    if kind == "binary":
        rewards = torch.where(rewards.isnan(), NAN, (rewards > 0).double())
    elif kind == "equal":  # no group has a signal
        rewards = torch.where(rewards.isnan(), NAN, (batch.groups % 2).double())
    else:
        rewards = rewards.abs()
    far = torch.tensor([0.0, 3.0, -30.0])[torch.randint(0, 3, (len(batch),), generator=random)]
    moved = far * (torch.rand(len(batch), generator=random) < 0.2)
    old = batch.column("old_logprobs", "the test") - 4  # log-probs of at most 0 after the move
    new = batch.logprobs - 4 + moved
    return batch.replace(rewards=rewards, logprobs=new, old_logprobs=old)


def updates_of(batch: TokenBatch, number: int) -> list[list[int]]:
    """The responses of each update: whole groups, in turn."""
    groups = batch.groups.unique().tolist()
    return [
        [i for i, group in enumerate(batch.groups.tolist()) if groups.index(group) % number == k]
        for k in range(number)
    ]


def loss_of(
    objective: Objective, update: TokenBatch, parts: int, seed: int, comm: Comm | None = None
) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of each row, over micro-batches of permuted responses."""
    order = torch.randperm(len(update.lengths), generator=torch.Generator().manual_seed(seed))
    tables = []
    for index, part in enumerate(order.tensor_split(parts)):
        table = update.select(part, index)
        tables.append(table.replace(logprobs=table.logprobs.detach().requires_grad_()))
    plan = objective.plan(tables, objective.observe(tables, comm=comm), comm)
    losses = [objective.loss(table, plan).loss for table in tables]
    loss = torch.stack(losses).sum()
    loss.backward()
    gradient = torch.zeros(len(update), dtype=torch.float64)
    for table, part in zip(tables, order.tensor_split(parts), strict=True):
        if len(table):
            assert table.logprobs.grad is not None
            gradient[update.rows(part)] = table.logprobs.grad
    return loss.detach(), gradient


def source_of(
    name: str, update: TokenBatch, rollout: TokenBatch, sources: Any = SOURCES
) -> tuple[Tensor, Tensor]:
    """The loss of an update by the preset's source, and its slope by the log-probs."""
    advantage, source = sources[name]
    leaf = update.logprobs.detach().requires_grad_()
    mine, everything = responses(update, leaf), responses(rollout, rollout.logprobs)
    for each in mine:
        each.advantage = 0.0 if equal(each, everything) else advantage(each, everything)
    loss = torch.as_tensor(source(mine), dtype=torch.float64)
    if not loss.requires_grad:
        return loss, torch.zeros_like(leaf)
    return loss.detach(), torch.autograd.grad(loss, [leaf])[0]


CLOSE = {"rtol": 1e-10, "atol": 1e-13}


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("kind", ["coarse", "binary", "equal"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(x, marks=pytest.mark.slow) for x in (2, 3))])
def test_a_preset_equals_its_source_in_plain_loops(name: str, kind: str, seed: int) -> None:
    objective = load_preset(name).objective
    rollout, moved = rollout_of(seed, kind), 0
    [table] = objective.with_advantages([rollout])
    for chosen in updates_of(rollout, number=1 + seed % 2):
        loss, gradient = loss_of(objective, table.select(chosen), parts=1 + 2 * seed, seed=seed)
        expected, slope = source_of(name, rollout.select(chosen), rollout)
        torch.testing.assert_close(gradient, slope, **CLOSE)
        if name not in GRADIENT_ONLY:
            torch.testing.assert_close(loss, expected, **CLOSE)
        moved += int(gradient.count_nonzero())
    # one rollout has equal rewards among the shortest half of each group
    assert moved or kind == "equal" or (name, kind, seed) == ("gfpo", "binary", 1)


def test_an_update_of_prime_rl_without_a_signal_is_skipped() -> None:
    """Also its KL: prime-rl ships no batch without a token that has an advantage."""
    batch = rollout_of(1, "equal")
    batch = batch.select(range(len(batch.lengths) - 1))
    plan = load_preset("prime-rl").objective.plan([batch])
    assert plan.empty
    assert plan.kept == 0


def test_verls_gpg_is_an_expression_of_its_comment() -> None:
    """compute_gpg_outcome_advantage: alpha = B / max(#{R != 0}, 1)."""
    shape = "advantage * (length >= 0).count() / maximum(abs(sign(reward)).sum(), 1)"
    comment = " ".join(load_preset("gpg").text.replace("#", " ").split())
    assert f"shape: {shape}" in comment
    for kind in ("coarse", "equal"):
        rollout = rollout_of(3, kind)
        own = responses(rollout, rollout.logprobs)
        alpha = len(own) / max(sum(each.reward != 0 for each in own), 1)
        expected = [0.0 if equal(x, own) else alpha * centred(x, own) for x in own for _ in x.l]
        plan = Objective(advantage="group_centered", shape=shape).plan([rollout])  # type: ignore[arg-type]
        found = plan.advantages[0][rollout.decided]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["coarse", "binary"])
def test_rloo_with_the_ratio_of_its_comment_equals_trls_trainer(kind: str) -> None:
    """TRL, rloo_trainer.py: the response's KL is in the reward, and its action is the response."""
    rollout = rollout_of(1, kind)
    rollout = rollout.select(range(len(rollout.lengths) - 1))  # TRL has no groups of one
    surrogate = Clip(ratio="product", max_log_ratio=None)
    objective = load_preset("rloo").objective.replace(
        surrogate=surrogate, divisor=SequenceMean(), reward_kl=0.05
    )
    leaf = rollout.logprobs.detach().requires_grad_()
    mine, losses = responses(rollout, leaf), []
    for each in mine:
        each.reward -= 0.05 * math.fsum(a - b for a, b in zip(each.l0, each.reference, strict=True))
    for each in (each for each in mine if each.l):
        others = [x.reward for x in mine if x.group == each.group and x is not each]
        a = each.reward - math.fsum(others) / len(others) if others else 0.0
        moved = torch.stack(each.l).sum() - math.fsum(each.l0)
        losses.append(clipped(moved.exp(), a, (0.8, 1.2)))
    [slope] = torch.autograd.grad(total(losses), [leaf])
    loss, gradient = loss_of(objective, rollout, parts=3, seed=0)
    torch.testing.assert_close(loss, total(losses).detach(), **CLOSE)
    torch.testing.assert_close(gradient, slope, **CLOSE)


def test_fipo_counts_a_token_that_has_become_impossible_as_20_nats() -> None:
    """Twelve tokens with r = exp(2) before it outweigh it, as its release clamps l - l0."""
    gaps, old = [2.0] * 12 + [-60.0, 0.0] + [0.0] * 14, [-70.0] * 28
    rest = dict.fromkeys(("sampler_logprobs", "ref_logprobs", "entropy", "old_collision"), old)
    batch = tokens([14, 14], [gap - 70 for gap in gaps], old_logprobs=old, rewards=[0.0, 1.0])
    batch = batch.replace(**rest)
    objective = load_preset("fipo").objective
    assert float(objective.plan([batch]).weights[0][0]) * 28 == pytest.approx(1.2)
    _, gradient = loss_of(objective, batch, parts=2, seed=0)
    torch.testing.assert_close(gradient, source_of("fipo", batch, batch)[1], **CLOSE)


def test_the_loss_of_stapo_on_five_tokens_equals_values_by_hand() -> None:
    """Of two rare tokens with A > 0, only the one with low entropy is dropped; 4 are counted.

    The cut is the ceil(0.8·5) = 4th smallest entropy, 2.0, which two tokens share.
    """
    batch = tokens(
        [3, 2],
        [math.log(p) for p in (0.001, 0.001, 0.5, 0.001, 0.9)],
        entropy=[2.0, 3.0, 1.0, 2.0, 0.5],
        advantages=[1.0, -1.0],
    )
    stapo = load_preset("stapo").objective
    plan = stapo.plan([batch])
    assert plan.weights[0].tolist() == [0, 0.25, 0.25, 0.25, 0.25]
    assert plan.metrics["objective/kept_fraction"] == 0.8
    assert stapo(batch).loss.item() == pytest.approx(-(1 + 1 - 1 - 1) / 4)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.floats(0.01, 3), st.booleans())
def test_the_gradient_norm_is_that_of_the_gradient_by_the_logits(scores, size, positive) -> None:
    """‖∂J/∂logits‖ = |w|·(1 − 2π + Σ_k π_k²)^½, w = ω·A·r of the token."""
    logits = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    policy, advantage = logits.log_softmax(0), size if positive else -size
    batch = tokens([1], policy[:1], advantages=[advantage])  # type: ignore[arg-type]
    load_preset("justrl").objective(batch).loss.backward()  # of one token
    collision = policy.detach().exp().square().sum()
    norm = gradient_norm(policy.detach()[0], collision, torch.tensor(advantage))
    assert float(norm) == pytest.approx(float(logits.grad.norm()), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", ["qae", "real", "tpo"])
@pytest.mark.parametrize("seed", range(6))
def test_a_preset_equals_its_source_where_most_responses_are_empty_on_any_ranks(name, seed) -> None:
    """Groups of one to four; empty and undecided responses; two ranks with one to three tables."""
    random = torch.Generator().manual_seed(seed)

    def pick(*choices: float, size: int) -> list[float]:
        places = torch.randint(len(choices), (size,), generator=random)
        return [choices[i] for i in places.tolist()]

    groups = [g for g, size in enumerate(pick(1, 1, 2, 3, 4, size=9)) for _ in range(int(size))]
    lengths = [int(n) for n in pick(0, 0, 1, 3, size=len(groups))]
    rewards = pick(0.0, 0.0, 1.0, 1.0, NAN, size=len(groups))
    old = pick(-1.0, -2.0, -4.0, size=sum(lengths))
    new = [x + gap for x, gap in zip(old, pick(-0.5, 0.0, 0.75, size=len(old)), strict=True)]
    columns = ("old_logprobs", "sampler_logprobs", "ref_logprobs", "entropy", "old_collision")
    batch = tokens(lengths, new, rewards=rewards, groups=groups, **dict.fromkeys(columns, old))
    _, slope = source_of(name, batch, batch)
    order = torch.randperm(len(groups), generator=random)
    parts = [order[: len(order) // 3], order[len(order) // 3 :]]

    def on_rank(comm: Comm) -> Tensor:
        objective, own = load_preset(name).objective, batch.select(parts[comm.rank])
        return loss_of(objective, own, 1 + 2 * comm.rank, seed, comm)[1]

    found = torch.zeros_like(slope)
    for part, gradient in zip(parts, on_ranks(2, on_rank), strict=True):
        found[batch.rows(part)] = gradient
    torch.testing.assert_close(found, slope, **CLOSE)
