"""The parts of the stages of an objective.

Clauses: what an objective did to each token of an update, and which part of a rule decided it.

A token is touched if it is dropped, masked by the mismatch correction, reweighted, switched to
another surrogate, or in the `where` of a penalty. The first of these counts. Importance weights
between the bounds of a mismatch correction touch no token, and neither does a penalty on all
tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlobj.base.errors import BatchError
from rlobj.base.primitives import Primitive
from rlobj.objectives import statistics
from rlobj.objectives.advantages import Advantage
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty, RewardKL
from rlobj.objectives.plan import Plan, token_shares
from rlobj.objectives.rewards import check_sign
from rlobj.objectives.rules import Number, Rule
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import Arithmetic, Column, Logic, When
from rlobj.objectives.settings import bind, expressions
from rlobj.objectives.statistics import Comm
from rlobj.objectives.surrogates import Surrogate, Switch, Terms
from rlobj.objectives.tokens import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


def rollout_advantages(
    advantage: Advantage, reward_kl: RewardKL, tables: Sequence[TokenBatch], comm: Comm
) -> list[TokenBatch]:
    """The tables with the column `advantages`; see `Objective.with_advantages`.

    Args:
        advantage: A.
        reward_kl: what is subtracted from each response's reward.
        tables: this rank's tables.
        comm: the process group.
    """
    given = sum(table.advantages is not None for table in tables)
    rewards, error = [], ""
    try:
        rewards = [] if given else [_rewards(table, advantage, reward_kl) for table in tables]
    except BatchError as exception:
        error = str(exception)
    given_as = [t.turn_reward if advantage.by_turn else t.rewards for t in tables]
    single = sum(x is not None and x.dtype != torch.float64 for x in given_as)
    facts = torch.tensor([given, len(tables) - given, int(bool(error)), single])
    present, absent, failed, single = comm.sum(facts).tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if present:
        return list(tables)
    rewards = [reward for reward in rewards if len(reward)]
    own_numbers = torch.tensor([reward.shape[1] for reward in rewards], dtype=torch.int64)
    numbers = statistics.gather(own_numbers, comm)[0].unique().tolist()  # K of each table
    if advantage.by_turn:
        pad, ends = torch.nn.functional.pad, [numbers[-1] - each.shape[1] for each in rewards]
        padded = zip(rewards, ends, strict=True)
        rewards = [pad(each, (0, end), value=torch.nan) for each, end in padded]
    elif len(numbers) > 1:
        raise BatchError("the tables of the update hold different numbers of rewards")
    nothing = torch.zeros(0, *(numbers[-1:] or [1])).double()
    dtype = torch.float32 if single else torch.float64
    empty = torch.zeros(0).long()
    lengths = torch.cat([empty, *(table.lengths.cpu() for table in tables)]).double()
    own = torch.cat([torch.cat([nothing, *rewards]), lengths.unsqueeze(1)], 1)
    rows, start = statistics.gather(own, comm)
    names = torch.cat([empty, *(table.groups.cpu() for table in tables)])
    groups, _ = statistics.gather(names, comm)
    weights = tables[0].reward_weights if tables and advantage.decoupled else None
    whole = rows[:, :-1] if advantage.decoupled or advantage.by_turn else rows[:, 0]
    mine = advantage(whole.to(dtype), groups, rows[:, -1], weights)[start : start + len(own)]
    parts = mine.split([len(table.lengths) for table in tables]) if tables else ()
    pairs = [(table, part.to(table.logprobs)) for table, part in zip(tables, parts, strict=True)]
    if advantage.by_turn:
        return [table.credited(part[table.responses, table.turn_numbers]) for table, part in pairs]
    return [table.replace(advantages=part) for table, part in pairs]


def _rewards(table: TokenBatch, advantage: Advantage, reward_kl: RewardKL) -> Tensor:
    """The rewards that an advantage reads, float64 [B, K], CPU.

    They are all rewards of a decoupled advantage, those of turns of one by turn, NaN where a turn
    has no token, else R − β·Σ_t (l0 − l_k).
    """
    column = table.column("rewards", f"the advantage {advantage}").detach().double().cpu()
    if advantage.decoupled:
        return column if column.dim() == 2 else column.unsqueeze(1)
    rewards = table.reward().detach().double()
    if advantage.by_turn:
        return _turn_rewards(table, rewards, f"the advantage {advantage}").cpu()
    if reward_kl.coefficient:
        old = table.finite("old_logprobs", "reward_kl").double()
        reference = table.finite(score_column(reward_kl.against), "reward_kl").double()
        rewards = rewards - reward_kl.coefficient * table.sum_by_response(old - reference)
    if advantage.nonnegative:
        check_sign(rewards, table.groups, column, table.reward_names or ())
    return rewards.cpu().unsqueeze(1)


def _turn_rewards(table: TokenBatch, rewards: Tensor, who: str) -> Tensor:
    """The rewards of turns, float64 [B, T]; a response without tokens has one turn with its R."""
    values, turns = table.finite("turn_reward", who).double(), table.turn_numbers
    longest = int(turns.max()) + 1 if len(turns) else 1
    found = torch.full((len(rewards), longest), torch.nan).to(rewards)
    found[:, 0] = rewards.where(table.lengths == 0, torch.nan)
    found[table.responses, turns] = values
    return found.masked_fill(~table.decided_responses.unsqueeze(1), torch.nan)


def omega(frame: Frame, weight: Number | None, mismatch: Mismatch | None, where: Tensor) -> Tensor:
    """ω, the weight times the mismatch factor, [N].

    Args:
        frame: the tokens of the update.
        weight: the objective's weight.
        mismatch: the correction between sampler and trainer.
        where: the tokens whose weight must be finite, bool [N].
    """
    omega = torch.ones(len(frame.table), dtype=frame.dtype, device=frame.device)
    if weight is not None:
        omega = omega * frame.number(weight, "reweight", where)
    if mismatch is not None:
        gap = frame.number(Column("sampler_gap"))
        omega = omega * bound(frame, mismatch)(gap, frame.table)
    return omega


def bound(frame: Frame, mismatch: Mismatch) -> Mismatch:
    """The correction with the values of its expressions."""
    return bind(mismatch, fixed_values(frame, {"mismatch": mismatch}))


def penalty_weights(
    frame: Frame, penalty: Penalty, objective_divisor: Divisor, phase: Rule | None
) -> Tensor:
    """c_k/Z_k on the penalty's tokens of this phase, 0 elsewhere, [N].

    Z_k counts the tokens of all phases, as in Lopti's release.

    Args:
        frame: the tokens of the update.
        penalty: P_k.
        objective_divisor: Z; over all tokens it is the penalty's divisor by default.
        phase: the tokens of this phase; None = all.
    """
    divisor = penalty.divisor or objective_divisor.model_copy(update={"over": "all"})
    chosen = frame.rule(penalty.where)
    counted = chosen if divisor.over == "kept" else frame.decided
    in_phase = chosen & frame.rule(phase)
    coefficient = frame.number(penalty.coefficient, f"{penalty.kind}.coefficient", in_phase)
    return token_shares(frame, divisor, counted, in_phase, coefficient)


def fixed_values(
    frame: Frame, primitives: Mapping[str, Primitive], rules: Iterable[Rule] = ()
) -> dict[str, Tensor]:
    """The values of rules, bool [N], and of expression-valued settings, [N], by their text.

    Args:
        frame: the tokens of the update.
        primitives: the owners of the settings, each with its name for error messages.
        rules: the rules that surrogates read.
    """
    values = {str(rule): frame.rule(rule) for rule in rules}
    for who, primitive in primitives.items():
        for path, expression, bounds in expressions(primitive):
            numbers = frame.number(expression, f"{who}.{path}")
            frame.refuse(
                frame.decided & bounds.outside(numbers),
                f"{who}.{path} '{expression}' is not {bounds}",
            )
            values[str(expression)] = numbers.masked_fill(~frame.decided, 1.0)
    return values


def terms(table: TokenBatch, plan: Plan) -> Terms:
    """The terms of a micro-batch and its plan.

    Log-probs of undecided responses are 0. All others that are not finite are NaN: −inf would be
    within the bounds of some surrogates and out of those of others.
    """
    logprobs = torch.where(table.logprobs.isfinite(), table.logprobs, torch.nan)
    logprobs = torch.where(table.decided, logprobs, 0.0)
    return Terms(table, logprobs, plan.advantages[0], plan.values[0])


def check_finite(table: TokenBatch, loss: Tensor) -> None:
    """Check the loss of a micro-batch.

    Raises:
        BatchError: it is not finite; names the first row of the table that is not.
    """
    if bool(loss.isfinite()):
        return
    for name in ("logprobs", "entropy"):
        if getattr(table, name) is not None:
            table.finite(name, "the loss")
    raise BatchError(
        f"the loss is {loss.item()}, although all log-probs are finite. The surrogate or a penalty "
        "is infinite at some token; see max_log_ratio and max_gap"
    )


def flat(expression: Any, kind: type[Logic | Arithmetic], operator: str) -> list[Any]:
    """The operands of a chain of one operator: a | b | c -> a, b, c; None has none."""
    if isinstance(expression, kind) and expression.operator == operator:
        return [
            part
            for side in (expression.left, expression.right)
            for part in flat(side, kind, operator)
        ]
    return [] if expression is None else [expression]


def cases(
    frame: Frame, number: Number, where: Tensor, path: Rule | None = None
) -> Iterator[tuple[str, Tensor, Number]]:
    """The cases of a chain of `when`: the condition, its tokens, and the number they get.

    The text of a number without `when` is the number's.
    """
    passed: Rule | None = None
    while isinstance(number, When):
        held = frame.holds(number.rule)
        condition = number.rule if path is None else path & number.rule
        yield from cases(frame, number.then, where & held, condition)
        where = where & ~held
        passed = number.rule if passed is None else passed | number.rule
        number = number.otherwise
    if passed is not None:
        path = ~passed if path is None else path & ~passed
    yield str(number if path is None else path), where, number


def switches(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from switches(frame, surrogate.then, where & held)
        yield from switches(frame, surrogate.otherwise, where & ~held)
