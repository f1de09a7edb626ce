"""Advantages that read a value, and the losses that train it.

A value, such as V of a critic, belongs to a token: it is the expected reward after the context
before the token. A score NAME that is a value gives a table's columns:

    NAME_value        V_old, at the start of the step, [N]
    NAME_bootstrap    V after the last token of a response that was cut, else 0, [B]
    NAME_return       G, what the value is trained on, [N]; `Objective.with_advantages` adds it
    NAME_new_value    V of the present weights with gradient, [N]; the losses of values read it
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError
from rlobj.base.primitives import Primitive
from rlobj.objectives import functional, statistics
from rlobj.objectives.advantages import Advantage, Weights
from rlobj.objectives.frame import Frame
from rlobj.objectives.penalties import LossTerm, RewardKL
from rlobj.objectives.rules import Level, Number
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import Controlled
from rlobj.objectives.settings import SHARE, OptionalPositive, OptionalShare, Share, expressions
from rlobj.objectives.statistics import Comm
from rlobj.objectives.surrogates import Terms
from rlobj.objectives.tokens import TokenBatch
from rlobj.objectives.values import power


class Gae(Advantage):
    """A_t = Σ_k (γλ)^k·δ_{t+k}, δ_t = r_t + γ·V_{t+1} − V_t, over the policy's tokens.

    r_t is the reward at the response's last token, or the reward of a turn at the turn's last one,
    minus the token's `reward_kl`. What an environment says between two turns is stepped over: the
    next token is the next one that the policy wrote.

    Source: arXiv:1506.02438 eq. 16; λ of the value apart from that of the policy: VAPO,
    arXiv:2504.05118.
    """

    relative: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = True

    value: str = "critic"
    """the score that is V"""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """γ, discount of the next token"""
    lam: Share = 0.95
    """λ, a number, or an expression with one value per response: `1 - 1 / (0.05 * length)`"""
    lam_value: OptionalShare = None
    """λ of the returns that the value is trained on, 1 = Monte Carlo; null = `lam`"""
    whiten: bool = True
    """(A − mean) / sqrt(var + 1e-8) over all response tokens, unbiased variance"""
    truncated: Literal["zero", "bootstrap"] = "zero"
    """V after the last token of a response that was cut: 0, or the value there"""

    @model_validator(mode="after")
    def _lam_is_known_before(self) -> Self:
        """λ is of a response, and nothing that is made from advantages."""
        made = ("advantage", "covariance", "gradient_norm", f"{self.value}_return")
        for path, number, _ in expressions(self):
            if number.level > Level.RESPONSE:
                advice = "take one value per response, such as length or x.mean(by='response')"
                raise ConfigError(
                    f"{path} '{number}' has a value per {number.level.name.lower()}; {advice}"
                )
            for node in number.walk():
                if isinstance(node, Controlled) or str(node) in made:
                    raise ConfigError(
                        f"{path} '{number}' reads '{node}', which advantages come before"
                    )
        return self

    def __call__(
        self, rewards: Tensor, groups: Tensor, lengths: Tensor, weights: Weights = None
    ) -> Tensor:
        """There is none without a table's values; `functional.gae` is the equation."""
        raise TypeError(
            "gae reads a table: use Objective(advantage=Gae()).with_advantages([table])"
        )

    @property
    def group_relative(self) -> bool:
        return False


def value_advantages(
    advantage: Gae,
    columns: Mapping[str, str],
    reward_kl: RewardKL,
    tables: Sequence[TokenBatch],
    comm: Comm,
) -> list[TokenBatch]:
    """This rank's tables with the columns `advantages` and NAME_return; called by all ranks
    together. `columns` are those to read, each with what reads it."""
    frame = Frame(tables, columns, comm)
    name, starts = advantage.value, frame.table.turn_starts
    values = frame.batch(f"{name}_value").double()
    unit, (first_values,), back = frame.ordered_turns([values[starts]])
    last = torch.ones_like(unit, dtype=torch.bool)
    last[:-1] = unit[1:] != unit[:-1]
    following, ends = _later(first_values, last)[back], last[back]
    if advantage.truncated == "bootstrap":
        after = frame.batch(f"{name}_bootstrap").double()[starts]
        following = torch.where(ends, after, following)
    rewards = _token_rewards(frame, reward_kl, ends)
    turns = frame.table.turns.bincount(minlength=len(starts))

    def estimate(lam: Any, who: str) -> tuple[Tensor, Tensor]:
        """A, and A + V."""
        share = _by_turn(frame, lam, who)
        sums, goals = functional.gae(rewards, values, turns, advantage.gamma, share, following)
        if bool(last.all()):  # no rollout has several turns, on any rank
            return sums, goals
        decay = power(advantage.gamma * share, turns)
        unit, (first, product), _ = frame.ordered_turns([sums[starts], decay])
        later = _later(statistics.scan_to_go(first, product, unit.bincount()), last)[back]
        ahead = following + share * later  # λ·A of the next turn's first token beside its V
        return functional.gae(rewards, values, turns, advantage.gamma, share, ahead)

    advantages, returns = estimate(advantage.lam, "advantage.lam")
    if advantage.lam_value is not None:
        _, returns = estimate(advantage.lam_value, "advantage.lam_value")
    frame.check()
    if advantage.whiten:
        decided = frame.decided
        mean = statistics.exact_mean(advantages, decided, comm)
        centred = (advantages - mean).masked_fill(~decided, 0.0)
        count = statistics.count(decided, comm)
        variance = statistics.exact_sum(centred.square(), comm) / max(count - 1, 1)
        advantages = centred / (variance + 1e-8) ** 0.5
    sizes = [len(part) for part in tables]
    pairs = zip(tables, advantages.split(sizes), returns.split(sizes), strict=True) if sizes else ()
    return [
        part.with_columns({f"{name}_return": goal.to(part.logprobs)}).credited(advantages=a)
        for part, a, goal in pairs
    ]


