"""Frame: the values of expressions on this rank's tokens of an update, from which a plan is made.

`Objective.plan` builds one frame per update, with detached columns.

A population is all tokens of the update, those of a group (on any rank), those at one position in
the responses of a group, those of a rollout (on any rank), those of a response, those of a turn,
those of the group's turns of one number, or those of a group that have one value in a column of
one's own. Aggregates of a number with one value per rollout count rollouts, and so do cuts with
of="response". The same holds for responses, which are rows of rollouts, and for turns; all others
count tokens. A table has what each rollout has on all its rows, [B], and one row counts. Rows of
undecided responses belong to no population. All ranks must evaluate the same expressions in the
same order, because populations contain the tokens of all ranks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlobj.base.errors import BatchError, ConfigError
from rlobj.objectives import statistics
from rlobj.objectives.rollouts import Rollouts, check_turns
from rlobj.objectives.rules import COLUMNS, CustomRule, Expr, Level, Number, Rule, nodes
from rlobj.objectives.rules.columns import of_policy
from rlobj.objectives.statistics import Comm, SingleProcess
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch
from rlobj.objectives.values import NOT_FINITE, OPERATIONS, Values, when, worst

_OPTIONAL = (
    *("ref_logprobs", "sampler_logprobs", "proxy_logprobs"),
    *("collision", "old_collision", "entropy_sensitivity", "turn", "turn_reward"),
)
_VERSIONS = ("versions", "version", "staleness")
_KEPT = nodes.Method | nodes.Named | CustomRule
"""Nodes that are evaluated once."""


@dataclass(frozen=True)
class Units:
    """The groups of the update, their positions or turns, or this rank's responses or turns.

    Attributes:
        member: the unit of each response, turn or token of this rank, from 0.
        count: the number of units; by a column of one's own, the last one is of those in no unit.
        comm: the ranks that share the units.
        level: which of them `member` has.
    """

    member: Tensor
    count: int
    comm: Comm
    level: Level = Level.ROLLOUT


class Frame:
    """This rank's tables of one update, joined, with the values of expressions on their rows.

    Args:
        tables: this rank's micro-batches; may be empty.
        columns: the TokenBatch columns to read, each with what reads it.
        comm: the process group.
        state: the objective's state: the controllers' values and the number of the update.

    Attributes:
        table: the joined table.
        dtype: of all numbers.
        decided: bool [N], rows of decided responses.
        decided_responses: bool [B].
        rollouts: of the update; None = every response is a rollout.
        columns_read: the TokenBatch columns, detached.
        selections: for each evaluated cut, by its text: selected tokens and population.

    Raises:
        BatchError: a column is absent or not finite on some rank; raised on all ranks.
    """

    def __init__(
        self,
        tables: Sequence[TokenBatch],
        columns: Mapping[str, str],
        comm: Comm,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.comm = comm
        self.state = state or {}
        self.columns_read: dict[str, Tensor] = {}
        self.selections: dict[str, tuple[int, int]] = {}
        self._columns: dict[Expr, Tensor] = {}  # columns of rules
        self._units_by: dict[str, Units] = {}
        self._evaluated: dict[Expr, Values] = {}
        self._not_finite: dict[Expr, Tensor] = {}
        self._error = ""
        error, tokens, reported = "", 0, 0
        try:
            self.table = _join(tables, columns)
            for name, who in columns.items():
                self.columns_read[name] = self._read(name, who)
            if "sampler_logprobs" in columns and self.table.sampler_logprobs is not None:
                decided, unknown = self.table.decided, self.table.sampler_logprobs.isnan()
                tokens, reported = int(decided.sum()), int((decided & ~unknown).sum())
        except BatchError as exception:
            error = str(exception)
        double = any(table.logprobs.dtype == torch.float64 for table in tables)
        rows = sum(table.rollouts is not None for table in tables)
        facts = [bool(error), double, tokens, reported, rows, len(tables) - rows]
        facts = comm.sum(torch.tensor(facts, dtype=torch.int64))
        failed, double, tokens, reported, rows, others = facts.tolist()
        if failed:
            raise BatchError(error or "a table on another rank cannot be used; see its error")
        if tokens and not reported:
            reader = columns.get("sampler_logprobs", "the loss")
            raise BatchError(f"column 'sampler_logprobs' is NaN everywhere; {reader} reads it")
        if rows and others:
            raise BatchError("column 'rollouts' is in some tables of the update, not in all")
        self.rollouts = self._find_rollouts("turn" in columns) if rows else None
        if "staleness" in columns:
            self._find_newest()
        self.dtype = torch.float64 if double else torch.float32
        self.device = self.table.logprobs.device
        self.decided = self.table.decided
        self.decided_responses = self.table.decided_responses
        self._all_decided = bool(self.decided.all())

    def _find_rollouts(self, turns: bool) -> Rollouts:
        """The rollouts of the update, after a check of their rows on all ranks."""
        if self.table.rollouts is None:  # a rank without tables
            self.table = self.table.replace(rollouts=[])
        table = self.table
        assert table.rollouts is not None
        if turns:
            check_turns(*(statistics.gather(x, self.comm)[0] for x in table.rollout_turns))
        rewards, one = table.alike_rewards, table.lengths.new_ones(1)
        widest = int(statistics.gather(one * rewards.shape[1], self.comm)[0].max())
        alike = {"groups": table.groups, "rewards": pad(rewards, (0, widest - rewards.shape[1]))}
        return Rollouts.of(table.rollouts, self.comm, table.response_ids, **alike)

    def _find_newest(self) -> None:
        """Count the staleness from the newest version of all ranks, where no version is given."""
        newest = self.table.newest
        known = self.table.lengths.new_tensor([] if newest is None else [newest])
        largest = statistics.extreme_by(known, torch.zeros_like(known), 1, True, self.comm)
        if newest is not None and self.table.version is None:
            self.table = self.table.replace(version=int(largest))
            self.columns_read["staleness"] = self.table.finite("staleness", "the rule")

    # What is asked of a frame.

    def number(self, expression: Number, who: str = "", where: Tensor | None = None) -> Tensor:
        """The value of a number on each token, [N]; 0 where it is undefined.

        Args:
            expression: the number.
            who: the field that reads it; `check` then refuses rows on which it is undefined.
            where: the rows that are checked, bool [N]; None = those of decided responses.
        """
        values = self._at(expression, Level.TOKEN)
        data, undefined = values.data.expand(len(self.table)), values.undefined
        if undefined is None:
            return data
        if who:
            rows = (self.decided if where is None else where) & undefined
            self._check_finite(expression, values, rows)
            self.refuse(rows, f"{who} '{expression}' has no value: its population is empty")
        return data.masked_fill(undefined, 0)

    def rule(self, expression: Rule | None) -> Tensor:
        """The tokens of decided responses that a rule selects, bool [N]; None selects all."""
        return self._members(expression, Level.TOKEN)

    def holds(self, rule: Rule) -> Tensor:
        """The tokens on which a rule is true, bool [N]; unlike `rule`, it refuses nothing."""
        return self._at(rule, Level.TOKEN).data & self.decided

    def check(self) -> None:
        """Raise the first error of an expression, on all ranks together.

        Raises:
            BatchError: a weight is undefined, or a rule depends on a number that is not finite.
        """
        if int(self.comm.sum(torch.tensor(int(bool(self._error))))):
            raise BatchError(self._error or "a rule or weight has no value on another rank")

    def refuse(self, wrong: Tensor, message: str, level: Level = Level.TOKEN) -> None:
        """Keep an error for `check` if any row [N], turn [T] or response [B] is True."""
        if self._error or not bool(wrong.any()):
            return
        row = int(wrong.nonzero()[0])
        row = int(self.table.turn_starts[row]) if level == Level.TURN else row
        of_responses = level <= Level.RESPONSE
        place = f"response {row}" if of_responses else f"row {row} ({self.table.row(row)})"
        self._error = f"{message} at {place}"

    def _check_finite(
        self, expression: Expr, values: Values, where: Tensor, level: Level = Level.TOKEN
    ) -> None:
        """Refuse rows that depend on a number that is NaN or infinite, and name this number.

        Args:
            expression: a rule or number.
            values: of the expression.
            where: the tokens [N], turns [T] or responses [B] that are read.
            level: which of them `where` has.
        """
        for part in expression.walk() if values.flaw is not None else ():
            if part in self._not_finite and part.level <= level:
                not_finite = self._spread(self._not_finite[part], part.level, level)
                name = f"'{part}'" if part == expression else f"'{part}' in '{expression}'"
                wrong = not_finite & (values.flaw == NOT_FINITE) & where
                self.refuse(wrong, f"{name} is NaN or infinite", level)

    # Columns.

    def _read(self, name: str, who: str) -> Tensor:
        """A TokenBatch column, detached; finite on rows of decided responses, [N]."""
        if name == "rewards":  # [B]; a reward that is NaN means undecided
            return self.table.column(name, who).detach()
        return self.table.finite(name, who)

    def batch(self, name: str) -> Tensor:
        """A TokenBatch column in the frame's dtype, 0 on rows of undecided responses, [N]."""
        if name not in self.columns_read:
            raise BatchError(f"a custom rule asks for '{name}', which its `reads` does not return")
        values = self._known(name).to(self.dtype)
        return self.table.spread(values) if name in self.table.response_columns else values

    def _known(self, name: str) -> Tensor:
        """A TokenBatch column in its own dtype, 0 on undecided rows, [N] or [B]."""
        values = self.columns_read[name]
        if self._all_decided:
            return values
        of_responses = name in self.table.response_columns
        return values.masked_fill(~(self.decided_responses if of_responses else self.decided), 0)

    def read(self, node: nodes.Column | nodes.NamedReward) -> Values:
        """The values of a column on each row [N], turn [T] or response [B]."""
        if node not in self._columns:
            name = str(node)
            if isinstance(node, nodes.NamedReward):
                values = self._named_reward(node.name)
            elif name in self.table.columns:
                values = self._own_column(name, node.level)
            elif name in COLUMNS and (value := COLUMNS[name].value):
                values = value(self)
            else:
                values = of_policy(self, name)
            self._columns[node] = values.to(self.dtype)
        return Values(self._columns[node])

    def _own_column(self, name: str, level: Level) -> Tensor:
        """A column of a user's own with one value for each token, turn or response.

        Values per token must be the same on all tokens of the turn or the response.
        """
        values, table = self._known(name), self.table
        if name in table.response_columns:
            return self._of_rows(values, name, level)
        if level == Level.TOKEN:
            return values
        unit, starts, unit_name = table.turns, table.turn_starts, level.name.lower()
        if level <= Level.RESPONSE:
            unit = table.responses
            starts = table.starts.clamp(max=max(len(table) - 1, 0))
            empty = (table.lengths == 0) & self.decided_responses
            self.refuse(empty, f"column '{name}' has one value per token, and there is none", level)
        first = values[starts] if len(table) else values.new_zeros(len(starts))
        differs = (values != first[unit]) & self.decided
        self.refuse(differs, f"column '{name}' has several values in a {unit_name}")
        return self._of_rows(first, name, level) if level <= Level.RESPONSE else first

    def _of_rows(self, values: Tensor, name: str, level: Level) -> Tensor:
        """Values of rows, [B], for turns or tokens; the rows of a rollout must have one value."""
        if level == Level.ROLLOUT and self.rollouts is not None:
            first = self.rollouts.once(values.double())[self.rollouts.number]
            what = f"column '{name}' has several values in a rollout"
            self.refuse((values != first) & self.decided_responses, what, level)
        return self._spread(values, Level.RESPONSE, level)

    def _named_reward(self, name: str) -> Tensor:
        try:
            values = self.table.reward(name)
        except BatchError as error:  # `check` raises it on all ranks
            self._error = self._error or str(error)
            values = self.table.lengths
        return values.masked_fill(~self.decided_responses, 0)

    # Levels.

    def of_rollout(self, numbers: Tensor) -> Tensor:
        """The sum of whole numbers over the rows of each row's rollout, [B]."""
        rollouts = self.rollouts
        return numbers if rollouts is None else rollouts.sum(numbers)[rollouts.number]

    def _once(self, members: Tensor, level: Level) -> Tensor:
        """Members without the other rows of their rollouts, if these are what is counted."""
        if self.rollouts is None or level != Level.ROLLOUT:
            return members
        return members & self.rollouts.first

    def _at(self, node: Expr, level: Level) -> Values:
        """The values of an expression for each token, turn or response, or 0-d."""
        values = self.evaluate(node)
        if node.level in (Level.UPDATE, level):
            return values
        data, flaw = values.data, values.flaw
        if flaw is not None:
            flaw = self._spread(flaw.expand(data.shape), node.level, level)
        return Values(self._spread(data, node.level, level), flaw)

    def _spread(self, values: Tensor, of: Level, level: Level) -> Tensor:
        """Values of rows [B] or turns [T] as those of turns or tokens; others unchanged."""
        table = self.table
        if of in (Level.UPDATE, level) or level <= Level.RESPONSE:
            return values
        if of == Level.TURN:
            return values[table.turns]
        return table.spread(values) if level == Level.TOKEN else values[table.of_turns]

    # Nodes.

    def evaluate(self, node: Expr) -> Values:
        """The values of an expression: [N], [T], [B] or 0-d by its level."""
        if not isinstance(node, _KEPT):
            return self._compute(node)
        if node not in self._evaluated:  # ranks exchange numbers once
            self._evaluated[node] = self._compute(node)
        return self._evaluated[node]

    def _compute(self, node: Expr) -> Values:
        match node:
            case nodes.Column() | nodes.NamedReward():
                return self.read(node)
            case nodes.SamplerKnown():
                logprobs = self.table.sampler_logprobs
                assert logprobs is not None  # `_read` has refused a table without them
                return Values(logprobs.isfinite() & self.decided)
            case nodes.Constant():
                return self._constant(node.value)
            case nodes.Controlled():
                return self._constant(nodes.Constant(self.state[node.name]["value"]).value)
            case nodes.Named():
                return self.evaluate(node.value)
            case nodes.Arithmetic():
                function = OPERATIONS[node.operator]
                return self._finite(node, self._combine(node, function, node.left, node.right))
            case nodes.Function():  # the name is looked up when it is called
                function = getattr(torch, node.name)
                return self._finite(node, self._combine(node, function, *node.arguments))
            case nodes.Negative():
                return self._combine(node, torch.neg, node.operand)
            case nodes.Compare():
                compared = self._combine(node, OPERATIONS[node.operator], node.left, node.right)
                return Values(compared.defined(compared.data), compared.flaw)
            case nodes.Logic():
                left, right = self._at(node.left, node.level), self._at(node.right, node.level)
                return left | right if node.operator == "|" else ~(~left | ~right)
            case nodes.Not():
                return ~self.evaluate(node.operand)
            case nodes.When():
                parts = (node.rule, node.then, node.otherwise)
                return when(*(self._at(part, node.level) for part in parts))
            case nodes.Cut():
                return self._cut(node)
            case nodes.MeanCut():
                return self._mean_cut(node)
            case nodes.Quantile():
                return self._quantile(node)
            case nodes.Rank():
                return self._rank(node)
            case nodes.Aggregate():
                return self._aggregate(node)
            case nodes.Quantified():
                return self._quantified(node)
            case nodes.Sample():
                return self._sample(node)
            case nodes.Scan():
                return self._scan(node)
            case CustomRule():
                return self._custom_rule(node)
        raise ConfigError(f"{node} is code that is not imported here: rlobj replay RUN --rule RULE")

    def _constant(self, value: float) -> Values:
        return Values(torch.tensor(value, dtype=self.dtype, device=self.device))

    def _combine(self, node: Expr, function: Callable[..., Tensor], *parts: Expr) -> Values:
        """A function of the values of some parts, undefined where one of them is."""
        values = [self._at(part, node.level) for part in parts]
        return Values(function(*(v.data for v in values)), worst(*(v.flaw for v in values)))

    def _finite(self, node: Expr, values: Values) -> Values:
        """The values, undefined where they are not finite; remembers where that is."""
        if bool(values.data.sum().isfinite()):  # faster than a test of every number
            return values
        wrong = values.defined(~values.data.isfinite())
        if not bool(wrong.any()):
            return values
        self._not_finite[node] = wrong
        return Values(values.data, worst(values.flaw, wrong.to(torch.uint8) * NOT_FINITE))

    # Populations.

    def _units(self, node: nodes.Populated) -> Units:
        # No cached_property: Python 3.11 holds its lock for all instances of the class. If ranks
        # are threads, one would hold it while it waits for the others in `comm.sum`.
        if (name := str(node.by)) not in self._units_by:
            declared = isinstance(node.by, nodes.Column)
            units = self._own_units(name, node.by_level) if declared else self._find_units(name)
            self._units_by[name] = units
        return self._units_by[name]

    def _own_units(self, column: str, level: Level) -> Units:
        """The pairs of a group and a value of a column of one's own, which is not negative."""
        values = self._own_column(column, level)
        self.refuse(values.long() != values, f"by='{column}' takes whole numbers", level)
        values, groups = values.long(), self._spread(self.table.groups, Level.RESPONSE, level)
        inside = (values >= 0) & self._spread(self.decided_responses, Level.RESPONSE, level)
        pairs = torch.stack([groups, values], 1)[inside]
        member, count = statistics.numbered(pairs, self.comm)
        whole = torch.full_like(values, count)
        whole[inside] = member
        return Units(whole, count + 1, self.comm, level)

    def _find_units(self, by: str) -> Units:
        table, level, rollouts = self.table, nodes.BY[by], self.rollouts
        if by == "rollout" and rollouts is not None:
            return Units(rollouts.number, rollouts.count, self.comm)
        if by in ("rollout", "response", "turn"):
            size = len(table.turn_starts if by == "turn" else table.lengths)
            return Units(torch.arange(size, device=self.device), size, SingleProcess(), level)
        if by == "update":
            return Units(torch.zeros_like(table.groups), 1, self.comm)
        member, count = statistics.numbered(table.groups, self.comm)
        if by == "group":
            return Units(member, count, self.comm)
        token = level == Level.TOKEN
        places = table.positions if token else table.turn_numbers[table.turn_starts]
        end = places.max()[None] + 1 if len(places) else places
        ends, _ = statistics.gather(end, self.comm)
        longest = int(ends.max()) if len(ends) else 0
        member = self._spread(member, Level.RESPONSE, level) * longest + places
        return Units(member, count * longest, self.comm, level)

    def _population(self, node: nodes.Populated) -> tuple[Values, Tensor]:
        """The values of tokens [N], turns [T] or responses [B], and which of them count."""
        of, level = node.value, node.counted
        values, population = self._at(of, level), self._members_of_units(node)
        if of.level == Level.TOKEN:
            self._refuse_spread(of)
        self._check_finite(of, values, population, level)
        return values, values.defined(population)

    def _refuse_spread(self, of: Expr) -> None:
        """Refuse to count tokens of a number that has one value per response in the table."""
        read = [node for node in of.walk() if node.reads_tokens and node.level == Level.TOKEN]
        names = [str(node) for node in read]
        if names and {*names} <= self.table.response_columns:
            self._error = self._error or (
                f"column '{names[0]}' has one value per response: columns: {{{names[0]}: response}}"
            )

    def _members_of_units(self, node: nodes.Populated) -> Tensor:
        """The tokens [N], turns [T] or responses [B] in `within` that are in a unit."""
        members = self._members(node.within, node.counted)
        if isinstance(node.by, nodes.Column):
            members = members & (self._unit(node, node.counted) < self._units(node).count - 1)
        return members

    def _members(self, within: Rule | None, level: Level) -> Tensor:
        """The tokens [N], turns [T] or responses [B] in `within`, also those without a value."""
        decided = self.decided
        if level != Level.TOKEN:
            decided = self._spread(self.decided_responses, Level.RESPONSE, level)
        if within is None:
            return decided
        if within.level > level == Level.ROLLOUT and self.rollouts is not None:
            return self.rollouts.any(self._members(within, Level.RESPONSE))
        if within.level > max(level, Level.RESPONSE):
            turns = level == Level.TURN
            any_by = self.table.any_by_turn if turns else self.table.any_by_response
            return any_by(self.rule(within))
        chosen = self._at(within, level)
        self._check_finite(within, chosen, decided, level)
        return decided & chosen.data

    def _unit(self, node: nodes.Populated, level: Level) -> Tensor:
        """The unit of each token, turn or response."""
        units = self._units(node)
        return self._spread(units.member, units.level, level)

    def _count(self, mask: Tensor, node: nodes.Populated) -> Tensor:
        """The number of True tokens, turns, responses or rollouts in each unit, int64."""
        mask = self._once(mask, node.counted)
        if node.by == "update":
            return self.comm.sum(mask.sum(dtype=torch.int64)[None])
        units = self._units(node)
        return statistics.count_by(mask, self._unit(node, node.counted), units.count, units.comm)

    def _kth(
        self,
        node: nodes.Cut | nodes.Quantile,
        values: Values,
        population: Tensor,
        place: Callable[[int], int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rank tokens, turns or responses.

        Args:
            node: has the populations.
            values: the numbers by which they are ranked.
            population: those that are ranked, bool [N], [T] or [B].
            place: the place of a population's cut, from 1, by its size; 0 = no cut.

        Returns:
            The keys [N], [T] or [B], the key of each unit's cut, and the cut's place.
        """
        keys = statistics.order_keys(values.data)
        population = self._once(population, node.counted)
        sizes = self._count(population, node)
        places = torch.tensor([place(n) for n in sizes.tolist()], device=keys.device)
        if node.by == "update":
            k = int(places)
            cut = statistics.kth_smallest(keys, k, self.comm, population) if k else 0
            return keys, torch.tensor([cut], device=keys.device), places
        unit = self._unit(node, node.counted)[population]
        cuts = statistics.kth_smallest_by(keys[population], places, unit, self._units(node).comm)
        return keys, cuts, places

    def _cut(self, node: nodes.Cut) -> Values:
        def place(n: int) -> int:
            k = node.size(n)
            return n - k + 1 if k and node.method == "top" else k

        values, population = self._population(node)
        keys, cuts, places = self._kth(node, values, population, place)
        if node.by != "update":
            unit = self._unit(node, node.level)
            cuts, places = cuts[unit], places[unit]
        inside = keys >= cuts if node.method == "top" else keys <= cuts
        return self._selected(node, values, population, inside & (places > 0))

    def _mean_cut(self, node: nodes.MeanCut) -> Values:
        values, population = self._population(node)
        data, units = values.data, self._units(node)
        unit = self._unit(node, node.level)
        ends = statistics.mean_cut_by(
            data[population], unit[population], units.count, node.limit, units.comm
        )
        inside = statistics.order_keys(data) < ends[unit]
        return self._selected(node, values, population, inside)

    def _selected(
        self, node: nodes.Cut | nodes.MeanCut, values: Values, population: Tensor, inside: Tensor
    ) -> Values:
        """The members of a population that a cut selects; undefined where the number is."""
        selected = population & inside
        self._note(node, selected, population)
        if values.flaw is None:
            return Values(selected)
        return Values(selected, values.flaw * self._members_of_units(node))

    def _quantile(self, node: nodes.Quantile) -> Values:
        ranked = self._population(node)
        keys, cuts, places = self._kth(node, *ranked, node.place)
        data = statistics.from_keys(cuts.to(keys.dtype))
        if node.interpolate:
            sizes = self._count(ranked[1], node)
            _, cuts, _ = self._kth(node, *ranked, lambda n: min(node.place(n) + 1, n))
            above = statistics.from_keys(cuts.to(keys.dtype))
            share = (node.q * (sizes - 1).double() - (places - 1)).clamp(0, 1)
            data = torch.lerp(data, above, share.to(data.dtype))
        return self._by_member(node, data, places == 0)

    def _rank(self, node: nodes.Rank) -> Values:
        values, population = self._population(node)
        counted, units = self._once(population, node.level), self._units(node)
        unit = self._unit(node, node.level)[counted]
        keys = statistics.order_keys(values.data)[counted].long()
        shares = torch.zeros(population.shape, dtype=torch.float64, device=self.device)
        shares[counted] = statistics.shares_below(keys, unit, units.count, units.comm)
        if self.rollouts is not None and node.level == Level.ROLLOUT:
            shares = self.rollouts.once(shares)[self.rollouts.number]
        return Values(shares.to(self.dtype), (~population).to(torch.uint8))

    def _aggregate(self, node: nodes.Aggregate) -> Values:
        values, population = self._population(node)
        sizes = self._count(population, node)
        if node.method in ("count", "share"):
            by_unit = self._count(population & values.data, node).double()
        else:
            population = self._once(population, node.counted)
            by_unit = self._statistic(node, values.data[population], population)
        if node.method in ("mean", "share"):
            by_unit = by_unit / sizes
        empty = None if node.method in ("sum", "count") else sizes == 0
        return self._finite(node, self._by_member(node, by_unit.to(self.dtype), empty))

    def _statistic(self, node: nodes.Aggregate, data: Tensor, population: Tensor) -> Tensor:
        """The sum (for a mean, too), std, min or max of each unit, float64."""
        total = node.method in ("sum", "mean")
        if node.by == "update" and total:
            whole = statistics.exact_sum(data, self.comm)
            return torch.tensor([whole], dtype=torch.float64, device=data.device)
        units, unit = self._units(node), self._unit(node, node.counted)[population]
        if total:
            return statistics.exact_sum_by(data, unit, units.count, units.comm)
        if node.method == "std":
            return statistics.deviation_by(data, unit, units.count, units.comm)
        largest = node.method == "max"
        return statistics.extreme_by(data, unit, units.count, largest, units.comm)

    def _quantified(self, node: nodes.Quantified) -> Values:
        values, population = self._population(node)
        wanted = values.data if node.method == "any" else ~values.data
        some = self._count(population & wanted, node) > 0
        return self._by_member(node, some if node.method == "any" else ~some, None)

    def _by_member(self, node: nodes.Populated, by_unit: Tensor, empty: Tensor | None) -> Values:
        """The values of units: 0-d for the update, else one for each response, turn or token."""
        member = 0 if node.by == "update" else self._unit(node, node.level)
        if empty is None or not bool(empty.any()):
            return Values(by_unit[member])
        return Values(by_unit[member], empty[member].to(torch.uint8))

    def _sample(self, node: nodes.Sample) -> Values:
        table, whole = self.table, node.of == "response"
        candidates = self._members(node.value, node.level)
        counted = self._once(candidates, node.level)
        n = statistics.count(counted, self.comm)
        k = node.size(self._amount(node), n, statistics.count(self.decided, self.comm))
        nameless = table.ids is None and (self.rollouts is None or not whole)
        absent = self.comm.sum(torch.tensor(int(nameless)))
        if int(absent) and self.comm.size > 1:
            raise BatchError(f"'{node}' needs TokenBatch(ids=...), unique over all ranks")
        ids = table.response_ids.to(self.device)
        ids = table.rollouts if whole and table.rollouts is not None else ids
        places = (ids, -1) if whole else (table.spread(ids), table.positions)
        keys = statistics.hash_keys((node.seed, self.state.get("update", 0), *places))
        selected = torch.zeros_like(candidates)
        if k:
            cut = statistics.kth_smallest(keys, k, self.comm, counted)
            selected = candidates & (keys <= cut)
        self._note(node, selected, candidates)
        return Values(selected)

    def _amount(self, node: nodes.Sample) -> float:
        """The size of a sample: a fraction, or a number of tokens, which may be an expression's."""
        if not isinstance(node.amount, Number):
            return node.amount
        values = self.evaluate(node.amount)
        tokens = float(values.data)
        if (values.flaw is not None and bool(values.flaw)) or tokens < 0:
            self._error = self._error or f"'{node.amount}' in '{node}' is {tokens:g}, not >= 0"
            return 0
        return math.ceil(tokens) if node.round == "ceil" else math.floor(tokens)

    def _custom_rule(self, node: CustomRule) -> Values:
        selected = node.select(self)
        dtype, shape = getattr(selected, "dtype", type(selected)), getattr(selected, "shape", ())
        if dtype != torch.bool or shape != self.decided.shape:
            expected = f"expected a tensor, bool {list(self.decided.shape)}"
            raise BatchError(f"{node.target}.select returned {dtype} {list(shape)}, {expected}")
        self._note(node, selected & self.decided, self.decided)
        return Values(selected)

    def _scan(self, node: nodes.Scan) -> Values:
        table, level = self.table, node.level
        unit = table.turns if node.by == "turn" else table.responses
        columns, back = self._scanned(node), slice(None)
        if level == Level.TURN:
            unit, columns, back = self.ordered_turns(columns)
        sizes = unit.bincount()
        positions = torch.arange(len(unit), device=self.device) - (sizes.cumsum(0) - sizes)[unit]
        longest = int(sizes.max()) if len(sizes) else 0
        way, kind = node.method.split("_")
        forward = way == "prefix"
        ordered = (lambda x: x) if forward else (lambda x: x.flip(0))
        positions = positions if forward else ordered(sizes[unit] - 1 - positions)
        data, decay, undefined = map(ordered, columns)
        if kind == "sum":
            decay = decay if isinstance(node.decay, Number) else node.decay
            data = statistics.scan(data, positions, decay, longest)
        else:
            data = statistics.scan_extremes(data, positions, kind == "max", longest)
        data = ordered(data)[back].to(self.dtype)
        if not bool(undefined.any()):
            return self._finite(node, Values(data))
        undefined = statistics.scan_extremes(undefined, positions, True, longest)
        return self._finite(node, Values(data, ordered(undefined)[back].to(torch.uint8)))

    def _scanned(self, node: nodes.Scan) -> Sequence[Tensor]:
        """The numbers and decays of a scan, 0 where one is undefined, and where that is."""
        level, decay = node.level, nodes.as_number(node.decay)
        where = self._members(None, level)
        values, decays = self._at(node.value, level), self._at(decay, level)
        self._check_finite(node.value, values, where, level)
        self._check_finite(decay, decays, where, level)
        outside = decays.defined(where) & ((decays.data < 0) | (decays.data > 1))
        self.refuse(outside, f"decay '{decay}' in '{node}' is not in [0, 1]", level)
        flaw = worst(values.flaw, decays.flaw)
        undefined = torch.zeros_like(where) if flaw is None else (flaw > 0).expand(where.shape)
        return [*(x.data.masked_fill(undefined, 0) for x in (values, decays)), undefined]

    def ordered_turns(self, columns: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor], Any]:
        """The turns of all ranks, in their order in each rollout; without `turn`, rows by their id.

        Args:
            columns: values of this rank's turns, each [T].

        Returns:
            The rollout of each turn, its values in the columns, and the places of this rank's
            turns.
        """
        table, rollouts = self.table, self.rollouts
        if rollouts is None:
            return table.of_turns, columns, slice(None)
        if table.turn is None and table.ids is None and self.comm.size > 1:
            self._error = self._error or "rows of rollouts need turn=[...] or ids=[...] for order"
        names = [table.response_ids[table.of_turns], table.turn_numbers[table.turn_starts]]
        names = torch.stack([*names, rollouts.number[table.of_turns]], 1)
        names, start = statistics.gather(names, self.comm)
        rows, _ = statistics.gather(torch.stack([x.double() for x in columns], 1), self.comm)
        order = torch.arange(len(names), device=self.device)
        for name in names.unbind(1):
            order = order[name[order].argsort(stable=True)]
        back = order.argsort()[start : start + len(table.turn_starts)]
        return names[order, 2], rows[order].unbind(1), back

    def _note(self, node: Rule, selected: Tensor, population: Tensor) -> None:
        """Remember how many tokens, turns, responses or rollouts a cut selects, on all ranks."""
        population = self._once(population, node.level)
        selected = selected & population
        numbers = self.comm.sum(torch.stack([selected.sum(), population.sum()]))
        self.selections[str(node)] = (int(numbers[0]), int(numbers[1]))


def _join(tables: Sequence[TokenBatch], columns: Mapping[str, str]) -> TokenBatch:
    """This rank's tables as one table; an empty one if there are none."""
    if len(tables) > 1:
        unread = dict.fromkeys({*_OPTIONAL} - columns.keys())
        unread |= {} if "staleness" in columns else dict.fromkeys(_VERSIONS)
        tables = [table.replace(**unread, mask=None) for table in tables]
    if tables:
        return TokenBatch.concat(tables)
    nothing = torch.zeros(0)
    names = {name for column in COLUMNS.values() for name in column.reads} | {"advantages"}
    empty: dict[str, Any] = dict.fromkeys(names.intersection(COLUMN_NAMES) - {"logprobs"}, nothing)
    empty["columns"] = dict.fromkeys(columns.keys() - {*COLUMN_NAMES}, nothing)
    return TokenBatch(lengths=[], groups=[], ids=[], logprobs=nothing, **empty)  # type: ignore[arg-type]
