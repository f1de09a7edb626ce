"""A plan, made from the frame of an update: shares of the divisors, values of settings, clauses."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.primitives import Primitive
from rlobj.objectives import statistics
from rlobj.objectives.critic import ValueLoss
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.plan import Clauses, Plan, responses_of
from rlobj.objectives.rules import Number, Rule
from rlobj.objectives.rules.nodes import Arithmetic, Column, Logic, When, operands
from rlobj.objectives.settings import bind, expressions
from rlobj.objectives.surrogates import Surrogate, Switch
from rlobj.objectives.tokens import TokenBatch


def make_plan(
    objective: Any, tables: Sequence[TokenBatch], frame: Frame, with_clauses: bool
) -> Plan:
    """The plan of an update.

    Args:
        objective: one phase of an `Objective`.
        tables: this rank's tables, with advantages.
        frame: their tokens, with what `Objective.plan` reads.
        with_clauses: also find what the objective did to each token.
    """
    kept = frame.rule(objective.keep_rule)
    if objective.drop_rule is not None:
        kept = kept & ~frame.rule(objective.drop_rule)
    in_phase = kept & frame.rule(objective.phase)
    factor = _token_weights(frame, objective, in_phase)
    weights = token_shares(frame, objective.divisor, kept, in_phase, factor)
    penalties, values_of = (
        [_penalty_weights(frame, objective, term) for term in terms]
        for terms in (objective.penalties, objective.values)
    )
    shape = Column("advantage") if objective.shape is None else objective.shape
    advantages = frame.number(shape, "shape")
    values = fixed_values(frame, objective.terms, objective.surrogate.rules())
    if objective.values:
        values[f"{objective.critic}_return"] = frame.batch(f"{objective.critic}_return")
    frame.check()
    sizes = [len(table) for table in tables]

    def cut(values: Tensor) -> tuple[Tensor, ...]:  # [N] -> one [N] for each table
        return values.split(sizes) if sizes else ()

    acting = torch.stack([share != 0 for share in (weights, *penalties)]).any(0)
    tokens, kept_tokens, acting_tokens = (
        statistics.count(mask, frame.comm) for mask in (frame.decided, kept, acting)
    )
    parts = {text: cut(value) for text, value in values.items()}
    return Plan(
        weights=cut(weights),
        penalties=tuple(zip(*map(cut, penalties), strict=True)) or ((),) * len(sizes),
        value_shares=tuple(zip(*map(cut, values_of), strict=True)) or ((),) * len(sizes),
        advantages=cut(advantages),
        values=tuple({text: parts[text][i] for text in parts} for i in range(len(sizes))),
        empty=acting_tokens == 0,
        tokens=tokens,
        kept=kept_tokens,
        metrics={
            "objective/kept_fraction": kept_tokens / tokens if tokens else 0.0,
            "objective/dropped_tokens": float(tokens - kept_tokens),
            **_plan_metrics(objective, tables, frame),
        },
        responses=tuple(responses_of(table) for table in tables),
        off_policy=any(table.old_logprobs is not None for table in tables),
        clauses=_find_clauses(objective, frame, factor.masked_fill(~in_phase, 0))
        if with_clauses
        else None,
    )


def _plan_metrics(objective: Any, tables: Sequence[TokenBatch], frame: Frame) -> dict[str, float]:
    """The controllers, what rules select, and the tokens whose log-prob the sampler did not say."""
    metrics = {
        f"controller/{name}": float(frame.state[name]["value"]) for name in objective.controllers
    }
    for text, (selected, population) in frame.selections.items():
        metrics[f"selected/{text}"] = selected / population if population else 0.0
    if objective.values:
        metrics |= _value_metrics(objective.critic, frame)
    unknown = frame.decided.new_zeros(0)
    for table in tables:  # which have these log-probs also if nothing reads them
        if table.sampler_logprobs is not None:
            unknown = torch.cat([unknown, table.sampler_logprobs.isnan() & table.decided])
    if count := statistics.count(unknown, frame.comm):
        metrics["sampler/nan_tokens"] = float(count)
    return metrics


def _value_metrics(name: str, frame: Frame) -> dict[str, float]:
    """The mean of V_old, and 1 − var(G − V_old)/var(G), over the tokens of the update."""
    values, returns = (frame.batch(f"{name}_{kind}").double() for kind in ("value", "return"))
    where, comm = frame.decided, frame.comm

    def variance(numbers: Tensor) -> float:
        mean = statistics.exact_mean(numbers, where, comm)
        return statistics.exact_mean((numbers - mean).square(), where, comm)

    if not statistics.count(where, comm):
        return {"value/mean": 0.0, "value/explained_variance": 0.0}
    of_returns = variance(returns)
    explained = 1 - variance(returns - values) / of_returns if of_returns else 0.0
    mean = statistics.exact_mean(values, where, comm)
    return {"value/mean": mean, "value/explained_variance": explained}


def _token_weights(frame: Frame, objective: Any, where: Tensor) -> Tensor:
    """ω, the weight times the mismatch factor, [N]; the weight must be finite in `where`."""
    omega = torch.ones(len(frame.table), dtype=frame.dtype, device=frame.device)
    if objective.weight is not None:
        omega = omega * frame.number(objective.weight, "reweight", where)
    if objective.mismatch is not None:
        gap = frame.number(Column("sampler_gap"))
        omega = omega * with_values(frame, objective.mismatch)(gap, frame.table)
    return omega


def _penalty_weights(frame: Frame, objective: Any, penalty: Penalty | ValueLoss) -> Tensor:
    """c_k/Z_k on the penalty's tokens of this phase, 0 elsewhere, [N].

    Z_k counts the tokens of all phases, as in Lopti's release.
    """
    divisor = penalty.divisor or objective.divisor.model_copy(update={"over": "all"})
    chosen = frame.rule(penalty.where)
    in_phase = chosen & frame.rule(objective.phase)
    coefficient = frame.number(penalty.coefficient, f"{penalty.kind}.coefficient", in_phase)
    return token_shares(frame, divisor, chosen, in_phase, coefficient)


def _find_clauses(objective: Any, frame: Frame, factor: Tensor) -> Clauses:
    """The clauses of an update, after its plan was made on the same frame.

    The plan has evaluated all populations, so that nothing is exchanged between ranks.

    Args:
        objective: one phase of an `Objective`.
        frame: the tokens of the update.
        factor: m·ω, [N].
    """
    nothing = torch.full(frame.decided.shape, -1, dtype=torch.int16, device=frame.device)
    clauses = Clauses(factor, frame.rule(objective.phase), nothing)
    for rule in operands(objective.drop_rule, Logic, "|"):
        clauses.mark("dropped", rule, frame.holds(rule))
    for rule in operands(objective.keep_rule, Logic, "&"):
        clauses.mark("dropped", ~rule, ~frame.holds(rule))
    weights = [
        (text, where, frame.number(number))
        for part in operands(objective.weight, Arithmetic, "*")
        for text, where, number in cases_of(frame, part, frame.decided)
    ]
    for text, where, values in weights:
        clauses.mark("dropped", text, where & (values == 0))
    if (mismatch := objective.mismatch) is not None:
        gap = frame.number(Column("sampler_gap"))
        correction = with_values(frame, mismatch)
        for effect, text, where in correction.clauses(gap, frame.table, mismatch):
            clauses.mark(effect, text, where)
    for text, where, values in weights:
        clauses.mark("reweighted", text, where & (values != 1))
    for rule, where in switches_of(frame, objective.surrogate, frame.decided):
        clauses.mark("switched", rule, where)
    for penalty in objective.penalties:
        if penalty.where is not None:
            acts = frame.number(penalty.coefficient) != 0
            clauses.mark("penalised", penalty.where, frame.rule(penalty.where) & acts)
    return clauses


def with_values(frame: Frame, mismatch: Mismatch) -> Mismatch:
    """The correction with the values of its expressions."""
    return bind(mismatch, fixed_values(frame, {"mismatch": mismatch}))


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


def token_shares(
    frame: Frame, divisor: Divisor, kept: Tensor, chosen: Tensor, scale: Tensor
) -> Tensor:
    """scale/Z_t on the chosen tokens, 0 elsewhere, [N].

    Args:
        frame: the tokens of the update.
        divisor: Z.
        kept: the tokens that it counts, unless it counts all, bool [N].
        chosen: the tokens that get a share, bool [N].
        scale: the numerator, [N].
    """
    counted = kept if divisor.over == "kept" else frame.decided
    z = divisor(counted, frame.table, frame.comm)
    z = divisor.checked(z, counted.shape, type(divisor).__call__)
    return (scale / z.to(frame.dtype)).masked_fill_(~(chosen & (z > 0)), 0.0)


def cases_of(
    frame: Frame, number: Number, where: Tensor, path: Rule | None = None
) -> Iterator[tuple[str, Tensor, Number]]:
    """The cases of a chain of `when`: the condition, its tokens, and the number they get.

    The text of a number without `when` is the number's.
    """
    passed: Rule | None = None
    while isinstance(number, When):
        held = frame.holds(number.rule)
        condition = number.rule if path is None else path & number.rule
        yield from cases_of(frame, number.then, where & held, condition)
        where = where & ~held
        passed = number.rule if passed is None else passed | number.rule
        number = number.otherwise
    if passed is not None:
        path = ~passed if path is None else path & ~passed
    yield (number if path is None else path).written_out(), where, number


def switches_of(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from switches_of(frame, surrogate.then, where & held)
        yield from switches_of(frame, surrogate.otherwise, where & ~held)
