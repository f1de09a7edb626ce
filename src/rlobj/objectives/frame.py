"""Frame: the values of rules on this rank's tokens of an update, from which a plan is made.

`Objective.plan` builds one frame per update. It is an `Evaluator` with columns and populations:
what reads more than its own token is here. Columns are detached. Rows of undecided responses
belong to no population. All ranks must evaluate the same expressions in the same order, because
cuts and means count the tokens of all ranks.

A population is all tokens of the update, those of a group (on any rank), those at one position in
the responses of a group, those of a response, those of a turn, or those of the group's turns of one
number. Aggregates of a number with one value per response count responses, and so do cuts with
of="response". The same holds for turns; all others count tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rlobj.base.errors import BatchError
from rlobj.objectives import functional, statistics
from rlobj.objectives.evaluator import Evaluator, Values
from rlobj.objectives.rules import COLUMNS, CustomRule, Expr, Level, Rule, nodes
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.rules.populations import level_by
from rlobj.objectives.statistics import Comm, SingleProcess
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Units:
    """The groups of the update, their positions or turns, or this rank's responses or turns.

    Attributes:
        member: the unit of each response of this rank, of each turn if it is one of turns, or of
            each token by position, from 0.
        count: the number of units.
        comm: the ranks that share the units.
    """

    member: Tensor
    count: int
    comm: Comm


_OPTIONAL = (
    *("ref_logprobs", "sampler_logprobs", "proxy_logprobs"),
    *("collision", "old_collision", "entropy_sensitivity", "turn", "turn_reward"),
)


class Frame(Evaluator):
    """This rank's tables of one update, joined, with the values of expressions on their rows.

    Args:
        tables: this rank's micro-batches; may be empty.
        columns: the TokenBatch columns to read, each with what reads it.
        comm: the process group.
        state: the objective's state: the controllers' values and the number of the update.

    Attributes:
        table: the joined table.

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
        super().__init__()
        self.comm = comm
        self.state = state or {}
        self._batch: dict[str, Tensor] = {}  # columns of the TokenBatch
        self._columns: dict[str, Tensor] = {}  # columns of rules
        self._units_by: dict[str, Units] = {}
        error, tokens, reported = "", 0, 0
        try:
            self.table = _join(tables, columns)
            for name, who in columns.items():
                self._batch[name] = self._read(name, who)
            if "sampler_logprobs" in columns and self.table.sampler_logprobs is not None:
                decided, unknown = self.table.decided, self.table.sampler_logprobs.isnan()
                tokens, reported = int(decided.sum()), int((decided & ~unknown).sum())
        except BatchError as exception:
            error = str(exception)
        double = any(table.logprobs.dtype == torch.float64 for table in tables)
        facts = comm.sum(torch.tensor([bool(error), double, tokens, reported], dtype=torch.int64))
        failed, double, tokens, reported = facts.tolist()
        if failed:
            raise BatchError(
                error or "another rank holds a table that cannot be used; see its error"
            )
        if tokens and not reported:
            raise BatchError(
                f"column 'sampler_logprobs' is NaN at all {tokens} tokens of the update, from row "
                f"0 on; {columns.get('sampler_logprobs', 'the loss')} reads it. Pass the log-probs "
                "that the sampler reported, or leave out what reads them"
            )
        self.dtype = torch.float64 if double else torch.float32
        self.device = self.table.logprobs.device
        self.decided = self.table.decided
        self.decided_responses = self.table.decided_responses
        self._all_decided = bool(self.decided.all())

    def _read(self, name: str, who: str) -> Tensor:
        """A TokenBatch column, detached; finite on rows of decided responses, [N]."""
        if name == "rewards":  # [B]; NaN means undecided
            return self.table.column(name, who).detach()
        return self.table.finite(name, who)

    def batch(self, name: str) -> Tensor:
        """A TokenBatch column in the frame's dtype, 0 on rows of undecided responses, [N]."""
        if name not in self._batch:
            raise BatchError(f"a custom rule asks for '{name}', which its `reads` does not return")
        values = self._batch[name].to(self.dtype)
        return values if self._all_decided else values.masked_fill(~self.decided, 0)

    def read(self, node: nodes.Column | nodes.NamedReward) -> Values:
        name = str(node)
        if name not in self._columns:
            if isinstance(node, nodes.NamedReward):
                values = self._named_reward(node.name)
            else:
                values = _VALUES[name](self) if name in _VALUES else self._of_score(name)
            self._columns[name] = values.to(self.dtype)
        return Values(self._columns[name])

    def _of_score(self, name: str) -> Tensor:
        """A column of the TokenBatch, or one that a score gives: its probability or its gap."""
        score, _, kind = name.rpartition("_")
        if name in self._batch or kind not in ("logprob", "prob", "gap"):
            return self.batch(name)
        logprobs = self.batch(score_column(score))
        if kind == "gap":
            return logprobs - self.batch("logprobs")
        return logprobs.exp() if kind == "prob" else logprobs

    def _named_reward(self, name: str) -> Tensor:
        try:
            values = self.table.reward(name)
        except BatchError as error:  # `check` raises it on all ranks
            self._error = self._error or str(error)
            values = self.table.lengths
        return values.masked_fill(~self.decided_responses, 0)

    # Nodes that read more than their own token.

    def _units(self, by: str) -> Units:
        # No cached_property: Python 3.11 holds its lock for all instances of the class. If ranks
        # are threads, one would hold it while it waits for the others in `comm.sum`.
        if by not in self._units_by:
            self._units_by[by] = self._find_units(by)
        return self._units_by[by]

    def _find_units(self, by: str) -> Units:
        table, device = self.table, self.decided.device
        size = len(table.lengths)
        if by == "response":
            return Units(torch.arange(size, device=device), size, SingleProcess())
        if by == "update":
            return Units(torch.zeros(size, dtype=torch.int64, device=device), 1, self.comm)
        if by == "turn":
            size = len(table.turn_starts)
            return Units(torch.arange(size, device=device), size, SingleProcess())
        if by in ("position", "group_turn"):
            groups, level = self._units("group"), level_by(by)
            token = level == Level.TOKEN
            places = table.positions if token else table.turn_numbers[table.turn_starts]
            end = places.max()[None] + 1 if len(places) else places
            ends, _ = statistics.gather(end, self.comm)
            longest = int(ends.max()) if len(ends) else 0
            member = self._spread(groups.member, Level.RESPONSE, level) * longest + places
            return Units(member, groups.count * longest, self.comm)
        return Units(*statistics.numbered(table.groups, self.comm), self.comm)

    def _population(self, of: Expr, within: Rule | None, level: Level) -> tuple[Values, Tensor]:
        """The values of tokens [N], turns [T] or responses [B], and which of them count."""
        values = self._at(of, level)
        population = self._members(within, level)
        if values.undefined is not None:
            self._check_finite(of, values.wrong, population, level)
            population = population & ~values.undefined
        return values, population

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

    def _unit(self, by: str, level: Level) -> Tensor:
        """The unit of each token, turn or response."""
        finest = max(level_by(by), Level.RESPONSE)
        return self._spread(self._units(by).member, finest, level)

    def _count(self, mask: Tensor, by: str, level: Level) -> Tensor:
        """The number of True tokens, turns or responses in each unit, int64."""
        if by == "update":
            return self.comm.sum(mask.sum(dtype=torch.int64)[None])
        units = self._units(by)
        return statistics.count_by(mask, self._unit(by, level), units.count, units.comm)

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
        sizes = self._count(population, node.by, level)
        places = torch.tensor([place(n) for n in sizes.tolist()], device=keys.device)
        if node.by == "update":
            k = int(places)
            cut = statistics.kth_smallest(keys, k, self.comm, population) if k else 0
            return keys, torch.tensor([cut], device=keys.device), places
        unit = self._unit(node.by, level)[population]
        cuts = statistics.kth_smallest_by(keys[population], places, unit, self._units(node.by).comm)
        return keys, cuts, places

    def _cut(self, node: nodes.Cut) -> Values:
        def place(n: int) -> int:
            k = node.size(n)
            return n - k + 1 if k and node.side == "top" else k

        values, population = self._population(node.value, node.within, node.level)
        keys, cuts, places = self._kth(node, values, population, place)
        if node.by != "update":
            unit = self._unit(node.by, node.level)
            cuts, places = cuts[unit], places[unit]
        inside = keys >= cuts if node.side == "top" else keys <= cuts
        return self._selected(node, values, population, inside & (places > 0))

    def _mean_cut(self, node: nodes.MeanCut) -> Values:
        values, population = self._population(node.value, node.within, node.level)
        data, units = values.data.expand(len(self.table)), self._units(node.by)
        unit = self._unit(node.by, node.level)
        counted = data[population], unit[population]
        ends = statistics.mean_cut_by(*counted, units.count, node.limit, units.comm)
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
        return Values(selected, values.undefined & self._members(node.within, node.level))

    def _quantile(self, node: nodes.Quantile) -> Values:
        ranked = self._population(node.value, node.within, node.counted)
        keys, cuts, places = self._kth(node, *ranked, lambda n: node.size(n) if n else 0)
        data = statistics.from_keys(cuts.to(keys.dtype))
        return self._per_response(node.by, data, places == 0)

    def _rank(self, node: nodes.Rank) -> Values:
        values, population = self._population(node.of, node.within, node.level)
        unit, units = self._unit(node.by, node.level)[population], self._units(node.by)
        keys = statistics.order_keys(values.data)[population].long()
        data = torch.zeros(population.shape, dtype=self.dtype, device=self.device)
        shares = statistics.shares_below(keys, unit, units.count, units.comm)
        data[population] = shares.to(self.dtype)
        return Values(data, ~population)

    def _aggregate(self, node: nodes.Aggregate) -> Values:
        level = node.counted
        values, population = self._population(node.of, node.within, level)
        sizes = self._count(population, node.by, level)
        if node.statistic in ("count", "share"):
            by_unit = self._count(population & values.data, node.by, level).double()
            by_unit = by_unit / sizes if node.statistic == "share" else by_unit
        else:
            by_unit = self._statistic(node, values.data, population, level)
            by_unit = by_unit / sizes if node.statistic == "mean" else by_unit
        empty = None if node.statistic in ("sum", "count") else sizes == 0
        return self._finite(node, self._per_response(node.by, by_unit.to(self.dtype), empty))

    def _statistic(
        self, node: nodes.Aggregate, data: Tensor, population: Tensor, level: Level
    ) -> Tensor:
        """The sum (for a mean, too), min or max of each unit, float64."""
        data = data[population]
        if node.by == "update" and node.statistic in ("sum", "mean"):
            total = statistics.exact_sum(data, self.comm)
            return torch.tensor([total], dtype=torch.float64, device=data.device)
        units = self._units(node.by)
        unit = self._unit(node.by, level)[population]
        if node.statistic in ("sum", "mean"):
            return statistics.exact_sum_by(data, unit, units.count, units.comm)
        largest = node.statistic == "max"
        return statistics.extreme_by(data, unit, units.count, largest, units.comm)

    def _quantified(self, node: nodes.Quantified) -> Values:
        level = node.counted
        values, population = self._population(node.of, node.within, level)
        wanted = values.data if node.statistic == "any" else ~values.data
        some = self._count(population & wanted, node.by, level) > 0
        return self._per_response(node.by, some if node.statistic == "any" else ~some, None)

    def _per_response(self, by: str, by_unit: Tensor, undefined: Tensor | None) -> Values:
        """The values of units: 0-d for the update, [N] by position, [T] by turn, else [B]."""
        if undefined is not None and not bool(undefined.any()):
            undefined = None
        if by == "update":
            return Values(by_unit[0], None if undefined is None else undefined[0])
        member = self._units(by).member
        return Values(by_unit[member], None if undefined is None else undefined[member])

    def _sample(self, node: nodes.Sample) -> Values:
        table, whole = self.table, node.of == "response"
        candidates = self._members(node.rule, node.level)
        n = statistics.count(candidates, self.comm)
        k = node.size(self.amount(node), n, statistics.count(self.decided, self.comm))
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
        positions = torch.arange(len(unit), device=self.device) - (sizes.cumsum(0) - sizes)[unit]
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

    populations: ClassVar = {
        nodes.Aggregate: _aggregate,
        nodes.Quantified: _quantified,
        nodes.Cut: _cut,
        nodes.MeanCut: _mean_cut,
        nodes.Quantile: _quantile,
        nodes.Rank: _rank,
        nodes.Sample: _sample,
        nodes.Scan: _scan,
        CustomRule: _custom_rule,
    }


