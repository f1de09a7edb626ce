"""Advantages A: rewards [B] or [B, K], groups [B], lengths [B] -> [B], in float64.

`TurnReturn` maps the rewards of turns [B, T] to [B, T], and the rules below hold for each turn.

The sign of A must not depend on rounding. So these rules hold for all advantages:

- rewards are summed in one canonical order;
- rewards of a group that differ only by rounding are equal, see `rewards.merged_rewards`;
- a group whose decided rewards are all equal gets exactly 0;
- a group of several responses with fewer than two decided ones gets 0;
- an undecided response (reward NaN) gets 0, and no mean includes it;
- a group of one response has mean 0 and standard deviation 1, as in the released code. Baselines
  that are one of the rewards give it A = 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives.rewards import (
    check_sign,
    differ,
    merged_rewards,
    relative_rounding,
    total_reward,
)
from rlobj.objectives.rules.nodes import rounded_share

Weights = Sequence[float] | None
_ROUNDING = 1e-12
"""A reward, or a sum compared with the sum of absolute values, this small is 0 but for rounding."""


@dataclass(frozen=True)
class Groups:
    """The decided responses, sorted by group, reward and length.

    Attributes:
        rewards: R, [b].
        lengths: |o|, [b].
        group: index of the group, [b].
        size: number of decided responses in the group, [b].
        single: the group has one response, bool [b].
        constant: the group has several responses, and all its decided rewards are equal, bool [b].
        rounding: the relative size of a difference that is rounding.
    """

    rewards: Tensor
    lengths: Tensor
    group: Tensor
    size: Tensor
    single: Tensor
    constant: Tensor
    rounding: float

    def sum(self, values: Tensor) -> Tensor:
        """Σ over the group of each response, [b]."""
        return values.new_zeros(len(values)).index_add(0, self.group, values)[self.group]

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the group; 0 for a group of one."""
        return torch.where(self.single, 0.0, self.sum(values) / self.size)

    def std(self, values: Tensor) -> Tensor:
        """Unbiased standard deviation over the group; 1 for a group of one."""
        squares = self.sum((values - self.mean(values)).square())
        return torch.where(self.single, 1.0, (squares / (self.size - 1).clamp(min=1)).sqrt())

    def above(self, baseline: Tensor) -> Tensor:
        """R − baseline, exactly 0 where they differ only by rounding; R in a group of one."""
        size = self.sum(self.rewards.abs()) / self.size
        left = self.rewards - torch.where(self.single, 0.0, baseline)
        return torch.where(self.constant | (left.abs() <= self.rounding * size), 0.0, left)

    def centred(self) -> Tensor:
        """R − mean_g, exactly 0 in a group with constant rewards."""
        return self.above(self.mean(self.rewards))

    def whitened(self, values: Tensor) -> Tensor:
        """(x − mean) / sqrt(var + 1e-8), with each response counted |o| times (unbiased var)."""
        tokens = self.lengths.sum().clamp(min=1)
        total = (values * self.lengths).sum()
        if total.abs() <= _ROUNDING * (values.abs() * self.lengths).sum():
            total = torch.zeros_like(total)
        centred = values - total / tokens
        variance = (centred.square() * self.lengths).sum() / (tokens - 1).clamp(min=1)
        nonempty = values[self.lengths > 0]
        if not differ(nonempty):  # else A would be a rounding error
            return torch.zeros_like(values)
        return centred / (variance + 1e-8).sqrt()


class Advantage(Primitive):
    """Base class of advantages, A."""

    relative: ClassVar[bool] = True  # a group with constant rewards gets exactly 0
    decoupled: ClassVar[bool] = False  # reads every reward, not only their sum
    nonnegative: ClassVar[bool] = False  # refuses a reward below 0
    by_turn: ClassVar[bool] = False  # reads the rewards of turns
    of_tokens: ClassVar[bool] = False  # reads the columns of a table, see `rlobj.objectives.critic`

    def __call__(
        self, rewards: Tensor, groups: Tensor, lengths: Tensor, weights: Weights = None
    ) -> Tensor:
        """A, [B] float64 on the rewards' device.

        Args:
            rewards: R, [B]; NaN = undecided. Of rewards [B, K], R is the weighted sum.
            groups: the prompt's group, int [B].
            lengths: trained tokens, int [B].
            weights: w, K numbers; None = 1 each.
        """
        columns = torch.as_tensor(rewards)
        rewards = total_reward(columns, weights).detach().double().cpu()
        groups = torch.as_tensor(groups).long().cpu()
        if self.nonnegative:
            check_sign(rewards)
        lengths = torch.as_tensor(lengths).double().cpu()
        decided = (~rewards.isnan()).nonzero().squeeze(1)
        for column in (lengths, rewards, groups):
            decided = decided[column[decided].argsort(stable=True)]
        advantages = torch.zeros_like(rewards)
        if len(decided):
            rounding = relative_rounding(columns.dtype)
            equal = merged_rewards(rewards[decided], groups[decided], rounding)
            table = _group(equal, groups[decided], lengths[decided], groups, rounding)
            estimate = self.checked(self.estimate(table), equal.shape, self.estimate).to(advantages)
            zero = table.constant if self.relative else torch.zeros_like(table.constant)
            advantages[decided] = torch.where(zero, 0.0, estimate)
        return advantages.to(columns.device)

    @property
    def group_relative(self) -> bool:
        """Whether groups of equal rewards get 0, however much the groups differ.

        Then a response has no advantage unless another response of its group differs from it.
        """
        groups = torch.tensor([0, 0, 1, 1])
        return not self(groups.double(), groups, torch.ones(4)).any()

    def estimate(self, groups: Groups) -> Tensor:
        """A of the decided responses, [b]."""
        raise NotImplementedError


