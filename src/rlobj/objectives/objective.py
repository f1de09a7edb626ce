"""Objective: a policy-optimization objective as data.

    loss = − (1/Z) Σ m·ω·S(r, A)  +  Σ_k (1/Z_k) Σ c_k·P_k

m keeps or drops a token, ω weights it, S is the surrogate, Z the divisor, P_k the penalties and the
losses of a value.
`plan` reads a whole optimizer update once, without gradient, and fixes m, ω and Z. `loss` reads one
micro-batch, with gradient. The losses of all micro-batches on all ranks add up to the objective of
the whole update.
"""

import functools
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from pydantic import Field, model_validator
from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError, RlobjError, nearest
from rlobj.base.files import write_whole
from rlobj.base.paths import path_of, there
from rlobj.base.showing import place_of_error, shown
from rlobj.base.targets import with_files
from rlobj.base.validation import Model
from rlobj.objectives import needs, rules
from rlobj.objectives.advantages import AdvantageField, GroupNormalized
from rlobj.objectives.controllers import ControllerFields
from rlobj.objectives.critic import Gae, ValueField, ValueLoss, value_advantages, value_names
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.objectives.divisors import DivisorField, TokenMean
from rlobj.objectives.explanation import Explanation, explain
from rlobj.objectives.frame import Frame
from rlobj.objectives.loss import LossOutput, check_finite, loss_metrics, terms_of, weighted_sum
from rlobj.objectives.mismatch import MismatchField
from rlobj.objectives.needs import Needs
from rlobj.objectives.penalties import (
    Divergence,
    Penalty,
    PenaltyField,
    ProxyKL,
    RewardKL,
    RewardKLField,
)
from rlobj.objectives.plan import Plan
from rlobj.objectives.planning import make_plan
from rlobj.objectives.rollout_advantages import rollout_advantages
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.nodes import Column, Constant, Controlled, NamedReward
from rlobj.objectives.settings import bind, expressions
from rlobj.objectives.statistics import Comm, SingleProcess
from rlobj.objectives.surrogates import Clip, Surrogate, SurrogateField, Terms
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch

State = Mapping[str, Any]
Method = TypeVar("Method", bound=Callable[..., Any])


def _reporting(method: Method) -> Method:
    """A method in which an error of a class of one's own is a BatchError with its file and line."""

    @functools.wraps(method)
    def reporting(self: "Objective", *arguments: Any, **settings: Any) -> Any:
        try:
            return method(self, *arguments, **settings)
        except RlobjError:
            raise
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            if self.own_files.isdisjoint(frame.filename for frame in frames):
                raise
            what = f"{type(error).__name__}: {shown(error, str)}{place_of_error(error)}"
            raise BatchError(f"code of the objective failed: {what}") from error

    return reporting  # type: ignore[return-value]


