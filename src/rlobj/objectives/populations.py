"""Populations: the values of expressions that read many tokens; `Frame` is one, with columns.

A population is all tokens of the update, those of a group (on any rank), those at one position in
the responses of a group, those of a response, those of a turn, those of the group's turns of one
number, or those of a group that have one value in a column of one's own. Aggregates of a number
with one value per response count responses, and so do cuts with of="response". The same holds for
turns; all others count tokens. Rows of undecided responses belong to no population. All ranks must
evaluate the same expressions in the same order, because cuts and means count the tokens of all
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import statistics
from rlobj.objectives.evaluator import Evaluator, Values
from rlobj.objectives.rules import CustomRule, Expr, Level, Number, Rule, nodes
from rlobj.objectives.rules.populations import FINEST, Populated
from rlobj.objectives.statistics import Comm, SingleProcess


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
    level: Level = Level.RESPONSE


class Populations(Evaluator):
    """Evaluates expressions about populations, too: cuts, aggregates, ranks, samples and scans.

    Attributes:
        selections: for each evaluated cut, by its text: selected tokens and population.
    """

    def __init__(self) -> None:
        super().__init__()
        self.selections: dict[str, tuple[int, int]] = {}
        self._units_by: dict[str, Units] = {}
        self._evaluated: dict[Expr, Values] = {}

    def evaluate(self, node: Expr) -> Values:
        for kind, values_of in self._KINDS.items():
            if isinstance(node, kind):
                if node not in self._evaluated:  # ranks exchange numbers once
                    self._evaluated[node] = values_of(self, node)
                return self._evaluated[node]
        return super().evaluate(node)

    def _units(self, by: str, level: Level) -> Units:
        # No cached_property: Python 3.11 holds its lock for all instances of the class. If ranks
        # are threads, one would hold it while it waits for the others in `comm.sum`.
        if by not in self._units_by:
            built_in = by in FINEST
            self._units_by[by] = self._find_units(by) if built_in else self._own_units(by, level)
        return self._units_by[by]

    def _units_of(self, node: Populated) -> Units:
        return self._units(node.by, node.by_level)

    def _own_units(self, column: str, level: Level) -> Units:
        """The pairs of a group and a value of a column of one's own, which is not negative."""
        values = self.whole_numbers(column, level)
        groups = self._spread(self.table.groups, Level.RESPONSE, level)
        inside = (values >= 0) & self._spread(self.decided_responses, Level.RESPONSE, level)
        pairs = torch.stack([groups, values], 1)[inside]
        member, count = statistics.numbered(pairs, self.comm)
        whole = torch.full_like(values, count)
        whole[inside] = member
        return Units(whole, count + 1, self.comm, level)

    def _find_units(self, by: str) -> Units:
        table, device = self.table, self.decided.device
        size = len(table.lengths)
        if by == "response":
            return Units(torch.arange(size, device=device), size, SingleProcess())
        if by == "update":
            return Units(torch.zeros(size, dtype=torch.int64, device=device), 1, self.comm)
        if by == "turn":
            size = len(table.turn_starts)
            return Units(torch.arange(size, device=device), size, SingleProcess(), Level.TURN)
        if by in ("position", "group_turn"):
            groups, level = self._units("group", Level.RESPONSE), FINEST[by]
            token = level == Level.TOKEN
            places = table.positions if token else table.turn_numbers[table.turn_starts]
            end = places.max()[None] + 1 if len(places) else places
            ends, _ = statistics.gather(end, self.comm)
            longest = int(ends.max()) if len(ends) else 0
            member = self._spread(groups.member, Level.RESPONSE, level) * longest + places
            return Units(member, groups.count * longest, self.comm, level)
        return Units(*statistics.numbered(table.groups, self.comm), self.comm)

    def _population(self, node: Populated, of: Expr, level: Level) -> tuple[Values, Tensor]:
        """The values of tokens [N], turns [T] or responses [B], and which of them count."""
        values = self._at(of, level)
        if of.level == Level.TOKEN:
            self._refuse_spread(of)
        population = self._members_of_units(node, level)
        if values.undefined is not None:
            self._check_finite(of, values.wrong, population, level)
            population = population & ~values.undefined
        return values, population

    def _refuse_spread(self, of: Expr) -> None:
        """Refuse to count tokens of a number that has one value per response in the table."""
        read = [node for node in of.walk() if node.reads_tokens and node.level == Level.TOKEN]
        names = [str(node) for node in read]
        if names and {*names} <= self.table.response_columns:
            self._error = self._error or (
                f"column '{names[0]}' has one value per response, and a population of '{of}' would "
                f"count it for each token. Declare its level: columns: {{{names[0]}: response}}"
            )

    def _members_of_units(self, node: Populated, level: Level) -> Tensor:
        """The tokens [N], turns [T] or responses [B] in `within` that are in a unit."""
        members = self._members(node.within, level)
        if node.by in FINEST:
            return members
        return members & (self._unit(node, level) < self._units_of(node).count - 1)

    def _members(self, within: Rule | None, level: Level) -> Tensor:
        """The tokens [N], turns [T] or responses [B] in `within`, also those without a value."""
        if level == Level.TOKEN:
            return self.rule(within)
        decided = self._spread(self.decided_responses, Level.RESPONSE, level)
        if within is None:
            return decided
        if within.level > level:
            turns = level == Level.TURN
            any_by = self.table.any_by_turn if turns else self.table.any_by_response
            return any_by(self.rule(within))
        chosen = self._at(within, level)
        self._check_finite(within, chosen.wrong, decided, level)
        return decided & chosen.data

    def _unit(self, node: Populated, level: Level) -> Tensor:
        """The unit of each token, turn or response."""
        units = self._units_of(node)
        return self._spread(units.member, units.level, level)

    def _count(self, mask: Tensor, node: Populated, level: Level) -> Tensor:
        """The number of True tokens, turns or responses in each unit, int64."""
        if node.by == "update":
            return self.comm.sum(mask.sum(dtype=torch.int64)[None])
        units = self._units_of(node)
        return statistics.count_by(mask, self._unit(node, level), units.count, units.comm)

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
        level = node.counted
        keys = statistics.order_keys(values.data.expand(len(population)))
        sizes = self._count(population, node, level)
        places = torch.tensor([place(n) for n in sizes.tolist()], device=keys.device)
        if node.by == "update":
            k = int(places)
            cut = statistics.kth_smallest(keys, k, self.comm, population) if k else 0
            return keys, torch.tensor([cut], device=keys.device), places
        unit = self._unit(node, level)[population]
        cuts = statistics.kth_smallest_by(keys[population], places, unit, self._units_of(node).comm)
        return keys, cuts, places

    def _cut(self, node: nodes.Cut) -> Values:
        def place(n: int) -> int:
            k = node.size(n)
            return n - k + 1 if k and node.side == "top" else k

        values, population = self._population(node, node.value, node.level)
        keys, cuts, places = self._kth(node, values, population, place)
        if node.by != "update":
            unit = self._unit(node, node.level)
            cuts, places = cuts[unit], places[unit]
        inside = keys >= cuts if node.side == "top" else keys <= cuts
        return self._selected(node, values, population, inside & (places > 0))

    def _mean_cut(self, node: nodes.MeanCut) -> Values:
        values, population = self._population(node, node.value, node.level)
        data, units = values.data.expand(len(self.table)), self._units_of(node)
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
        if values.undefined is None:
            return Values(selected)
        return Values(selected, values.undefined & self._members_of_units(node, node.level))

    def _quantile(self, node: nodes.Quantile) -> Values:
        ranked = self._population(node, node.value, node.counted)
        keys, cuts, places = self._kth(node, *ranked, node.place)
        data = statistics.from_keys(cuts.to(keys.dtype))
        if node.interpolate:
            sizes = self._count(ranked[1], node, node.counted)
            _, cuts, _ = self._kth(node, *ranked, lambda n: min(node.place(n) + 1, n))
            above = statistics.from_keys(cuts.to(keys.dtype))
            share = (node.q * (sizes - 1).double() - (places - 1)).clamp(0, 1)
            data = torch.lerp(data, above, share.to(data.dtype))
        return self._by_member(node, data, places == 0)

    def _rank(self, node: nodes.Rank) -> Values:
        values, population = self._population(node, node.of, node.level)
        unit, units = self._unit(node, node.level)[population], self._units_of(node)
        keys = statistics.order_keys(values.data)[population].long()
        data = torch.zeros(population.shape, dtype=self.dtype, device=self.decided.device)
        shares = statistics.shares_below(keys, unit, units.count, units.comm)
        data[population] = shares.to(self.dtype)
        return Values(data, ~population)

    def _aggregate(self, node: nodes.Aggregate) -> Values:
        level = node.counted
        values, population = self._population(node, node.of, level)
        sizes = self._count(population, node, level)
        if node.statistic in ("count", "share"):
            by_unit = self._count(population & values.data, node, level).double()
            by_unit = by_unit / sizes if node.statistic == "share" else by_unit
        else:
            by_unit = self._statistic(node, values.data, population, level)
            by_unit = by_unit / sizes if node.statistic == "mean" else by_unit
        empty = None if node.statistic in ("sum", "count") else sizes == 0
        return self._finite(node, self._by_member(node, by_unit.to(self.dtype), empty))

    def _statistic(
        self, node: nodes.Aggregate, data: Tensor, population: Tensor, level: Level
    ) -> Tensor:
        """The sum (for a mean, too), min or max of each unit, float64."""
        data = data[population]
        if node.by == "update" and node.statistic in ("sum", "mean"):
            total = statistics.exact_sum(data, self.comm)
            return torch.tensor([total], dtype=torch.float64, device=data.device)
        units = self._units_of(node)
        unit = self._unit(node, level)[population]
        if node.statistic in ("sum", "mean"):
            return statistics.exact_sum_by(data, unit, units.count, units.comm)
        largest = node.statistic == "max"
        return statistics.extreme_by(data, unit, units.count, largest, units.comm)

    def _quantified(self, node: nodes.Quantified) -> Values:
        level = node.counted
        values, population = self._population(node, node.of, level)
        wanted = values.data if node.statistic == "any" else ~values.data
        some = self._count(population & wanted, node, level) > 0
        return self._by_member(node, some if node.statistic == "any" else ~some, None)

    def _by_member(self, node: Populated, by_unit: Tensor, undefined: Tensor | None) -> Values:
        """The values of units: 0-d for the update, else one for each response, turn or token."""
        if undefined is not None and not bool(undefined.any()):
            undefined = None
        if node.by == "update":
            return Values(by_unit[0], None if undefined is None else undefined[0])
        member = self._unit(node, node.level)
        return Values(by_unit[member], None if undefined is None else undefined[member])

    def _amount(self, node: nodes.Sample) -> float:
        """The size of a sample: a fraction, or a number of tokens, which may be an expression's."""
        if not isinstance(node.amount, Number):
            return node.amount
        values = self.evaluate(node.amount)
        tokens = float(values.data)
        none = values.undefined is not None and bool(values.undefined)
        if none or tokens < 0:
            self._error = self._error or (
                f"'{node.amount}' in '{node}' is {tokens:g}, expected a number of tokens >= 0"
            )
            return 0
        return math.ceil(tokens) if node.round == "ceil" else math.floor(tokens)

    def _sample(self, node: nodes.Sample) -> Values:
        table, whole = self.table, node.of == "response"
        candidates = self._members(node.rule, node.level)
        n = statistics.count(candidates, self.comm)
        k = node.size(self._amount(node), n, statistics.count(self.decided, self.comm))
        absent = self.comm.sum(torch.tensor(int(table.ids is None)))
        if int(absent) and self.comm.size > 1:
            raise BatchError(
                f"'{node}' on several ranks needs TokenBatch(ids=...), unique over all"
            )
        ids = table.response_ids.to(self.decided.device)
        places = (ids, -1) if whole else (table.spread(ids), table.positions)
        keys = statistics.hash_keys((node.seed, self.state.get("update", 0), *places))
        if k == 0:
            selected = torch.zeros_like(candidates)
        else:
            cut = statistics.kth_smallest(keys, k, self.comm, candidates)
            selected = candidates & (keys <= cut)
        self._note(node, selected, candidates)
        return Values(selected)

    def _custom_rule(self, node: CustomRule) -> Values:
        selected = node.select(self)
        dtype, shape = getattr(selected, "dtype", type(selected)), getattr(selected, "shape", ())
        if dtype != torch.bool or shape != self.decided.shape:
            raise BatchError(
                f"{node.target}.select returned {dtype} {list(shape)}, expected a tensor, "
                f"bool {list(self.decided.shape)}: one value per token"
            )
        self._note(node, selected & self.decided, self.decided)
        return Values(selected)

    def _scan(self, node: nodes.Scan) -> Values:
        table, level = self.table, node.level
        values = self._at(node.value, level)
        undefined = values.undefined
        self._check_finite(node.value, values.wrong, self._members(None, level), level)
        unit = table.turns if node.by == "turn" else table.responses
        unit = unit[table.turn_starts] if level == Level.TURN else unit
        sizes = unit.bincount()
        positions = (
            torch.arange(len(unit), device=self.decided.device) - (sizes.cumsum(0) - sizes)[unit]
        )
        if node.side == "suffix":
            positions = (sizes[unit] - 1 - positions).flip(0)
        longest = int(sizes.max()) if len(sizes) else 0

        def along(data: Tensor, decay: float) -> Tensor:
            data = data.expand(len(unit))
            if node.side == "prefix":
                return statistics.scan(data, positions, decay, longest)
            return statistics.scan(data.flip(0), positions, decay, longest).flip(0)

        if undefined is None:
            return self._finite(node, Values(along(values.data, node.decay).to(self.dtype)))
        data = along(values.data.masked_fill(undefined, 0), node.decay).to(self.dtype)
        return self._finite(node, Values(data, along(undefined.double(), 1.0) > 0))

    def _note(self, node: Rule, selected: Tensor, population: Tensor) -> None:
        """Remember how many tokens, turns or responses a cut selects, over all ranks."""
        numbers = self.comm.sum(torch.stack([selected.sum(), population.sum()]))
        self.selections[str(node)] = (int(numbers[0]), int(numbers[1]))

    _KINDS: ClassVar[dict[type[Expr], Callable[..., Values]]] = {
        nodes.Aggregate: _aggregate,
        nodes.Quantified: _quantified,
        nodes.Cut: _cut,
        nodes.MeanCut: _mean_cut,
        nodes.Quantile: _quantile,
        nodes.Rank: _rank,
        nodes.Sample: _sample,
        nodes.Scan: _scan,
        nodes.Named: lambda self, node: self.evaluate(node.value),
        CustomRule: _custom_rule,
    }