def _later(numbers: Tensor, last: Tensor) -> Tensor:
    """The number of the next turn of the rollout, 0 at the last one, [T]."""
    return torch.cat([numbers[1:], numbers[:1]]).masked_fill(last, 0)


def _token_rewards(frame: Frame, reward_kl: RewardKL, ends: Tensor) -> Tensor:
    """r_t of each token, float64 [N]; `ends` are the last turns of rollouts, bool [T]."""
    table = frame.table
    tokens = torch.cat([table.turn_starts[1:], table.lengths.sum()[None]])[: len(ends)] - 1
    by_turn = "turn_reward" in frame.columns_read
    column = frame.batch("turn_reward") if by_turn else table.spread(table.reward().detach())
    rewards = torch.zeros(len(table), dtype=torch.float64, device=frame.device)
    rewards[tokens] = column.double()[tokens].masked_fill(~(ends | by_turn), 0)
    if reward_kl.coefficient:
        gap = frame.batch("old_logprobs") - frame.batch(score_column(reward_kl.against))
        rewards = rewards - reward_kl.coefficient * gap.double()
    return rewards.masked_fill(~frame.decided, 0.0)


def _by_turn(frame: Frame, lam: Any, who: str) -> Tensor:
    """λ in [0, 1] of each turn, float64 [T]."""
    starts = frame.table.turn_starts
    if not isinstance(lam, Number):
        return torch.full(starts.shape, lam, dtype=torch.float64, device=frame.device)
    values = frame.number(lam, who)
    outside = SHARE.outside(values)
    frame.refuse(frame.decided & outside, f"{who} '{lam}' is not {SHARE}")
    return values.double().masked_fill(outside | ~frame.decided, 0.0)[starts]


class ValueLoss(LossTerm, Primitive):
    """Base class of the losses of a value: loss = ... + Σ_k (1/Z_k) Σ_{where} c_k·P_k.

    They have a gradient by NAME_new_value alone, and none by the policy. A class of your own reads
    the columns of `terms.table`, and G as `terms.values["NAME_return"]`.
    """

    value: str = "critic"
    """the score that is trained"""

    def clipped(self, terms: Terms) -> Tensor:
        """The tokens in which the value's loss has no gradient because it is clipped, bool [N]."""
        return torch.zeros_like(terms.logprobs, dtype=torch.bool)

    def needs(self) -> tuple[str, ...]:
        """TokenBatch columns that the loss reads; the plan has NAME_return."""
        return f"{self.value}_new_value", f"{self.value}_value"


ValueField = Annotated[SerializeAsAny[ValueLoss], BeforeValidator(ValueLoss.build)]


class ClippedSquared(ValueLoss):
    """P = ½·max((V − G)², (clamp(V, V_old − clip, V_old + clip) − G)²); ½·(V − G)² without clip.

    Source: PPO, as in verl's `compute_value_loss` (clip 0.5) and in TRL (0.2).
    """

    clip: OptionalPositive = 0.2
    """largest distance from V_old; null = not clipped"""

    def __call__(self, terms: Terms) -> Tensor:
        return functional.value_loss(*self._columns(terms), self.clip)

    def clipped(self, terms: Terms) -> Tensor:
        if self.clip is None:
            return super().clipped(terms)
        new, old, returns = self._columns(terms)
        near = new.clamp(old - self.clip, old + self.clip)
        return (near - returns).abs() > (new - returns).abs()

    def _columns(self, terms: Terms) -> tuple[Tensor, Tensor, Tensor]:
        table, columns = terms.table, list[Tensor]()
        for name in self.needs():
            column = table.column(name, type(self).__name__)
            if column.shape != table.decided.shape:
                expected = f"{self.kind} reads a value of each token, {[*table.decided.shape]}"
                raise BatchError(f"column '{name}' is {[*column.shape]}; {expected}")
            columns.append(torch.where(table.decided, column, 0.0))
        return columns[0], columns[1].detach(), terms.values[f"{self.value}_return"]


def value_names(settings: Mapping[str, Any]) -> list[str]:
    """The value that an objective's settings name; [] = none."""
    advantage = settings.get("advantage")
    advantage = {"kind": advantage} if isinstance(advantage, str) else advantage
    if isinstance(advantage, Mapping) and advantage.get("kind") == Gae.kind:
        return [str(advantage.get("value", Gae.model_fields["value"].default))]
    return [advantage.value] if isinstance(advantage, Gae) else []