def _group(
    rewards: Tensor, groups: Tensor, lengths: Tensor, all_groups: Tensor, rounding: float
) -> Groups:
    ids, group, size = groups.unique(return_inverse=True, return_counts=True)
    all_ids, all_sizes = all_groups.unique(return_counts=True)
    members = all_sizes[torch.searchsorted(all_ids, ids)]  # with undecided responses
    first = torch.full((len(ids),), torch.inf, dtype=rewards.dtype)
    last = -first
    first.scatter_reduce_(0, group, rewards, "amin")
    last.scatter_reduce_(0, group, rewards, "amax")
    single = (members == 1)[group]
    constant = ((first == last) & (members > 1))[group]
    return Groups(rewards, lengths, group, size[group], single, constant, rounding)


class GroupNormalized(Advantage):
    """A = (R − mean_g) / (std + ε), unbiased std over `scale`.

    Source: GRPO, arXiv:2402.03300; scale="batch": TRL's scale_rewards, arXiv:2508.08221.
    """

    epsilon: float = Field(default=1e-6, ge=0)
    """ε added to the standard deviation"""
    scale: Literal["group", "batch", "none"] = "group"
    """standard deviation over the group, over all responses, or none"""

    def estimate(self, groups: Groups) -> Tensor:
        if self.scale == "none":
            return groups.centred()
        std = groups.std(groups.rewards)
        if self.scale == "batch" and len(groups.rewards) > 1:
            std = groups.rewards.std()
        return groups.centred() / (std + self.epsilon)


class GroupCentered(Advantage):
    """A = R − mean_g. Source: Dr.GRPO, arXiv:2503.20783."""

    def estimate(self, groups: Groups) -> Tensor:
        return groups.centred()


class AccurateGroupCentered(Advantage):
    """A = B/(B − M)·(R − mean_g), M = number of responses in groups with equal rewards.

    B and M count the decided responses of the rollout. A group of one response is not in M.
    Source: GPG, arXiv:2504.02546 (accurate estimation), as released in AMAP-ML/GPG.
    """

    def estimate(self, groups: Groups) -> Tensor:
        with_signal = int((~groups.constant).sum())
        return len(groups.rewards) / max(with_signal, 1) * groups.centred()


class MaximumLikelihood(Advantage):
    """A = (R − mean_g) / (mean_g + ε). A reward below 0 would turn the sign of A: it is refused.

    Source: MaxRL, arXiv:2602.02710.
    """

    nonnegative: ClassVar[bool] = True

    epsilon: float = Field(default=1e-6, gt=0)
    """ε added to the mean"""

    def estimate(self, groups: Groups) -> Tensor:
        return groups.centred() / (groups.sum(groups.rewards) / groups.size + self.epsilon)


class LeaveOneOut(Advantage):
    """A = R − mean of the other G − 1 rewards = G/(G − 1)·(R − mean_g).

    Source: RLOO, arXiv:2402.14740.
    """

    def estimate(self, groups: Groups) -> Tensor:
        size = groups.size.double()
        return torch.where(groups.single, 1.0, size / (size - 1)) * groups.centred()


class BatchCentered(Advantage):
    """A = R − mean over all responses. Source: FlashREINFORCE, Hu et al. 2026, eq. 5."""

    relative: ClassVar[bool] = False

    def estimate(self, groups: Groups) -> Tensor:
        centred = groups.rewards - groups.rewards.mean()
        rounding = groups.rounding * groups.rewards.abs().mean()
        return torch.where(centred.abs() <= rounding, 0.0, centred)