class Objective(Model):
    """An immutable policy-optimization objective, printed and compared as data.

    Example:
        >>> from rlobj import Clip, Objective, advantage, entropy, prob
        >>> dapo = Objective(surrogate=Clip(low=0.2, high=0.28))
        >>> stapo = dapo.drop((advantage > 0) & (prob < 0.002) & entropy.bottom(0.8))
    """

    advantage: AdvantageField = GroupNormalized()
    """A, from rewards"""
    surrogate: SurrogateField = Clip()
    """S(r, A)"""
    divisor: DivisorField = TokenMean()
    """Z, the divisor of the sum over tokens"""
    drop_rule: rules.RuleField | None = Field(default=None, alias="drop")
    """tokens with m = 0"""
    keep_rule: rules.RuleField | None = Field(default=None, alias="keep")
    """all other tokens have m = 0"""
    weight: rules.NumberField | None = Field(default=None, alias="reweight")
    """ω, weight"""
    shape: rules.NumberField | None = None
    """the advantage of each token as the surrogate and the penalties read it; rules and weights
    read the advantage before"""
    penalties: tuple[PenaltyField, ...] = ()
    """P_k: KL, entropy bonus, ..."""
    values: tuple[ValueField, ...] = ()
    """losses that train the value which the advantage reads"""
    controllers: ControllerFields = Field(default={})
    """numbers that change during the run, by name"""
    mismatch: MismatchField | None = None
    """importance weight between sampler and trainer, a factor of ω"""
    reward_kl: RewardKLField = RewardKL(coefficient=0.0)
    """β; each response's reward is reduced by β·Σ_t (l0 − l_ref); or `{coefficient: β, against:
    NAME}` for another score"""
    split_rules: rules.RuleList = Field(default=(), alias="split")
    """a rule, or a list of rules: train the tokens of the first rule, then those of the next one,
    and at last all others"""
    phase: rules.RuleField | None = None
    """tokens of this phase; the others count only in the divisor"""
    let: rules.Let = Field(default={})
    """names for expressions: `{omega: abs(advantage) * entropy}`. What follows, and later names,
    may read them"""
    columns: rules.OwnColumns = Field(default={})
    """names in TokenBatch(columns=...) that expressions read, each with what it has one value for:
    `{outcome: response, state: turn}`; a list has names of one value per token"""
    scores: tuple[str, ...] = ()
    """names of scores. A score NAME gives the columns NAME_logprob, NAME_prob, NAME_gap,
    NAME_entropy and NAME_kl; TokenBatch(columns=...) holds them but NAME_prob and NAME_gap, which
    follow"""

    @model_validator(mode="wrap")
    @classmethod
    def _with_columns(cls, data: Any, handler: Any) -> Self:
        settings = data if isinstance(data, dict) else {}
        parts = settings.get("columns"), settings.get("scores")
        scope = rules.Scope.of(*parts, value_names(settings))
        if "let" in settings:
            scope = rules.read_let(settings["let"] or {}, scope)
            data = settings | {"let": scope.named}
        with rules.reading(scope):
            return handler(data)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if mistakes := list(self._mistakes()):
            raise ConfigError("\n".join(dict.fromkeys(mistakes)))
        return self

    def _mistakes(self) -> Iterator[str]:
        """Settings that do not fit together, in words."""
        for name in self.controllers:
            if not (name.isidentifier() and name[0].isupper()):
                yield f"controller '{name}': the name must begin with a capital"
        of_teachers = [name for name in self._columns["loss"] if name.endswith("_divergence")]
        taken = (*rules.NAMES, *COLUMN_NAMES, *of_teachers)
        for name in self.columns:
            if name in taken or not (name.isidentifier() and name[0].islower()):
                yield f"columns: expected new names such as 'stage' in lower case, got '{name}'"
        if self.critic in self._all_scores:
            yield f"advantage.value: '{self.critic}' is a policy's score; use {{value: true, ...}}"
        values = {*value_names(vars(self))} - {*self.scores}
        yield from needs.score_name_mistakes([*self.scores, *values], [*self.columns])
        yield from needs.against_mistakes(self.scores, self.terms, self.reward_kl.against)
        if len({p.proxy for p in self.penalties if isinstance(p, ProxyKL)}) > 1:
            yield "penalties: there is one proxy; every proxy_kl needs its settings"
        if isinstance(self.advantage, Gae) and type(self.advantage) is not Gae:
            yield "advantage: a class of one's own cannot be a Gae; give TokenBatch(advantages=...)"
        for term in self.values:
            if self.critic != term.value:
                expected = f"advantage: {{kind: gae, value: {term.value}}}, got '{self.advantage}'"
                yield f"values: a value is trained on the returns of its advantage; use {expected}"
            if isinstance(term.coefficient, Constant) and term.coefficient.value < 0:
                yield f"values: expected a coefficient of 0 or more, got {term.coefficient}"
        for rule in self.split_rules:
            if self.split_rules.count(rule) > 1:
                yield f"split: '{rule}' is given twice, and its second phase would have no token"
        if self.reward_kl.coefficient and (self.advantage.decoupled or self.advantage.by_turn):
            yield f"reward_kl needs one reward, not '{self.advantage.kind}'; use a kl penalty"
        readable = [*self.controllers, *rules.COLUMNS, *self._scope.columns]
        for who, node in self._nodes:
            name = node.name if isinstance(node, Controlled | Column) else ""
            if name and name not in readable:
                yield f"{who} reads unknown '{name}'.{nearest(name, readable)}"
            level, read_as = self.columns.get(name), node.level.name.lower()
            if level not in (None, read_as):
                yield f"{who} reads '{name}' per {read_as}; write column('{name}', '{level}')"

    # Copies with changes.

    def replace(self, **fields: Any) -> "Objective":
        """A copy with other fields: `dapo.replace(divisor=SequenceMean())`."""
        current = {
            f.alias or name: getattr(self, name) for name, f in type(self).model_fields.items()
        }
        return Objective(**{**current, **fields})

    but = replace

    def keep(self, rule: rules.Rule | str) -> "Objective":
        """A copy that keeps only the rule's tokens, of those that were kept before."""
        rule = self._read(rule)
        return self.replace(keep=rule if self.keep_rule is None else self.keep_rule & rule)

    def drop(self, rule: rules.Rule | str) -> "Objective":
        """A copy that also drops the rule's tokens."""
        rule = self._read(rule)
        return self.replace(drop=rule if self.drop_rule is None else self.drop_rule | rule)

    def reweight(self, weight: rules.Number | str | float) -> "Objective":
        """A copy with ω multiplied by `weight`."""
        with rules.reading(self._scope):
            number = rules.read_number(weight)
        return self.replace(reweight=number if self.weight is None else self.weight * number)

    def split(self, rule: rules.Rule | str) -> "Objective":
        """A copy with two phases of updates: the rule's tokens, then the others (Lopti).

        `split(a).split(b)` has three phases: a, then b without a, then all others.
        """
        return self.replace(split=(*self.split_rules, self._read(rule)))

    def to_preset(self, path: Path | str, summary: str = "an objective of my own") -> Path:
        """Write a preset file whose objective is this one, over a file that is there.

        The models of its scores remain to be named when a run begins.

        Args:
            path: such as "mine.yaml".
            summary: what it does, in one line.

        Raises:
            ConfigError: it has a class of one's own that another process cannot import by its name.
        """
        from rlobj.base.yaml import dump_yaml

        path = path_of(path)

        def seen_from_it(file: str) -> str:
            return os.path.relpath(file, path.parent) if there(Path(file)) else file

        settings = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        settings = with_files(settings, seen_from_it)
        scores: dict[str, Any] = dict.fromkeys(self.scores, "required")
        scores |= {self.critic: {"value": True}} if self.critic else {}
        content = {
            "summary": summary,
            "objective": settings,
            **({"scores": scores} if scores else {}),
        }
        text = dump_yaml(content, flow=None, width=100)
        if nowhere := re.search(r"[^\s'\"]*(?:__main__:|<locals>\.)[\w.]+", text):
            expected = "a class that another process can import: write it into a module or a file"
            raise ConfigError(f"{nowhere[0]}: expected {expected}")
        write_whole(path, text.encode())
        return path

    def _read(self, rule: Any) -> rules.Rule:
        with rules.reading(self._scope):
            return rules.read_rule(rule)

    @property
    def _scope(self) -> rules.Scope:
        """The names that expressions may read besides those of every table."""
        scope = rules.Scope.of(self.columns, self.scores, value_names(vars(self)))
        return replace(scope, named=self.let)

    @property
    def phases(self) -> "tuple[Objective, ...]":
        """The objectives that the trainer uses one after another on the same rollout."""
        if not self.split_rules:
            return (self,)
        parts, rest = [], [] if self.phase is None else [self.phase]
        for rule in self.split_rules:
            parts.append([*rest, rule])
            rest = [*rest, rules.outside(rule)]
        return tuple(self.replace(split=(), phase=reduce(and_, part)) for part in [*parts, rest])

    def resolve(self, max_tokens: int) -> "Objective":
        """A copy with the number of tokens in place of "max_tokens"."""
        penalties, values = (
            tuple(
                term.model_copy(
                    update={"divisor": term.divisor and term.divisor.resolve(max_tokens)}
                )
                for term in terms
            )
            for terms in (self.penalties, self.values)
        )
        divisor = self.divisor.resolve(max_tokens)
        return self.replace(divisor=divisor, penalties=penalties, values=values)

    # The stages.

    def init(self) -> dict[str, Any]:
        """The controllers' memory before the first rollout; {} for most objectives."""
        return {name: controller.init() for name, controller in self.controllers.items()}

    @_reporting
    def observe(
        self, tables: Sequence[TokenBatch], state: State | None = None, comm: Comm | None = None
    ) -> dict[str, Any]:
        """The state after a rollout; called once per rollout, on all ranks.

        Args:
            tables: this rank's tables of the rollout.
            state: the state before the rollout; None = `init()`.
            comm: the process group; None = this process alone.

        Raises:
            BatchError: a column is absent or not finite on some rank; raised on all ranks.
        """
        state = {**self.init(), **(state or {})}
        if not self.controllers:
            return state
        tables = self._graded(tables)
        if "advantages" in self._columns["observe"]:
            tables = self.with_advantages(tables, comm)
        frame = Frame(tables, self._columns["observe"], comm or SingleProcess(), state)
        for name, controller in self.controllers.items():
            state[name] = controller.observe(state[name], frame, self.divisor)
        frame.check()
        return state

    @_reporting
    def with_advantages(
        self, tables: Sequence[TokenBatch], comm: Comm | None = None
    ) -> list[TokenBatch]:
        """The tables with the column `advantages`, computed from all ranks' rewards.

        Tables that have advantages already are returned as they are. `plan` calls this method; a
        trainer with several updates per rollout calls it once per rollout.

        Raises:
            BatchError: rewards are absent or not finite, or only some tables have advantages;
                raised on all ranks.
        """
        if not self.reads_rewards:
            return [table.replace(advantages=torch.zeros_like(table.logprobs)) for table in tables]
        if isinstance(self.advantage, Gae):
            return self._with_values(tables, comm or SingleProcess())
        return rollout_advantages(self.advantage, self.reward_kl, tables, comm or SingleProcess())

    def _with_values(self, tables: Sequence[TokenBatch], comm: Comm) -> list[TokenBatch]:
        """The tables with advantages and returns from a value."""
        names = ("advantages", "turn", "turn_reward")
        counts = [sum(getattr(table, name) is not None for table in tables) for name in names]
        counts = comm.sum(torch.tensor([*counts, len(tables)], dtype=torch.int64)).tolist()
        for name, count in zip(names, counts, strict=False):
            if count not in (0, counts[-1]):
                raise BatchError(f"column '{name}' is in some tables of the update, not in all")
        if counts[0]:
            return list(tables)
        turns = [name for name, count in zip(names, counts, strict=False) if count]
        columns = self._columns["rewards"] | dict.fromkeys(turns, f"the advantage {self.advantage}")
        return value_advantages(self.advantage, columns, self.reward_kl, tables, comm)  # type: ignore[arg-type]

    def _graded(self, tables: Sequence[TokenBatch]) -> Sequence[TokenBatch]:
        """The tables; without rewards, which say what is undecided, if no part reads them."""
        if self.reads_rewards:
            return tables
        return [table.replace(rewards=None, reward_names=None) for table in tables]

    @_reporting
    def plan(
        self,
        tables: Sequence[TokenBatch],
        state: State | None = None,
        comm: Comm | None = None,
        *,
        clauses: bool = False,
    ) -> Plan:
        """Compute masks, weights and divisors of one optimizer update, over all ranks.

        Args:
            tables: this rank's micro-batches, possibly none; their columns are read detached.
            state: from `init` and `observe`; `state["update"]` is the number of the update.
            comm: the process group; None = this process alone.
            clauses: also find what the objective did to each token, as `Plan.clauses`.

        Raises:
            BatchError: a column is absent or not finite on some rank, or a rule or a weight depends
                on a number that is NaN or infinite; raised on all ranks.
        """
        comm = comm or SingleProcess()
        state = {**self.init(), **(state or {})}
        tables = self.with_advantages(self._graded(tables), comm)
        read = {**needs.present(self._columns["loss"], tables), **self._columns["plan"]}
        frame = Frame(tables, read, comm, state)
        return make_plan(self, tables, frame, clauses)

    @_reporting
    def loss(
        self, table: TokenBatch, plan: Plan, index: int | None = None, *, check: bool = True
    ) -> LossOutput:
        """One micro-batch's share of the objective, with gradient through `logprobs`.

        Args:
            table: the micro-batch; its log-probs may be newer than those that `plan` read.
            plan: the plan of all tables of the update.
            index: the table's position in the plan; None = found by the responses' ids, or else by
                the table's own index; see `Plan.of`.
            check: False returns a loss that is not finite instead of raising an error, and does not
                wait for the device. A trainer can then skip the update on all ranks together.

        Raises:
            BatchError: the plan was not made for these responses, the table's place in it is not
                known, a column is absent, or a log-prob or another value is not finite.
        """
        plan = plan.of(table, index)
        [table] = self._graded([table])
        for name, who in self._columns["loss"].items():
            table.column(name, who)
        weights, terms = plan.weights[0], terms_of(table, plan)
        surrogate = bind(self.surrogate, terms.values)
        policy = -weighted_sum(weights, surrogate(terms), surrogate)
        loss = policy
        metrics = {"loss/policy": policy.detach()}
        for penalty, share in zip(self.penalties, plan.penalties[0], strict=True):
            value = weighted_sum(share, bind(penalty, terms.values)(terms), penalty)
            loss = loss + value
            name = f"loss/{penalty.name}"
            metrics[name] = metrics.get(name, 0) + value.detach()
        if self.values:
            values = self._value_loss(terms, plan)
            loss, metrics = loss + values.loss, {**metrics, **values.metrics}
        if check:
            check_finite(table, loss, f"{self.critic}_new_value")
        with torch.no_grad():
            measured, extremes = loss_metrics(surrogate, terms, plan, weights)
        return LossOutput(loss, weights, {**metrics, **measured}, extremes)

    @_reporting
    def value_loss(
        self, table: TokenBatch, plan: Plan, index: int | None = None, *, check: bool = True
    ) -> LossOutput:
        """One micro-batch's share of the losses of the value alone, with gradient through
        NAME_new_value.

        The rest is as in `loss`, of which this is a part.
        """
        plan = plan.of(table, index)
        [table] = self._graded([table])
        output = self._value_loss(terms_of(table, plan), plan)
        if check:
            check_finite(table, output.loss, f"{self.critic}_new_value")
        return output

    def _value_loss(self, terms: Terms, plan: Plan) -> LossOutput:
        shares = plan.value_shares[0]
        weights = sum(shares, torch.zeros_like(terms.logprobs))
        loss, clipped = torch.zeros_like(weights).sum(), torch.zeros_like(weights).bool()
        for term, share in zip(self.values, shares, strict=True):
            bound = bind(term, terms.values)
            loss = loss + weighted_sum(share, bound(terms), term)
            clipped = clipped | (bound.clipped(terms) & (share != 0))
        share = clipped.sum().double() / max(plan.tokens, 1)
        metrics = {"value/loss": loss.detach(), "value/clip_fraction": share}
        return LossOutput(loss, weights, metrics)

    def responses_with_gradient(
        self, table: TokenBatch, plan: Plan, index: int | None = None
    ) -> Tensor:
        """Responses in which the loss may have a gradient, whatever their log-probs, bool [B].

        The other responses can be left out of the forward and the backward pass; the plan's
        divisors count them already. A response has no gradient if both hold:

        - on each of its tokens m·ω is 0, or on each of its tokens A is 0;
        - on each of its tokens c_k is 0, for every penalty.

        If a term is not skippable, all responses count as having one.
        """
        plan = plan.of(table, index)
        if not self._skippable:
            return torch.ones_like(table.lengths, dtype=torch.bool)
        trained = table.any_by_response(plan.weights[0] != 0)
        trained = trained & table.any_by_response(plan.advantages[0] != 0)
        for share in plan.penalties[0]:
            trained = trained | table.any_by_response(share != 0)
        return trained

    def tokens_with_gradient(
        self, table: TokenBatch, plan: Plan, index: int | None = None
    ) -> Tensor:
        """Tokens in which the loss has a gradient at the table's log-probs and entropies, bool [N].

        These are fewer than the tokens of `responses_with_gradient`: tokens that a rule drops, that
        the surrogate clips or that are at the minimum of a penalty have no gradient. If a term is
        not skippable, all tokens count as having one.
        """
        plan = plan.of(table, index)
        if not self._skippable:
            return torch.ones_like(table.logprobs, dtype=torch.bool)
        names = ["logprobs", *(["entropy"] if table.entropy is not None else [])]
        names += [name for name in self.divergences if name in table.columns]
        leaves = {n: table.column(n, "the loss").detach().requires_grad_() for n in names}
        with torch.enable_grad():
            value = self.of_policy.loss(table.with_columns(leaves), plan, 0, check=False).loss
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        return torch.stack([gradient != 0 for gradient in slopes if gradient is not None]).any(0)

    @property
    def _skippable(self) -> bool:
        """Whether all terms are skippable. A custom class says it in its own body: it has another
        equation than its base."""
        terms = (*self.surrogate.parts(), *self.penalties)
        return all(
            vars(type(term)).get("skippable", term.skippable and term.kind != "custom")
            for term in terms
        )

    def __call__(self, batch: TokenBatch, state: State | None = None) -> LossOutput:
        """The loss of one table that is a whole update: `observe`, `plan` and `loss`."""
        batch = batch.replace(index=None)
        state = self.observe([batch], state)
        return self.loss(batch, self.plan([batch], state))

    @property
    def needs(self) -> Needs:
        """The TokenBatch columns that `observe`, `plan` and `loss` read."""
        rewards = self._columns["rewards"].keys() if self.reads_rewards else set()
        return Needs(
            observe=frozenset(self._columns["observe"].keys() - self._made),
            plan=frozenset((rewards | self._columns["plan"].keys()) - self._made),
            loss=frozenset({"logprobs", *self._columns["loss"]}),
            rewards={node.name: who for who, node in self._nodes if isinstance(node, NamedReward)},
        )

    @property
    def _made(self) -> set[str]:
        """The columns that `with_advantages` makes."""
        return {"advantages", f"{self.critic}_return"}

    @property
    def _all_scores(self) -> tuple[str, ...]:
        return *self.scores, "reference"

    @cached_property
    def reads_rewards(self) -> bool:
        """Whether a part reads rewards, or the advantages that are made from them.

        If none does, rewards may be absent, and undecided responses count like all others.
        """
        of_kl = bool(self.reward_kl.coefficient)
        read = self.shape is None or of_kl or bool(self.values)
        return read or any(needs.of_rewards(node) for _, node in self._nodes)

    @property
    def read_scores(self) -> frozenset[str]:
        """The scores that a part reads."""
        ever, kinds = self.needs.ever, ("entropy", "kl", "divergence")
        return frozenset(
            score
            for score in self._all_scores
            if not ever.isdisjoint({score_column(score), *(f"{score}_{kind}" for kind in kinds)})
        )

    @property
    def critic(self) -> str | None:
        """The score that is a value; None = the objective reads none."""
        return self.advantage.value if isinstance(self.advantage, Gae) else None

    @cached_property
    def of_policy(self) -> "Objective":
        """The objective without the losses of the value: what the policy is trained on."""
        return self.replace(values=()) if self.values else self

    @cached_property
    def divergences(self) -> dict[str, tuple[str, DivergenceSettings]]:
        """The TokenBatch columns that are divergences over the vocabulary: score and divergence."""
        kls = {f"{name}_kl": (name, DivergenceSettings()) for name in self._all_scores}
        divergences = [term for term in self.penalties if isinstance(term, Divergence)]
        read = {column: pair for column, pair in kls.items() if column in self.needs.ever}
        return read | {column: (d.against, d) for d in divergences for column in d.needs()}

    @cached_property
    def scores_alone(self) -> bool:
        """Whether a group whose rewards are all equal may have a gradient: from a score, from a
        value, or from the rewards of turns."""
        others = {*self.read_scores, self.critic} - {"reference", None}
        return bool(others) or self.advantage.by_turn or "turn_reward" in self.needs.ever

    def reader(self, column: str) -> str | None:
        """The part of the objective that reads a TokenBatch column; None = no part reads it."""
        stages = self._columns.values()
        return next((stage[column] for stage in stages if column in stage), None)

    def __repr__(self) -> str:
        return str(self.explain())

    def explain(self, updates_per_step: int | None = None, value_updates: int = 1) -> Explanation:
        """Describe the objective in words: formula, rules, and settings that cannot act.

        Args:
            updates_per_step: optimizer updates per rollout, of each phase; None = unknown, or l0
                are the sampler's log-probs, so that ratios differ from 1 in one update, too.
            value_updates: updates of a value for each of them.
        """
        updates = (updates_per_step or 0) * len(self.phases)
        return explain(self, updates, updates * value_updates)

    @cached_property
    def _columns(self) -> dict[str, dict[str, str]]:
        """Stage -> TokenBatch column -> what reads it, in one order on all ranks.

        The columns of "rewards" are those that advantages are made from; `loss` also reads
        logprobs.
        """
        of_turns = ("turn", "turn_reward") if self.advantage.by_turn else ()
        kl = self.reward_kl
        of_kl = ("old_logprobs", score_column(kl.against)) if kl.coefficient else ()
        of_mismatch = ("old_logprobs", "sampler_logprobs") if self.mismatch else ()
        return {
            "rewards": dict.fromkeys(("rewards", *of_turns), f"the advantage {self.advantage}")
            | dict.fromkeys(of_kl, f"reward_kl {kl.coefficient}")
            | self._value_columns,
            "observe": {
                column: f"the controller {name}"
                for name, controller in self.controllers.items()
                for column in needs.read_columns(controller.needs(), self._all_scores)
            },
            "plan": dict.fromkeys(of_mismatch, f"the mismatch correction {self.mismatch}")
            | {f"{t.value}_{kind}": t.kind for t in self.values for kind in ("value", "return")}
            | needs.rule_columns(self.expressions, self._all_scores),
            "loss": {
                column: type(term).__name__
                for term in self.terms.values()
                for column in term.needs()
            },
        }

    @cached_property
    def _value_columns(self) -> dict[str, str]:
        """The columns of the advantage that reads a value, and of its expressions."""
        if not isinstance(self.advantage, Gae):
            return {}
        lams = [(f"advantage.{path}", number) for path, number, _ in expressions(self.advantage)]
        read = needs.rule_columns(lams, self._all_scores)
        read.pop("advantages")
        kinds = ["value", "bootstrap"] if self.advantage.truncated == "bootstrap" else ["value"]
        columns = [f"{self.critic}_{kind}" for kind in kinds]
        return dict.fromkeys(columns, f"the advantage {self.advantage}") | read

    @cached_property
    def expressions(self) -> list[tuple[str, rules.Expr]]:
        """Every rule and number, with the field that holds it."""
        owners = (*self.terms.items(), ("mismatch", self.mismatch), ("advantage", self.advantage))
        fields: list[tuple[str, rules.Expr | None]] = [
            ("drop", self.drop_rule),
            ("keep", self.keep_rule),
            ("reweight", self.weight),
            ("shape", self.shape),
            *(("split", rule) for rule in self.split_rules),
            ("phase", self.phase),
            *(("surrogate", rule) for rule in self.surrogate.rules()),
            *((term.kind, term.where) for term in (*self.penalties, *self.values)),
            *((term.kind, term.coefficient) for term in (*self.penalties, *self.values)),
            *(
                (f"{who}.{path}", expression)
                for who, primitive in owners
                for path, expression, _ in (() if primitive is None else expressions(primitive))
            ),
            *((f"let.{name}", node.value) for name, node in self.let.items()),  # type: ignore[attr-defined]
        ]
        return [(who, expression) for who, expression in fields if expression is not None]

    @cached_property
    def _nodes(self) -> list[tuple[str, rules.Expr]]:
        """All that expressions and the numbers of controllers consist of, with who reads it."""
        gates = [(name, gate.of) for name, gate in self.controllers.items() if gate.of is not None]
        return [(who, node) for who, e in (*self.expressions, *gates) for node in e.walk()]

    @cached_property
    def own_methods(self) -> dict[type, list[Callable[..., Any]]]:
        """The classes that are not rlobj's, with their methods."""
        owners: list[Any] = [self.advantage, getattr(self.advantage, "each", None), self.divisor]
        owners += [*self.surrogate.parts(), *self.penalties, *self.values, self.mismatch]
        owners += [*self.controllers.values()]
        owners = [owner for owner in owners if getattr(owner, "kind", "") == "custom"]
        custom = [node for _, node in self._nodes if isinstance(node, rules.CustomRule)]
        owners += [node for node in custom if not type(node).__module__.startswith("rlobj.")]
        methods: dict[type, list[Callable[..., Any]]] = {}
        for of in dict.fromkeys(map(type, owners)):
            for _, method in inspect.getmembers(of, inspect.isfunction):
                library = str(method.__module__).partition(".")[0] in ("rlobj", "pydantic")
                if not library and method.__code__.co_filename != "<string>":  # of a dataclass
                    methods.setdefault(of, []).append(method)
        return methods

    @property
    def own_files(self) -> set[str]:
        """The files of the classes that are not rlobj's."""
        return {m.__code__.co_filename for methods in self.own_methods.values() for m in methods}

    @property
    def terms(self) -> dict[str, Surrogate | Penalty | ValueLoss]:
        """The surrogate, the penalties and the values, by their place in the configuration."""
        penalties = {f"penalties.{i}": penalty for i, penalty in enumerate(self.penalties)}
        values = {f"values.{i}": value for i, value in enumerate(self.values)}
        return {"surrogate": self.surrogate, **penalties, **values}
