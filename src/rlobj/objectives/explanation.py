"""An objective in words: its formula, what its rules select, and settings without effect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.primitives import Primitive
from rlobj.objectives.critic import ClippedSquared, Gae
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.penalties import KL, LossTerm, RewardKL
from rlobj.objectives.rules import Expr, nodes
from rlobj.objectives.surrogates import Clip, DppoTv, GeometricMean, SoftGate, Surrogate

Terms = Sequence[tuple[str, Primitive]]


@dataclass(frozen=True)
class Explanation:
    """An objective in words.

    Attributes:
        formula: the loss, one line per term.
        rules: (field, rule, what the rule selects from which tokens).
        needs: the TokenBatch columns that each stage reads.
        inert: settings that cannot act, and why.
    """

    formula: tuple[str, ...]
    rules: tuple[tuple[str, str, str], ...]
    needs: tuple[tuple[str, str], ...]
    inert: tuple[str, ...]

    def __repr__(self) -> str:
        lines = [*self.formula, ""]
        lines += [f"{field}: {rule}\n    {meaning}" for field, rule, meaning in self.rules]
        lines += [f"{stage} reads {columns}" for stage, columns in self.needs]
        lines += [f"no effect: {text}" for text in self.inert]
        return "\n".join(lines)


def explain(objective: Any, updates: int, value_updates: int) -> Explanation:
    """Explain an objective; `Objective.explain` calls this.

    Args:
        objective: the `Objective`, with all its phases.
        updates: optimizer updates per rollout, over all phases; 0 = unknown.
        value_updates: those of a value.
    """
    terms, expressions, needs = _terms(objective), objective.expressions, objective.needs
    return Explanation(
        formula=_formula(terms, [field for field, _ in expressions], objective.reward_kl),
        rules=tuple(
            (field, str(expression), "; ".join(_meanings(expression)) or f"{level} by {level}")
            for field, expression in expressions
            for level in [expression.level.name.lower()]
            if not isinstance(expression, nodes.Constant)
        ),
        needs=tuple(
            (stage, ", ".join(sorted(getattr(needs, stage))) or "nothing")
            for stage in ("observe", "plan", "loss")
        ),
        inert=tuple(_without_effect(terms, updates, value_updates)),
    )


def _terms(objective: Any) -> Terms:
    """The primitives of an objective by their symbols; a controller may be called A, too."""
    terms: list[tuple[str, Primitive | None]] = [
        ("A", objective.advantage if objective.reads_rewards else None),
        ("S", objective.surrogate),
        ("Z", objective.divisor),
        ("mismatch", objective.mismatch),
        *((f"P_{i}", penalty) for i, penalty in enumerate(objective.penalties, 1)),
        *((f"P_v{i}", value) for i, value in enumerate(objective.values, 1)),
        *objective.controllers.items(),
    ]
    return [(symbol, term) for symbol, term in terms if term is not None]


def _yaml(primitive: Primitive) -> str:
    """The primitive as in a preset, without defaults: {kind: clip, high: 0.28}."""
    from rlobj.base.yaml import dump_yaml

    settings = primitive.model_dump(mode="json", exclude_defaults=True)
    return dump_yaml(settings, flow=True, width=10**6).strip()


def _settings(primitive: Primitive) -> str:
    """The primitive with all settings that have a value, with defaults: Clip(low=0.2, ...)."""
    declared = vars(type(primitive)).get("__annotations__", {})  # before those of the base class
    fields = type(primitive).model_fields
    names = sorted(fields, key=lambda name: name not in declared)
    values = {name: getattr(primitive, name) for name in names}
    texts = [
        f"{name}={_settings(value) if isinstance(value, Primitive) else value}"
        for name, value in values.items()
        if value is not None and (value is not False or fields[name].default)
    ]
    return f"{type(primitive).__name__}({', '.join(texts)})"


def _formula(terms: Terms, fields: Sequence[str], reward_kl: RewardKL) -> tuple[str, ...]:
    symbols = [symbol for symbol, _ in terms]
    factors = {
        "m": "drop" in fields or "keep" in fields,
        "ω": "reweight" in fields,
        "mismatch": "mismatch" in symbols,
    }
    product = " · ".join([*(name for name, present in factors.items() if present), "S(r, A)"])
    lines = [f"loss = − (1/Z) Σ {product}"]
    for symbol, term in terms:
        if isinstance(term, LossTerm):
            number = symbol.removeprefix("P_")
            lines.append(f"       + (1/Z_{number}) Σ ({term.coefficient})·{symbol}")
    for symbol, term in terms:
        equation, _, _ = (type(term).__doc__ or "").strip().partition("\n")
        line = f"{symbol}  {_settings(term)}: {equation.partition(' Source:')[0]}"
        if isinstance(term, Divisor):
            line += f" Counts {term.over} tokens of the update."
        lines.append(line)
        if isinstance(term, Gae):
            old, new, goal = (f"{term.value}_{of}" for of in ("value", "new_value", "return"))
            lines.append(
                f"V_t of A is V_old, {old}, from the start of the step; V is {new}, of the present "
                f"weights; G is {goal}, A + V_old by lam_value, before A is whitened"
            )
    if "shape" in fields:
        lines.append("A in S and P is `shape`; rules and weights read the A without it")
    if beta := reward_kl.coefficient:
        name = "ref" if reward_kl.against == "reference" else reward_kl.against
        lines.append(f"R ← R − {beta}·Σ_t (l0 − l_{name}), per response")
    return tuple(lines)


def _meanings(expression: Expr) -> list[str]:
    """What each population in the expression is, and what is selected or computed from it."""
    return list(dict.fromkeys(filter(None, (node.describe() for node in _unnamed(expression)))))


def _unnamed(expression: Expr) -> Iterator[Expr]:
    """The expression and all inside it, without what a name of `let` stands for."""
    yield expression
    for child in () if isinstance(expression, nodes.Named) else expression.children():
        yield from _unnamed(child)


def _without_effect(terms: Terms, updates: int, value_updates: int) -> list[str]:
    """Settings of the primitives that cannot act."""
    inert = [
        f"the clip of {_yaml(term)}: with one update per rollout V = V_old "
        "(use updates > 1 of the score)"
        for _, term in terms
        if value_updates == 1 and isinstance(term, ClippedSquared) and term.clip is not None
    ]
    for _, term in terms if updates == 1 else ():
        if isinstance(term, Surrogate):
            inert += [
                f"the bounds of {_yaml(part)}: with one update per rollout every ratio is 1 "
                "(use training.updates_per_step or training.passes > 1)"
                for part in term.parts()
                if isinstance(part, (Clip, DppoTv, GeometricMean, SoftGate))
                and getattr(part, "against", "old") == "old"
            ]
        # the gradient of k1 is that of l, also at l = l0
        if isinstance(term, KL) and term.against == "old" and term.estimator != "k1":
            inert.append(f"{_yaml(term)}: on-policy l = l0, so it has no gradient")
    return inert
