"""Objective: a policy-optimization objective as data.

    loss = − (1/Z) Σ m·ω·S(r, A)  +  Σ_k (1/Z_k) Σ c_k·P_k

m keeps or drops a token, ω weighs it, S is the surrogate, Z the divisor, P_k the penalties.
`plan` looks at a whole optimizer update once, without gradient, and freezes m, ω and Z; `loss`
looks at one micro-batch, with gradient. The micro-batch losses over all micro-batches and all
ranks SUM to the objective of the whole update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Self

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator
from torch import Tensor

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.validation import Model
from rlobj.objectives import gradients, statistics
from rlobj.objectives.advantages import Advantage, GroupNormalized
from rlobj.objectives.controllers import ControllerField
from rlobj.objectives.divisors import Divisor, DivisorField, FixedLength, TokenMean
from rlobj.objectives.explanation import Explanation, explain
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import MismatchField
from rlobj.objectives.penalties import PenaltyField, ProxyKL
from rlobj.objectives.plan import LossOutput, Needs, Plan, measure, weighted
from rlobj.objectives.rollout_advantages import rollout_advantages
from rlobj.objectives.rules import (
    COLUMNS,
    Column,
    Controlled,
    Expr,
    Number,
    NumberField,
    Rule,
    RuleField,
    read_number,
    read_rule,
)
from rlobj.objectives.statistics import Comm, SingleProcess
from rlobj.objectives.surrogates import Clip, SurrogateField, Terms
from rlobj.objectives.tokens import TokenBatch

__all__ = ["Objective"]

State = Mapping[str, Any]
AdvantageField = Annotated[SerializeAsAny[Advantage], BeforeValidator(Advantage.build)]


class Objective(Model):
    """An immutable policy-optimization objective, printed and compared as data.

    Example:
        >>> from rlobj import Clip, Objective, advantage, entropy, prob
        >>> dapo = Objective(surrogate=Clip(low=0.2, high=0.28))
        >>> stapo = dapo.drop((advantage > 0) & (prob < 0.002) & entropy.bottom(0.8))
    """

    advantage: AdvantageField = Field(default=GroupNormalized(), description="A, from rewards")
    surrogate: SurrogateField = Field(default=Clip(), description="S(r, A)")
    divisor: DivisorField = Field(
        default=TokenMean(), description="Z, how tokens become one number"
    )
    drop_rule: RuleField | None = Field(default=None, alias="drop", description="tokens with m = 0")
    keep_rule: RuleField | None = Field(
        default=None, alias="keep", description="all other tokens have m = 0"
    )
    weight: NumberField | None = Field(default=None, alias="reweight", description="ω, weight")
    penalties: tuple[PenaltyField, ...] = Field(
        default=(), description="P_k: KL, entropy bonus, ..."
    )
    controllers: dict[str, ControllerField] = Field(
        default={}, description="numbers that change during the run, by name"
    )
    mismatch: MismatchField | None = Field(
        default=None, description="importance weight between sampler and trainer, a factor on ω"
    )
    reward_kl: float = Field(
        default=0.0, ge=0, description="β; each response's reward is reduced by β·Σ_t (l0 − l_ref)"
    )
    split_rule: RuleField | None = Field(
        default=None, alias="split", description="train these tokens first, then the others"
    )
    phase: RuleField | None = Field(
        default=None, description="tokens of this phase; the others count only in the divisor"
    )

    @model_validator(mode="after")
    def _names_known(self) -> Self:
        for name in self.controllers:
            if not (name.isidentifier() and name[0].isupper()):
                raise ConfigError(f"controller '{name}': the name must begin with a capital")
        if len({penalty.min_p for penalty in self.penalties if isinstance(penalty, ProxyKL)}) > 1:
            raise ConfigError("penalties: there is one proxy, so every proxy_kl needs one min_p")
        for who, expression in self._expressions():
            for node in expression.walk():
                if isinstance(node, Controlled) and node.name not in self.controllers:
                    known = [*self.controllers, *COLUMNS]
                    raise ConfigError(
                        f"{who} reads unknown '{node.name}'.{nearest(node.name, known)}"
                    )
        return self

    def replace(self, **fields: Any) -> Objective:
        """Return a copy with other fields: `dapo.replace(divisor=SequenceMean())`."""
        own = {f.alias or name: getattr(self, name) for name, f in type(self).model_fields.items()}
        return Objective(**{**own, **fields})

    but = replace

    def keep(self, rule: Rule | str) -> Objective:
        """Only tokens that the rule keeps (and those before it kept) have m = 1."""
        rule = read_rule(rule)
        return self.replace(keep=rule if self.keep_rule is None else self.keep_rule & rule)

    def drop(self, rule: Rule | str) -> Objective:
        """Tokens that the rule selects (or those before it did) have m = 0."""
        rule = read_rule(rule)
        return self.replace(drop=rule if self.drop_rule is None else self.drop_rule | rule)

    def reweight(self, weight: Number | str | float) -> Objective:
        """ω ← ω·weight."""
        number = read_number(weight)
        return self.replace(reweight=number if self.weight is None else self.weight * number)

    def split(self, rule: Rule | str) -> Objective:
        """Two phases of updates: the rule's tokens, then the others (Lopti)."""
        return self.replace(split=read_rule(rule))

    @property
    def phases(self) -> tuple[Objective, ...]:
        """The objectives that the trainer runs one after another on the same rollout."""
        if self.split_rule is None:
            return (self,)
        return tuple(self.replace(split=None, phase=part) for part in self._parts())

    def resolve(self, max_tokens: int) -> Objective:
        """A copy in which "max_tokens" is a number of tokens."""
        penalties = tuple(
            penalty.model_copy(update={"divisor": _resolved(penalty.divisor, max_tokens)})
            for penalty in self.penalties
        )
        return self.replace(divisor=_resolved(self.divisor, max_tokens), penalties=penalties)

    # The stages.

    def init(self) -> dict[str, Any]:
        """The controllers' memory before the first rollout; {} for most objectives."""
        return {name: controller.init() for name, controller in self.controllers.items()}

    def observe(
        self, tables: Sequence[TokenBatch], state: State | None = None, comm: Comm | None = None
    ) -> dict[str, Any]:
        """The state after seeing a rollout; called once per rollout, on all ranks."""
        state = {**self.init(), **(state or {})}
        if not self.controllers:
            return state
        frame = Frame(tables, self._readers["observe"], comm or SingleProcess(), state)
        for name, controller in self.controllers.items():
            state[name] = controller.observe(state[name], frame, self.divisor)
        return state

    def with_advantages(
        self, tables: Sequence[TokenBatch], comm: Comm | None = None
    ) -> list[TokenBatch]:
        """The tables with the column `advantages`, computed from all ranks' rewards.

        Tables that bring their own advantages are left alone. `plan` calls this; a trainer with
        several updates per rollout calls it once per rollout.

        Raises:
            BatchError: rewards that are missing or not finite, or advantages in some tables
                only; on all ranks together.
        """
        return rollout_advantages(self.advantage, self.reward_kl, tables, comm or SingleProcess())

    def plan(
        self, tables: Sequence[TokenBatch], state: State | None = None, comm: Comm | None = None
    ) -> Plan:
        """Freeze masks, weights and divisors for one optimizer update, over all ranks.

        Args:
            tables: this rank's micro-batches (possibly none); rules read their columns detached.
            state: from `init` and `observe`; `state["update"]` numbers the update.
            comm: the process group; None = this process alone.

        Raises:
            BatchError: a column is absent, or not finite; on all ranks together.
        """
        comm = comm or SingleProcess()
        state = {**self.init(), **(state or {})}
        tables = self.with_advantages(tables, comm)
        frame = Frame(tables, {**self._present(tables), **self._readers["plan"]}, comm, state)
        kept = frame.rule(self.keep_rule)
        if self.drop_rule is not None:
            kept = kept & ~frame.rule(self.drop_rule)
        in_phase = kept & frame.rule(self.phase)
        counted = kept if self.divisor.over == "kept" else frame.valid
        weights = self._share(frame, self.divisor, counted, in_phase, self._omega(frame))
        penalties = [self._penalty_weights(frame, penalty) for penalty in self.penalties]
        masks = {str(rule): frame.rule(rule) for rule in self.surrogate.rules()}
        nonzero = torch.stack([w != 0 for w in (weights, *penalties)]).any(0)
        tokens, kept_tokens = (statistics.count(x, comm) for x in (frame.valid, kept))
        sizes = [len(table) for table in tables]

        def cut(flat: Tensor) -> tuple[Tensor, ...]:  # [N] -> one [N] per table
            return flat.split(sizes) if sizes else ()

        return Plan(
            weights=cut(weights),
            penalties=tuple(zip(*map(cut, penalties), strict=True)) or ((),) * len(tables),
            advantages=cut(frame.number(Column("advantage"))),
            masks=tuple(
                dict(zip(masks, parts, strict=True))
                for parts in zip(*map(cut, masks.values()), strict=True)
            )
            or ({},) * len(tables),
            empty=statistics.count(nonzero, comm) == 0,
            tokens=tokens,
            kept=kept_tokens,
            metrics=self._plan_metrics(frame, tokens, kept_tokens),
        )

    def loss(self, table: TokenBatch, plan: Plan, index: int | None = None) -> LossOutput:
        """One micro-batch's share of the objective, with gradient through `logprobs`.

        Args:
            table: the micro-batch; its log-probs may be newer than those `plan` saw.
            plan: from `plan` over all tables of the update.
            index: the table's place in the plan; None = the table's own index, else 0.

        Raises:
            BatchError: the table does not fit its place in the plan.
        """
        index = plan.table_index(table, index)
        for name, who in self._readers["loss"].items():
            table.column(name, who)
        weights, terms = plan.weights[index], _terms(table, plan, index)
        policy = -weighted(weights, self.surrogate(terms))
        loss = policy
        metrics = {"loss/policy": policy.detach()}
        for penalty, share in zip(self.penalties, plan.penalties[index], strict=True):
            value = weighted(share, penalty(terms))
            loss = loss + value
            name = f"loss/{penalty.name}"
            metrics[name] = metrics.get(name, 0) + value.detach()
        measured, extremes = measure(self.surrogate, terms, plan, weights)
        return LossOutput(loss, weights, {**metrics, **measured}, extremes)

    def responses_with_gradient(
        self, table: TokenBatch, plan: Plan, index: int | None = None
    ) -> Tensor:
        """Responses in which the loss may have a gradient, whatever their log-probs, bool [B]."""
        index = plan.table_index(table, index)
        return gradients.responses_with_gradient(self.surrogate, self.penalties, table, plan, index)

    def tokens_with_gradient(
        self, table: TokenBatch, plan: Plan, index: int | None = None
    ) -> Tensor:
        """Tokens in which the loss has a gradient at the table's log-probs, bool [N]."""
        index = plan.table_index(table, index)
        return gradients.tokens_with_gradient(
            self.surrogate, self.penalties, lambda t: self.loss(t, plan, index).loss, table
        )

    def __call__(self, batch: TokenBatch, state: State | None = None) -> LossOutput:
        """All of it for one table: observe, plan and loss."""
        batch = batch.replace(index=None)
        state = self.observe([batch], state)
        return self.loss(batch, self.plan([batch], state))

    @property
    def needs(self) -> Needs:
        """The TokenBatch columns that `observe`, `plan` and `loss` read."""
        rewards = {"rewards"} | ({"old_logprobs", "ref_logprobs"} if self.reward_kl else set())
        return Needs(
            observe=frozenset(self._readers["observe"]),
            plan=frozenset(rewards | set(self._readers["plan"]) - {"advantages"}),
            loss=frozenset({"logprobs", *self._readers["loss"]}),
        )

    def explain(self, updates_per_step: int | None = None) -> Explanation:
        """The formula, what each rule selects, and settings that cannot act."""
        main = {"A": self.advantage, "S": self.surrogate, "Z": self.divisor}
        penalties = [(f"P_{i}", penalty) for i, penalty in enumerate(self.penalties, 1)]
        terms = [*main.items(), ("mismatch", self.mismatch), *penalties, *self.controllers.items()]
        updates = (updates_per_step or 0) * len(self.phases)
        return explain(terms, self._expressions(), self.needs, self.reward_kl, updates)

    def _parts(self) -> tuple[Rule | None, ...]:
        """The rules of the phases; (phase,) for an objective that is not split."""
        if self.split_rule is None:
            return (self.phase,)
        parts = (self.split_rule, ~self.split_rule)
        return parts if self.phase is None else tuple(self.phase & part for part in parts)

    def _expressions(self) -> list[tuple[str, Expr]]:
        """Every expression, with its place."""
        places: list[tuple[str, Expr | None]] = [
            ("drop", self.drop_rule),
            ("keep", self.keep_rule),
            ("reweight", self.weight),
            ("split", self.split_rule),
            ("phase", self.phase),
            *(("surrogate", rule) for rule in self.surrogate.rules()),
            *((penalty.kind, penalty.where) for penalty in self.penalties),
            *((penalty.kind, penalty.coefficient) for penalty in self.penalties),
        ]
        return [(who, expression) for who, expression in places if expression is not None]

    @cached_property
    def _readers(self) -> dict[str, dict[str, str]]:
        """Stage -> TokenBatch column -> who reads it, in one order on all ranks."""
        terms = (self.surrogate, *self.penalties)
        plan = {"advantages": "the surrogate"}
        for who, expression in self._expressions():
            for node in expression.walk():
                if isinstance(node, Column):
                    for column in COLUMNS[node.name][1]:
                        plan.setdefault(column, f"{who} '{expression}'")
        if self.mismatch is not None:
            for column in ("old_logprobs", "sampler_logprobs"):
                plan.setdefault(column, f"the mismatch correction {self.mismatch}")
        return {
            "observe": {
                column: f"the controller {name}"
                for name, controller in self.controllers.items()
                for column in controller.needs()
            },
            "plan": plan,
            "loss": {column: type(term).__name__ for term in terms for column in term.needs()},
        }

    def _present(self, tables: Sequence[TokenBatch]) -> dict[str, str]:
        """The detached columns of the loss that the tables hold, for `plan` to check."""
        if not tables:
            return {}
        return {
            name: who
            for name, who in self._readers["loss"].items()
            if name != "entropy" and all(getattr(table, name) is not None for table in tables)
        }

    def _omega(self, frame: Frame) -> Tensor:
        """ω, the weight times the mismatch factor, [N]."""
        omega = torch.ones(len(frame.table), dtype=frame.dtype, device=frame.device)
        if self.weight is not None:
            omega = omega * frame.number(self.weight)
        if self.mismatch is not None:
            omega = omega * self.mismatch(frame.number(Column("sampler_gap")), frame.table)
        return omega

    @staticmethod
    def _share(
        frame: Frame, divisor: Divisor, counted: Tensor, chosen: Tensor, scale: Tensor
    ) -> Tensor:
        """scale/Z_t on the chosen tokens, 0 elsewhere, [N]."""
        z = divisor(counted, frame.table, frame.comm)
        chosen = chosen & (z > 0)
        return (scale / z.to(frame.dtype)).masked_fill_(~chosen, 0.0)

    def _penalty_weights(self, frame: Frame, penalty: Any) -> Tensor:
        """c_k/Z_k on the penalty's tokens; each phase counts its own, [N]."""
        divisor = penalty.divisor or self.divisor.model_copy(update={"over": "all"})
        total = torch.zeros(len(frame.table), dtype=frame.dtype, device=frame.device)
        for part in self._parts():
            population = frame.rule(part)
            chosen = population & frame.rule(penalty.where)
            counted = chosen if divisor.over == "kept" else population
            coefficient = frame.number(penalty.coefficient)
            total = total + self._share(frame, divisor, counted, chosen, coefficient)
        return total

    def _plan_metrics(self, frame: Frame, tokens: int, kept: int) -> dict[str, float]:
        metrics = {
            "objective/kept_fraction": kept / tokens if tokens else 0.0,
            "objective/dropped_tokens": float(tokens - kept),
        }
        for name in self.controllers:
            metrics[f"controller/{name}"] = float(frame.state[name]["value"])
        for text, (selected, population) in frame.selections.items():
            metrics[f"selected/{text}"] = selected / population if population else 0.0
        return metrics


def _terms(table: TokenBatch, plan: Plan, index: int) -> Terms:
    """What surrogate and penalties read; log-probs of undecided rows are silenced."""
    logprobs = torch.where(table.decided, table.logprobs, torch.zeros_like(table.logprobs))
    return Terms(table, logprobs, plan.advantages[index], plan.masks[index])


def _resolved(divisor: Divisor | None, max_tokens: int) -> Any:
    return divisor.resolve(max_tokens) if isinstance(divisor, FixedLength) else divisor
