"""What an objective does, in words: its formula, its populations, and settings that cannot act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlobj.objectives.controllers import AdaptiveGate, Gate
from rlobj.objectives.penalties import KL
from rlobj.objectives.rules import Constant, Cut, Expr, Quantile, Sample
from rlobj.objectives.surrogates import Clip, DppoTv, GeometricMean, SoftGate

if TYPE_CHECKING:
    from rlobj.objectives.objective import Objective

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """An objective in words.

    Attributes:
        formula: the loss, one line a term.
        rules: each rule with its place and what it selects over which population.
        needs: the TokenBatch columns that each stage reads.
        inert: settings that cannot act, and why.
    """

    formula: tuple[str, ...]
    rules: tuple[tuple[str, str, str], ...]
    needs: tuple[tuple[str, str], ...]
    inert: tuple[str, ...]

    def __str__(self) -> str:
        lines = [*self.formula, ""]
        lines += [f"{place}: {text}\n    {meaning}" for place, text, meaning in self.rules]
        lines += [f"{stage} reads {columns}" for stage, columns in self.needs]
        lines += [f"cannot act: {text}" for text in self.inert]
        return "\n".join(lines)


def explain(objective: Objective, updates_per_step: int | None) -> Explanation:
    """See `Objective.explain`."""
    rules = []
    for place, expression in objective._expressions():
        if isinstance(expression, Constant):
            continue
        rules.append((place, str(expression), "; ".join(_meanings(expression)) or "token by token"))
    needs = objective.needs
    stages = {"observe": needs.observe, "plan": needs.plan, "loss": needs.loss}
    return Explanation(
        formula=_formula(objective),
        rules=tuple(rules),
        needs=tuple(
            (stage, ", ".join(sorted(names)) or "nothing") for stage, names in stages.items()
        ),
        inert=tuple(_inert(objective, updates_per_step)),
    )


def _doc(primitive: Any) -> str:
    """The equation: the first line of the docstring, without its source."""
    first = (type(primitive).__doc__ or "").strip().splitlines()[0]
    return first.partition(" Source:")[0]


def _formula(objective: Objective) -> tuple[str, ...]:
    omega = " · ".join(
        name
        for name, present in (
            ("m", objective.drop_rule is not None or objective.keep_rule is not None),
            ("ω", objective.weight is not None),
            ("mismatch", objective.mismatch is not None),
        )
        if present
    )
    lines = [f"loss = − (1/Z) Σ {omega + ' · ' if omega else ''}S(r, A)"]
    lines += [
        f"       + (1/Z_{i}) Σ ({p.coefficient})·P_{i}"
        for i, p in enumerate(objective.penalties, 1)
    ]
    lines.append(f"A  {objective.advantage}: {_doc(objective.advantage)}")
    lines.append(f"S  {objective.surrogate}: {_doc(objective.surrogate)}")
    counted = "kept tokens" if objective.divisor.over == "kept" else "all tokens"
    lines.append(
        f"Z  {objective.divisor}: {_doc(objective.divisor)} Counts {counted} of the update."
    )
    if objective.mismatch is not None:
        lines.append(f"mismatch  {objective.mismatch}: {_doc(objective.mismatch)}")
    if objective.reward_kl:
        lines.append(f"R ← R − {objective.reward_kl}·Σ_t (l0 − l_ref), per response")
    lines += [f"P_{i}  {p}: {_doc(p)}" for i, p in enumerate(objective.penalties, 1)]
    lines += [f"{name}  {c}: {_doc(c)}" for name, c in objective.controllers.items()]
    return tuple(lines)


def _meanings(expression: Expr) -> list[str]:
    """What each cut, quantile and sample in the expression selects, over which population."""
    found = []
    for node in expression.walk():
        if isinstance(node, (Cut, Quantile)):
            people = "the update's n tokens"
            people += f" with {node.within}" if node.within is not None else ""
        if isinstance(node, Cut):
            which = "largest" if node.side == "top" else "smallest"
            exact = f"k = {node.round}({node.fraction}·n)"
            exact += f", at least {node.at_least}" if node.at_least else ""
            exact += f", none if k < {node.none_below}" if node.none_below else ""
            found.append(f"{node}: the k {which} {node.value} of {people}, {exact}, ties kept")
        elif isinstance(node, Quantile):
            found.append(f"{node}: the ceil({node.q}·n)-th smallest {node.value} of {people}")
        elif isinstance(node, Sample):
            size = node.amount if type(node.amount) is int else f"{node.round}({node.amount}·n)"
            whose = "all tokens of the update" if node.of == "all" else "the rule's tokens"
            found.append(f"sample: {size} of the tokens where {node.rule}; n counts {whose}")
    return found


def _inert(objective: Objective, updates: int | None) -> list[str]:
    found = []
    phases = len(objective.phases)
    if updates is not None and updates * phases == 1:
        for part in objective.surrogate.parts():
            around_sampler = isinstance(part, DppoTv) and part.against == "sampler"
            bounded = isinstance(part, (Clip, DppoTv, GeometricMean, SoftGate))
            if bounded and not around_sampler:
                found.append(
                    f"the bounds of {part}: with one update per rollout every ratio is 1 "
                    "(training.updates_per_step > 1 makes them act)"
                )
        for penalty in objective.penalties:
            if not isinstance(penalty, KL) or penalty.estimator == "k1":
                continue  # k1's gradient is that of l, also where l = l0
            if penalty.against == "old":
                found.append(f"{penalty}: on-policy l = l0, so it has no gradient")
    for name, gate in objective.controllers.items():
        if isinstance(gate, (Gate, AdaptiveGate)) and gate.target <= 0:
            found.append(
                f"{name}: mean entropy is never below {gate.target} nats; the gate stays shut"
            )
        if isinstance(gate, Gate) and gate.on == gate.off:
            found.append(f"{name}: on and off are both {gate.on}")
    read = {str(node) for _, e in objective._expressions() for node in e.walk()}
    found += [f"{name}: no rule reads it" for name in objective.controllers if name not in read]
    for place, expression in objective._expressions():
        for node in expression.walk():
            if isinstance(node, Cut) and node.fraction in (0, 1):
                what = "selects its whole population" if node.fraction else "selects nothing"
                found.append(f"{node} in {place}: {what}")
    if isinstance(objective.weight, Constant) and objective.weight.value == 1:
        found.append("reweight: 1 everywhere")
    return found