class BatchWhitened(Advantage):
    """A = (R − mean) / sqrt(var + 1e-8) over all response tokens (unbiased variance).

    Source: REINFORCE++, arXiv:2501.03262.
    """

    relative: ClassVar[bool] = False

    def estimate(self, groups: Groups) -> Tensor:
        return groups.whitened(groups.rewards)


class GroupCenteredBatchWhitened(Advantage):
    """R − mean_g, then whitened over all response tokens.

    In a group of equal rewards, R − mean_g is exactly 0 before the whitening.
    Source: REINFORCE++-baseline, arXiv:2501.03262.
    """

    relative: ClassVar[bool] = False

    def estimate(self, groups: Groups) -> Tensor:
        return groups.whitened(groups.centred())


class LengthWeighted(Advantage):
    """A = R − Σ_j |o_j|·R_j / Σ_j |o_j| within the group. Source: OPO, arXiv:2505.23585."""

    def estimate(self, groups: Groups) -> Tensor:
        tokens = groups.sum(groups.lengths)
        baseline = groups.sum(groups.lengths * groups.rewards) / tokens.clamp(min=1)
        return groups.above(baseline)


class QuantileBaseline(Advantage):
    """A = (R − b) / (std_g + ε), b = the smallest reward x of the group with F(x) ≥ K.

    This is the paper's quantile. The released code interpolates between two rewards instead. In a
    group of one response it is the reward, so that A = 0.
    Source: QAE, arXiv:2509.22611.
    """

    K: float = Field(default=0.4, gt=0, le=1)
    """K, the quantile that is the baseline"""
    epsilon: float = Field(default=1e-6, ge=0)
    """ε added to the standard deviation"""

    def estimate(self, groups: Groups) -> Tensor:
        baseline = torch.zeros_like(groups.rewards)
        for group in groups.group.unique():
            member = groups.group == group
            ranked = groups.rewards[member]  # sorted by reward already
            baseline[member] = ranked[rounded_share(self.K, len(ranked), "ceil") - 1]
        return (groups.rewards - baseline) / (groups.std(groups.rewards) + self.epsilon)


class PassAtK(Advantage):
    """A = (best − second best) / (std_g + ε) for the group's best response, 0 for the others.

    A = 0 for all if the best reward is shared or the group has one member.
    Source: arXiv:2503.19595, as released in verl's grpo_passk.
    """

    epsilon: float = Field(default=1e-6, ge=0)
    """ε added to the standard deviation"""

    def estimate(self, groups: Groups) -> Tensor:
        advantages = torch.zeros_like(groups.rewards)
        last = torch.ones_like(groups.group, dtype=torch.bool)
        last[:-1] = groups.group[1:] != groups.group[:-1]  # the largest reward of each group
        best = (last & (groups.size > 1)).nonzero().squeeze(1)
        advantages[best] = groups.rewards[best] - groups.rewards[best - 1]
        return advantages / (groups.std(groups.rewards) + self.epsilon)


class ExpectedPassAtK(Advantage):
    """A = (1 − ρ − q·[wrong]) / (σ + ε), ρ the group's pass@k, σ = sqrt(ρ(1 − ρ)).

    The reward of a set of k responses is 1 if one of them is correct (R > 0.5); a response has the
    mean advantage of the sets that it is in. Of the group's n responses w are wrong:
    1 − ρ = C(w, k)/C(n, k), and q = C(w − 1, k − 1)/C(n − 1, k − 1) is the share of a wrong
    response's sets without a correct one. A = 0 for all if n < k.

    Source: pass@k training with the analytic advantages, arXiv:2508.10751, as released in
    RUCAIBox/Passk_Training, whose reward of a correct response is exactly 1.
    """

    k: int = Field(default=4, ge=1)
    """k, the responses in a set"""
    epsilon: float = Field(default=1e-6, gt=0)
    """ε added to σ"""

    def estimate(self, groups: Groups) -> Tensor:
        wrong = (groups.rewards <= 0.5).double()
        number = groups.sum(wrong)
        unsolved = torch.ones_like(wrong)  # q
        for i in range(1, self.k):
            unsolved = unsolved * ((number - i) / (groups.size - i).clamp(min=1)).clamp(min=0)
        failed = number / groups.size * unsolved  # 1 − ρ
        return (failed - wrong * unsolved) / ((failed * (1 - failed)).sqrt() + self.epsilon)


def _of_one_reward(part: Advantage) -> Advantage:
    if part.by_turn or part.decoupled or part.of_tokens:
        raise ConfigError(f"'{part.kind}' cannot be a part; expected one such as group_normalized")
    return part