def _covariance(frame: Frame) -> Tensor:
    advantages, logprobs = frame.batch("advantages"), frame.batch("logprobs")
    mean_advantage = statistics.exact_mean(advantages, frame.decided, frame.comm)
    mean_logprob = statistics.exact_mean(logprobs, frame.decided, frame.comm)
    return (advantages - mean_advantage) * (logprobs - mean_logprob)


_VALUES: dict[str, Callable[[Frame], Tensor]] = {
    "logprob": lambda frame: frame.batch("logprobs"),
    "prob": lambda frame: frame.batch("logprobs").exp(),
    "surprisal": lambda frame: -frame.batch("logprobs"),
    "old_logprob": lambda frame: frame.batch("old_logprobs"),
    "old_prob": lambda frame: frame.batch("old_logprobs").exp(),
    "old_surprisal": lambda frame: -frame.batch("old_logprobs"),
    "advantage": lambda frame: frame.batch("advantages"),
    "reward": lambda frame: frame.table.reward().masked_fill(~frame.decided_responses, 0),
    "ratio": lambda frame: functional.log_ratio(
        frame.batch("logprobs"), frame.batch("old_logprobs")
    ).exp(),
    "length": lambda frame: frame.table.lengths,
    "position": lambda frame: frame.table.positions,
    "turn": lambda frame: frame.table.turn_numbers[frame.table.turn_starts],
    "turn_position": lambda frame: (
        frame.table.positions - frame.table.positions[frame.table.turn_starts][frame.table.turns]
    ),
    "turn_reward": lambda frame: frame.batch("turn_reward")[frame.table.turn_starts],
    "covariance": _covariance,
    "sampler_gap": lambda frame: frame.batch("old_logprobs") - frame.batch("sampler_logprobs"),
    "gradient_norm": lambda frame: functional.gradient_norm(
        frame.batch("logprobs"), frame.batch("collision"), frame.batch("advantages")
    ),
}
"""The value of each column of rules on the frame's rows, [N]; rewards and lengths are [B], turns
and their rewards [T]. Columns that are not listed are those of the TokenBatch with the same name,
or of a score."""


def _join(tables: Sequence[TokenBatch], columns: Mapping[str, str]) -> TokenBatch:
    """This rank's tables as one table; an empty one if there are none."""
    if len(tables) > 1:
        unread = dict.fromkeys({*_OPTIONAL} - columns.keys())
        tables = [table.replace(**unread, mask=None) for table in tables]
    if tables:
        return TokenBatch.concat(tables)
    nothing = torch.zeros(0)
    names = {name for _, reads in COLUMNS.values() for name in reads} | {"advantages"}
    empty: dict[str, Any] = dict.fromkeys(names.intersection(COLUMN_NAMES) - {"logprobs"}, nothing)
    empty["columns"] = dict.fromkeys(columns.keys() - {*COLUMN_NAMES}, nothing)
    return TokenBatch(lengths=[], groups=[], ids=[], logprobs=nothing, **empty)  # type: ignore[arg-type]
