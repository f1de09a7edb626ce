"""`replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import length_hint
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow import parquet
from torch import Tensor

from rlobj.base.arrow import pc
from rlobj.base.errors import BatchError, ConfigError
from rlobj.base.files import a_file
from rlobj.config.presets import Preset
from rlobj.config.run_folder import Progress
from rlobj.insight.filtering import columns_of, matching, read_filter
from rlobj.insight.inspecting import without_nan
from rlobj.insight.replaying import planned as plans
from rlobj.insight.replaying.candidates import RECORDED, Candidates, Sweep, read_candidates
from rlobj.insight.replaying.result import Replay
from rlobj.insight.replaying.tallies import Tallies
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.penalties import EntropyBonus
from rlobj.objectives.rules import Rule
from rlobj.objectives.rules.nodes import Controlled
from rlobj.objectives.statistics import SingleProcess
from rlobj.records.reading import checked_files, checked_rows, read_records, sound
from rlobj.records.rows import numpy
from rlobj.records.tables import UpdateTable, read_tables

_WHOLE = (
    "Full tables have all tokens: leave out --records, or train with --set output.tables_every=10"
)
_READ = ("step", "inclusion_probability", "spurious", "effect", "gradient_norm", "kept")


def replay(
    tables: Any,
    objectives: Any = (),
    *,
    sweep: Sweep | None = None,
    step: int | None = None,
    tokens: bool = False,
    trust: bool = False,
    progress: Progress = lambda done, total: None,
) -> Replay:
    """What other objectives and rules do to recorded tokens, on a CPU and without a model.

    On full tables, each objective plans each recorded update again, with its own advantages, and
    its loss is differentiated by the recorded log-probs. A rule selects tokens, and nothing is
    planned for it. On records, rules are estimated token by token.

    Args:
        tables: the folder of a run, whose full tables are read if it has any, else its records; a
            folder of Parquet files of either kind, such as RUN/records, or one such file; updates
            from `read_tables`; or a pyarrow table with the columns of a record.
        objectives: names of presets, preset files, Objectives and rules, or a mapping from names
            to them; the recorded objective always comes first.
        sweep: "NAME=FROM..TO" or "NAME=FROM..TO:COUNT", or {NAME: values}: the name stands for a
            number in a rule, such as "prob < TAU".
        step: only this step, from 1.
        tokens: also return what is done to each token; for full tables.
        trust: import the code that recorded objectives, presets and rules name by its path.
        progress: called with (done, total).

    Raises:
        ConfigError: nothing recorded there, an unknown preset, a text that is no rule, a sweep that
            no rule reads, code without `trust`, or nothing that can be replayed.
    """
    found = _Replay(read_candidates(objectives, sweep, trust), tokens)
    path = Path(tables) if isinstance(tables, str | Path) else None
    if isinstance(tables, list | tuple) and isinstance(next(iter(tables), None), str | Path):
        raise ConfigError(f"one run is replayed at a time, got {list(tables)}; give one path")
    exact = _has_full_tables(path) if path else not hasattr(tables, "column_names")
    steps = None if step is None else [step]
    if not exact:
        columns = found.filters()
        rows = read_records(path, columns, steps=steps) if path else checked_rows(tables, columns)
        found.records(rows, step)
    else:
        updates: Any = read_tables(path, steps, trust=trust) if path else tables
        updates = (update for update in updates if step in (None, update.step))
        count = len(checked_files(path, "tables", steps)) if path else length_hint(tables)
        progress(0, count)
        with sound(path or "the updates"):
            for done, batches in enumerate(plans.rollouts(updates), 1):
                found.rollout(batches)
                progress(done, max(done, count))
    return found.result(str(path or "the table"), exact)


def _has_full_tables(path: Path) -> bool:
    """Whether a path has full tables, of a run or as files; else it may have records."""
    files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    try:
        names = parquet.read_schema(a_file(files[0])).names if files else []
    except (pyarrow.ArrowException, OSError):
        names = []  # the reader of records says what is wrong
    return "tokens" in names or any(path.glob("tables/*.parquet"))


class _Replay:
    """A replay in progress."""

    def __init__(self, candidates: Candidates, keep: bool) -> None:
        self.candidates, self.keep = candidates, keep
        self.tallies = Tallies()
        self.replayed: dict[str, plans.Replayed] | None = None
        self.steps: dict[int, None] = {}
        self.refused: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.rows: list[Any] = []
        self.filtered: dict[tuple[str, float | None], Any] = {}

    def refuse(self, name: str, why: str) -> None:
        """An objective or a rule cannot be replayed."""
        self.refused[name] = why
        self.tallies.forget(name)

    # Full tables.

    def rollout(self, batches: list[plans.MiniBatch]) -> None:
        """Replay the mini-batches of a pass."""
        first = batches[0][0]
        self.steps[first.step] = None
        if self.replayed is None:
            self.replayed = self._begin(first)
        own = [[(each.objective, each.table, each.state) for each in batch] for batch in batches]
        planned = {RECORDED: list(map(plans.plan_again, own, batches))}
        for name, each in self.replayed.items():
            if name in self.refused:
                continue
            try:
                planned[name] = list(map(plans.plan_again, each.phases(batches), batches))
            except BatchError as error:
                table = max((batch[0].table for batch in batches), key=plans.unscored)
                self.refuse(name, plans.reason(error, table, each.objective.needs.ever))
        for n, batch in enumerate(batches):
            self._mini_batch(batch[0], {name: each[n] for name, each in planned.items()})

    def _begin(self, first: UpdateTable) -> dict[str, plans.Replayed]:
        """The objectives at the beginning, and notes about them."""
        longest, own = first.facts.get("max_tokens"), first.objective
        objectives = {
            name: each.resolved(longest) if isinstance(each, Preset) else each
            for name, each in self.candidates.objectives.items()
        }
        for name, each in {RECORDED: own, **objectives}.items():
            if any(isinstance(penalty, EntropyBonus) for penalty in each.penalties):
                self.notes[f"{name}: its gradient leaves out its entropy bonus"] = None
            if each.controllers and each.controllers != own.controllers:
                text = "its controllers begin at their start values and see the recorded steps only"
                self.notes[f"{name}: {text}"] = None
        return {name: plans.Replayed(each) for name, each in objectives.items()}

    def _mini_batch(self, first: UpdateTable, planned: Mapping[str, plans.Planned]) -> None:
        tallies = self.tallies
        rows, spurious = first.table.decided, first.table.columns.get("spurious")
        if spurious is None:
            spurious = torch.full_like(first.table.logprobs, torch.nan)
        for name, each in planned.items():
            tallies.add_planned(name, each, spurious[rows])
            if bool(each.gradient.isnan().any()):
                why = plans.UNSCORED if plans.unscored(first.table) else plans.UNKNOWN
                self.notes[f"{name}: its gradient is unknown, because {why}"] = None
        touched = {name: each.effect >= 0 for name, each in planned.items()}
        for name, value, chosen in self._selected(first):
            tallies.add_touched((name, value), chosen, spurious[rows], planned[RECORDED].free)
            touched |= {name: chosen} if value is None else {}
        tallies.add_pairs(touched, planned)
        if self.keep:
            self.rows.append(_rows(first, touched, planned))

    def _selected(self, first: UpdateTable) -> Iterator[tuple[str, float | None, Tensor]]:
        """The tokens of decided responses that each rule selects."""
        for name, rules in self.candidates.rules.items():
            if name in self.refused:
                continue
            reads = rule_columns([("rule", rule) for rule in rules.values()], None)
            try:
                frame = Frame([first.table], reads, SingleProcess(), first.state)
                for value, rule in rules.items():
                    yield name, value, _select(rule, frame, first)[first.table.decided]
            except BatchError as error:
                self.refuse(name, plans.reason(error, first.table, reads))

    # Records.

    def filters(self) -> list[str]:
        """Read the rules as filters of a record; the columns of the record that are read."""
        for name in self.candidates.objectives:
            self.refuse(name, f"an objective plans whole updates. {_WHOLE}")
        for name, rules in self.candidates.rules.items():
            try:
                self.filtered |= {(name, at): read_filter(rule) for at, rule in rules.items()}
            except ConfigError as error:
                self.refuse(name, f"{error}. {_WHOLE}")
        return sorted({*_READ, *(c for rule in self.filtered.values() for c in columns_of(rule))})

    def records(self, rows: Any, step: int | None) -> None:
        """Estimate what the filters select from some recorded tokens."""
        rows = rows if step is None else rows.filter(pc.equal(rows["step"], step))
        self.steps |= dict.fromkeys(pc.unique(rows["step"]).to_pylist())
        p, spurious, norms = (
            torch.tensor(rows[name].cast("float64").to_numpy())
            for name in ("inclusion_probability", "spurious", "gradient_norm")
        )
        norms = norms.nan_to_num(0)  # tokens without a gradient were not scored
        touched = {RECORDED: _mask(pc.is_valid(rows["effect"]))}
        self.tallies.add_touched((RECORDED, None), touched[RECORDED], spurious, norms, p)
        counts = {name: _mask(pc.equal(rows["effect"], name)) for name in plans.EFFECTS}
        self.tallies[RECORDED, None].add({"kept": _mask(rows["kept"]), **counts}, p)
        rare = ~touched[RECORDED] & (spurious != 1) & (p < 1)
        for (name, value), rule in self.filtered.items():
            chosen = _mask(matching(rule, rows))
            if bool(rare.any()):
                self.tallies[name, value].add({"seen": chosen & rare})
            self.tallies.add_touched((name, value), chosen, spurious, norms, p)
            touched |= {name: chosen} if value is None else {}
        self.tallies.add_pairs(touched, {}, p)

    def result(self, source: str, exact: bool) -> Replay:
        """The tables of the results.

        Raises:
            ConfigError: nothing was recorded, or nothing of what was asked for can be replayed.
        """
        if not self.steps:
            raise ConfigError(f"{source} has no recorded token, or none of this step")
        names = {*self.candidates.objectives, *self.candidates.rules}
        if names and names <= self.refused.keys():
            reasons = "\n".join(f"{name}: {why}" for name, why in self.refused.items())
            raise ConfigError(f"nothing of this can be replayed on {source}\n{reasons}")
        self.notes |= dict.fromkeys(self.tallies.unseen())
        own = self.tallies[RECORDED, None].value
        return Replay(
            source=source,
            exact=exact,
            steps=sorted(self.steps),
            population=own["tokens"],
            reproduced=int(own["equal"]) if exact else None,
            objectives=_table(self.tallies.chosen(swept=False)),
            pairs=_table(self.tallies.pairs()),
            sweeps=_table(self.tallies.chosen(swept=True)),
            tokens=pyarrow.concat_tables(self.rows, promote_options="default")
            if self.rows
            else None,
            refused=self.refused,
            notes=list(self.notes),
            swept=self.candidates.swept,
        )


def _select(rule: Rule, frame: Frame, first: UpdateTable) -> Tensor:
    """The tokens that a rule selects, bool [N].

    Raises:
        BatchError: the table lacks a column, the rule depends on a number that is not finite, or a
            name in capitals has no value.
    """
    for node in rule.walk():
        if isinstance(node, Controlled) and node.name not in first.state:
            raise BatchError(
                f"'{node.name}' has no value: it is no controller of the recorded objective. To "
                f"sweep it: --sweep {node.name}=1e-4..1e-2; one name is swept at a time"
            )
    chosen = frame.rule(rule)
    frame.check()
    return chosen


def _rows(first: UpdateTable, touched: Mapping[str, Tensor], planned: Mapping[str, Any]) -> Any:
    """One row per token of a mini-batch, as a pyarrow table."""
    table, rows = first.table, first.table.decided
    ids = table.responses if table.ids is None else table.spread(table.ids)
    place = {"response": numpy(ids[rows]), "position": numpy(table.positions[rows])}
    size, effects = len(place["response"]), list(plans.EFFECTS)
    columns: dict[str, Any] = {"step": [first.step] * size, "update": [first.update] * size}
    columns |= place
    for name, chosen in touched.items():
        if name not in planned:
            columns[f"{name}: selected"] = numpy(chosen)
            continue
        codes = numpy(planned[name].effect)
        effect = pyarrow.array(codes, mask=codes < 0)
        columns[f"{name}: weight"] = numpy(planned[name].weights)
        columns[f"{name}: gradient"] = numpy(planned[name].gradient)
        columns[f"{name}: effect"] = pyarrow.DictionaryArray.from_arrays(effect, effects)
    return pyarrow.table(columns)


def _mask(column: Any) -> Tensor:
    """True where a boolean column is true, bool [N]."""
    return torch.tensor(pc.fill_null(column, False).to_numpy(zero_copy_only=False))


def _table(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as a pyarrow table; NaN becomes null."""
    return pyarrow.Table.from_pylist(without_nan(rows))