AdvantageField = Annotated[SerializeAsAny[Advantage], BeforeValidator(Advantage.build)]
PartField = Annotated[AdvantageField, AfterValidator(_of_one_reward)]
"""An advantage inside another one."""


class Decoupled(Advantage):
    """A = then(Σ_k w_k·A_k), A_k = each(R_k): every reward has an advantage of its own.

    `then` reads the sum as if it were a reward; None leaves the sum as it is. Sums of advantages
    that differ from 0 only by rounding are 0.

    Source: GDPO, arXiv:2601.05242: each is group_normalized, then whitens over the batch.
    """

    relative: ClassVar[bool] = False
    decoupled: ClassVar[bool] = True

    each: PartField = GroupNormalized()
    """A_k, the advantage of one reward"""
    then: PartField | None = BatchWhitened()
    """the advantage of the sum; null = none"""

    def __call__(
        self, rewards: Tensor, groups: Tensor, lengths: Tensor, weights: Weights = None
    ) -> Tensor:
        rewards = torch.as_tensor(rewards).detach()
        rewards = rewards.unsqueeze(1) if rewards.dim() == 1 else rewards
        undecided = rewards.isnan().any(1)
        columns = rewards.masked_fill(undecided.unsqueeze(1), torch.nan).unbind(1)
        weights = [1.0] * len(columns) if weights is None else weights
        parts = [
            weight * self.each(column, groups, lengths)
            for weight, column in zip(weights, columns, strict=True)
        ]
        total = total_reward(torch.stack(parts, 1), None)
        size = total_reward(torch.stack(parts, 1).abs(), None)
        total = total.masked_fill(total.abs() <= _ROUNDING * size, 0.0)
        if self.then is None:
            return total
        return self.then(total.masked_fill(undecided, torch.nan), groups, lengths)


class TurnReturn(Advantage):
    """A_t = each(G_t), G_t = r_t + γ·G_{t+1}: each turn has an advantage of its own.

    `each` compares G_t of a response with G_t of the group's other responses that have a turn t. If
    no other one has a turn t, it compares with the returns of their last turns. A turn without
    tokens is left out. Responses that all have one turn get the advantage `each`.

    With `leave_one_out`, the baseline of a turn depends on the other responses alone, which are
    independent of what the response itself does. So the expectation of Σ_t A_t ∇log π(turn t) is
    ∇E[Σ_t r_t] for γ = 1, if no response is undecided. It is not if the baseline counts G_t of the
    response itself, as in `group_centered`: if m responses are compared, the expected gradient of
    the turn is multiplied by 1 − 1/m, which is smaller for late turns that few responses reach.

    Source: return-to-go with a baseline, Williams 1992; RLOO, arXiv:2402.14740.
    """

    by_turn: ClassVar[bool] = True

    discount: float = Field(default=1.0, ge=0, le=1)
    """γ, discount of the next turn's return"""
    each: PartField = LeaveOneOut()
    """the advantage of the returns of one turn number"""

    def __call__(
        self, rewards: Tensor, groups: Tensor, lengths: Tensor, weights: Weights = None
    ) -> Tensor:
        """A, [B, T]; or [B] for rewards [B] of one turn each.

        Args:
            rewards: r, [B, T]; NaN where there is no turn, and on all turns if undecided.
            groups: the prompt's group, int [B].
            lengths: trained tokens, int [B].
            weights: ignored.
        """
        rewards = torch.as_tensor(rewards)
        table = rewards.unsqueeze(1) if rewards.dim() == 1 else rewards
        returns, last = _returns(table.detach().double(), self.discount)
        groups = torch.as_tensor(groups).long().to(rewards.device)
        group = groups.unique(return_inverse=True)[1]
        columns = []
        for column in returns.unbind(1):
            have = torch.bincount(group[~column.isnan()], minlength=len(group))
            alone = column.isnan() & (have[group] == 1)
            column = torch.where(alone, last, column)
            columns.append(self.each(column.to(rewards.dtype), groups, lengths))
        return torch.stack(columns, 1).reshape(rewards.shape)


def _returns(rewards: Tensor, discount: float) -> tuple[Tensor, Tensor]:
    """G, [B, T], and that of each response's last turn, [B]; NaN where there is no turn."""
    later, last = torch.zeros_like(rewards[:, 0]), torch.full_like(rewards[:, 0], torch.nan)
    columns = []
    for column in reversed(rewards.unbind(1)):
        step_return = column + discount * later
        later = torch.where(column.isnan(), later, step_return)
        last = torch.where(last.isnan(), step_return, last)
        columns.insert(0, step_return)
    return torch.stack(columns, 1), last
