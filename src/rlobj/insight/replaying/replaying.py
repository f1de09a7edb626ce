"""`replay`: what other objectives and rules do to the tokens that a run recorded."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint
from pathlib import Path
from typing import Any

import pyarrow
import torch

from rlobj.base.errors import Argument, BatchError, ConfigError, Message, Setting
from rlobj.base.targets import importing
from rlobj.insight.numbers import listed, without_nan
from rlobj.insight.replaying import planning
from rlobj.insight.replaying.candidates import RECORDED, Candidates, Sweep, read_candidates
from rlobj.insight.replaying.texts import text_tables
from rlobj.objectives.critic import value_names
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import EntropyBonus
from rlobj.objectives.plan import EFFECTS
from rlobj.objectives.rules import Rule, Scope, reading
from rlobj.objectives.rules.nodes import Column, Controlled, NamedReward
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.values import Values
from rlobj.reporting import visible
from rlobj.reporting.markdown import escaped, escaped_lines, markdown_table
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import is_run, table_files
from rlobj.runs.metrics import Progress
from rlobj.runs.reading import checked_files, sound
from rlobj.runs.tables import UpdateTable, read_tables
from rlobj.runs.traces import is_traces, traced_update
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, given_layers, merged
from rlobj.settings.presets import Preset, flattened

_TRACES = Message("traces name no objective: 'recorded' is Objective() with their advantages")
_SHARES = {
    "share": ("touched", "tokens"),
    "precision": ("caught", "judged"),
    "recall": ("caught", "spurious"),
    "carried": ("carried", "free"),
}
"""The two sums that each share divides."""
_OF_VALUES = ("explained_variance", "loss", "mean")


@dataclass(frozen=True, repr=False)
class Replay:
    """What objectives and rules do to recorded tokens. All tables are pyarrow's; null = unknown.

    Attributes:
        source: what was read.
        steps: the steps that were read.
        population: the number of tokens of these steps.
        reproduced: tokens to which the recorded objective gives the recorded weight again, to the
            bit.
        objectives: one row for the recorded objective, each other and each rule: `touched` tokens
            (of a rule: those that it selects) with their `share`; `precision`, the share of the
            judged ones that is spurious; `recall`, their share of the spurious tokens; `carried`,
            their share of the gradient if no token is dropped; the number of tokens by effect; and
            of objectives the tokens that are `clipped`: with a weight, and without a gradient
            because a ratio is out of the surrogate's bounds; the sum of the tokens' `gradient`
            norms over that of the recorded one, and the parts of it that make tokens more likely,
            and that spurious tokens have; and `value_explained_variance`, `value_loss` and
            `value_mean`, these metrics of the recorded V, before it was trained.
        sweeps: one row for each rule and swept value.
        refused: why something cannot be replayed, by its name.
        notes: what should be known about the numbers.
        swept: the name of the swept number, or "".
    """

    source: str
    steps: Sequence[int]
    population: float
    reproduced: int
    objectives: Any
    sweeps: Any
    refused: Mapping[str, Message]
    notes: Sequence[Message]
    swept: str = ""

    @property
    def title(self) -> str:
        """What was read, and whether the recorded weights were found again."""
        source, steps = visible(self.source, 200), listed(self.steps)
        if _TRACES in self.notes:
            return f"{source}, traces: {self.population:,.0f} tokens"
        title = f"{source}, full tables of {steps}: {self.population:,.0f} tokens\n"
        if self.reproduced == self.population:
            return f"{title}the recorded objective gives all recorded weights again, to the bit"
        others = self.population - self.reproduced
        return f"{title}the recorded objective gives other weights than recorded to {others:,.0f}"

    @property
    def remarks(self) -> list[Message]:
        """What cannot be replayed, and what should be known about the numbers."""
        refused = [
            Message(f"not replayed: {name[:60]}: ", why) for name, why in self.refused.items()
        ]
        return [*refused, *self.notes]

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped and null for NaN."""
        tables = {name: getattr(self, name).to_pylist() for name in ("objectives", "sweeps")}
        return json.dumps({**vars(self), **tables}, indent=1)

    def __repr__(self) -> str:
        text = "\n".join([self.title, *self.remarks])
        return "\n".join(map(visible, text.split("\n")))

    def _repr_markdown_(self) -> str:
        """The tables of the screen."""
        parts = [escaped_lines(repr(self))]
        for title, head, rows in text_tables(self):
            parts += [*filter(None, [escaped(title)]), markdown_table(head, rows)]
        return "\n\n".join(parts)


def row_of(sums: Mapping[str, float], recorded: float) -> dict[str, float]:
    """A row of the tables: counts and shares of an objective or a rule; NaN = unknown.

    Args:
        sums: over its tokens; of an objective, those of its gradient as well.
        recorded: Σ of the norms of the recorded objective's gradients.
    """

    def share(part: str, whole: str) -> float:
        return sums[part] / sums[whole] if sums[whole] else math.nan

    row = {"touched": sums["touched"]}
    row |= {name: share(*parts) for name, parts in _SHARES.items()}
    if "gradient" not in sums:
        return row
    row |= {name: sums[name] for name in ("kept", "clipped", *EFFECTS)}
    row["gradient"] = sums["gradient"] / (recorded or math.nan)
    row["gradient_up"] = share("gradient_up", "gradient")
    spurious = share("gradient_spurious", "gradient") if sums["spurious"] else math.nan
    of_values = {name: sums.get(f"value/{name}", math.nan) for name in _OF_VALUES}
    row |= {f"value_{name}": value / sums["updates"] for name, value in of_values.items()}
    return row | {"gradient_spurious": spurious}


def replay(
    tables: Any,
    objectives: Any = (),
    *,
    sweep: Sweep | None = None,
    settings: Mapping[str, Any] | Sequence[Layer] | None = None,
    step: int | None = None,
    trust: bool = False,
    progress: Progress = lambda done, total: None,
) -> Replay:
    """What other objectives and rules do to recorded tokens, on a CPU and without a model.

    Each objective plans each update of the full tables again, with its own advantages, and its loss
    is differentiated by the recorded log-probs. A rule selects tokens, and nothing is planned for
    it.

    Args:
        tables: the folder of a run with full tables, a folder of such files, or one such file; a
            JSONL file of verifiers' traces; or updates from `read_tables`.
        objectives: names of presets, preset files, Objectives and rules, or a mapping from names
            to them; the recorded objective always comes first.
        sweep: "NAME=FROM..TO" or "NAME=FROM..TO:COUNT", or {NAME: values}: the name stands for a
            number in a rule, such as "prob < TAU".
        settings: of the run's objective, by dotted name; the objective with these changes is
            replayed, too: {"objective.advantage.lam": 0.9}.
        step: only this step, from 1.
        trust: import the code that the recorded objective names by its path.
        progress: called with (done, total).

    Raises:
        ConfigError: no full tables there, an unknown preset, a text that is no rule, a sweep that
            no rule reads, code without `trust`, or nothing that can be replayed.
    """
    path = Path(tables) if isinstance(tables, str | Path) else None
    source = str(path or "the updates")
    if path and is_traces(path):
        tables, path = [traced_update(path)], None
    recorded = (read_settings(path) if path and is_run(path) else {}).get("objective")
    recorded = recorded if isinstance(recorded, dict) else {}
    values = value_names(recorded)
    with reading(Scope.of(recorded.get("columns"), recorded.get("scores"), values)):  # of rules
        running = _Replay(read_candidates(objectives, sweep))
    if layers := given_layers(settings):
        changed = flattened(merged(layers)).items()
        name = ", ".join(f"{key.removeprefix('objective.')}={value}" for key, value in changed)
        running.objectives[name] = _changed(path, layers, trust)
    steps = None if step is None else [step]
    if path and path.is_dir() and not table_files(path, "tables"):
        read_settings(path)  # refuses a folder that is no run
        tables_every = Setting("output.tables_every", 10)
        raise ConfigError(f"{path} has no full tables: use ", tables_every, " in a new run")
    updates: Any = read_tables(path, steps, trust=trust) if path else tables
    updates = (update for update in updates if step in (None, update.step))
    count = len(checked_files(path, "tables", steps)) if path else length_hint(tables)
    progress(0, count)
    with sound(source):
        for done, batches in enumerate(planning.rollouts(updates), 1):
            running.rollout(batches)
            progress(done, max(done, count))
    return running.result(source)


def _changed(path: Path | None, layers: Sequence[Layer], trust: bool) -> Objective:
    """The objective of a run with other settings."""
    others = {key for key in flattened(merged(layers)) if not key.startswith("objective")}
    if path is None or others:
        what = f"{min(others)} is no setting of an objective" if others else "these are no run"
        raise ConfigError(f"{what}: settings change the objective of a run's folder")
    with importing(None if trust else ()):
        return build_config([(str(path), read_settings(path)), *layers]).resolved_objective()


class _Replay:
    """A replay in progress.

    Attributes:
        sums: over the tokens, of objectives (name, None) and of rules (name, swept value).
    """

    def __init__(self, candidates: Candidates) -> None:
        self.objectives, self.rules, self.swept = candidates
        self.replayed: dict[str, planning.Replayed] | None = None
        self.steps: dict[int, None] = {}
        self.refused: dict[str, Message] = {}
        self.notes: dict[Message, None] = {}
        self.sums: defaultdict[tuple[str, float | None], Counter[str]] = defaultdict(Counter)

    def rollout(self, batches: list[planning.MiniBatch]) -> None:
        """Replay the mini-batches of a pass."""
        first = batches[0][0]
        self.steps[first.step] = None
        if self.replayed is None:
            self.replayed = self._begin(first)
        recorded = [[(u.objective, u.table, u.state) for u in batch] for batch in batches]
        planned = {RECORDED: list(map(planning.plan_again, recorded, batches))}
        for name, replayed in self.replayed.items():
            if name in self.refused:
                continue
            try:
                planned[name] = list(map(planning.plan_again, replayed.phases(batches), batches))
            except BatchError as error:
                table = max((batch[0].table for batch in batches), key=planning.unscored)
                objective = replayed.objective
                why = planning.reason(error, table, objective.needs.ever, objective.critic)
                self.refused[name] = why
        for number, batch in enumerate(batches):
            self._mini_batch(batch[0], {name: plans[number] for name, plans in planned.items()})

    def _begin(self, first: UpdateTable) -> dict[str, planning.Replayed]:
        """The objectives at the beginning, and notes about them."""
        longest, recorded = first.facts.get("max_tokens"), first.objective
        if first.facts.get("traces"):
            self.notes[_TRACES] = None
        objectives = {
            name: objective.resolved(longest) if isinstance(objective, Preset) else objective
            for name, objective in self.objectives.items()
        }
        for name, objective in {RECORDED: recorded, **objectives}.items():
            if any(isinstance(penalty, EntropyBonus) for penalty in objective.penalties):
                self.notes[Message(f"{name}: its gradient leaves out its entropy bonus")] = None
            if objective.controllers and objective.controllers != recorded.controllers:
                text = "its controllers begin at their start values and see the recorded steps only"
                self.notes[Message(f"{name}: {text}")] = None
        return {name: planning.Replayed(objective) for name, objective in objectives.items()}

    def _mini_batch(self, first: UpdateTable, planned: Mapping[str, planning.Planned]) -> None:
        rows, spurious = first.table.decided, first.table.columns.get("spurious")
        if spurious is None:
            spurious = torch.full_like(first.table.logprobs, torch.nan)
        spurious = spurious[rows]
        for name, plan in planned.items():
            self._add((name, None), _touched(plan.effect >= 0, spurious, plan.free))
            self._add((name, None), _gradient(plan, spurious))
            self.sums[name, None].update(plan.of_value, updates=1)
            if bool(plan.gradient.isnan().any()):
                why = planning.UNSCORED if planning.unscored(first.table) else planning.UNKNOWN
                unknown = Message(f"{name}: its gradient is unknown, because ", why)
                self.notes[unknown] = None
        for name, value, chosen in self._selected(first):
            self._add((name, value), _touched(chosen, spurious, planned[RECORDED].free))

    def _add(self, key: tuple[str, float | None], columns: Mapping[str, torch.Tensor]) -> None:
        self.sums[key].update(
            {name: float(column.double().sum()) for name, column in columns.items()}
        )

    def _selected(self, first: UpdateTable) -> Iterator[tuple[str, float | None, torch.Tensor]]:
        """The tokens of decided responses that each rule selects."""
        for name, rules in self.rules.items():
            if name in self.refused:
                continue
            read = [("rule", rule) for rule in rules.values()]
            reads = rule_columns(read, first.objective.scores)
            try:
                frame = _Recorded([first.table], reads, SingleProcess(), first.state)
                for value, rule in rules.items():
                    yield name, value, _select(rule, frame, first)[first.table.decided]
            except BatchError as error:
                self.refused[name] = planning.reason(error, first.table, reads)

    def result(self, source: str) -> Replay:
        """The tables of the results.

        Raises:
            ConfigError: nothing was recorded, or nothing of what was asked for can be replayed.
        """
        if not self.steps:
            raise ConfigError(f"{source} has no recorded token, or none of this step")
        names = {*self.objectives, *self.rules}
        if names and names <= self.refused.keys():
            reasons = [Message(f"\n{name}: ", why) for name, why in self.refused.items()]
            raise ConfigError(f"nothing of this can be replayed on {source}", *reasons)
        recorded = self.sums[RECORDED, None]
        objectives, sweeps = list[dict[str, Any]](), list[dict[str, Any]]()
        for (name, value), sums in self.sums.items():
            row = row_of(sums, recorded["gradient"])
            if name not in self.refused and value is None:
                objectives.append({"name": name, **row})
            elif name not in self.refused:
                sweeps.append({"name": name, "value": value, **row})
        return Replay(
            source=source,
            steps=sorted(self.steps),
            population=recorded["tokens"],
            reproduced=int(recorded["equal"]),
            objectives=pyarrow.Table.from_pylist(without_nan(objectives)),
            sweeps=pyarrow.Table.from_pylist(without_nan(sweeps)),
            refused=self.refused,
            notes=list(self.notes),
            swept=self.swept,
        )


def _touched(
    touched: torch.Tensor, spurious: torch.Tensor, gradient: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the touched or selected tokens are, and what they carry, as columns to be summed.

    Args:
        touched: bool [N].
        spurious: 1, 0 or NaN where nobody judged, [N].
        gradient: the norm of each token's gradient if none is dropped, [N].
    """
    return {
        "tokens": torch.ones_like(touched),
        "touched": touched,
        "judged": touched & ~spurious.isnan(),
        "caught": touched & (spurious == 1),
        "spurious": spurious == 1,
        "free": gradient,
        "carried": torch.where(touched, gradient, 0.0),
    }


def _gradient(planned: planning.Planned, spurious: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an objective does to tokens, as columns to be summed."""
    norms = planned.gradient.abs()
    return {
        "kept": planned.weights != 0,
        **{effect: planned.effect == code for code, effect in enumerate(planning.EFFECTS)},
        "clipped": planned.clipped,
        "equal": planned.equal,
        "gradient": norms,
        "gradient_up": planned.gradient.clamp(min=0),
        "gradient_spurious": torch.where(spurious == 1, norms, 0.0),
    }


class _Recorded(Frame):
    """Recorded tokens: a column has no value where the run did not score a token.

    A rule is decided there if its other parts decide it: false & undefined is false.
    """

    def _read(self, name: str, who: str) -> torch.Tensor:
        return self.table.column(name, who).detach()

    def read(self, node: Column | NamedReward) -> Values:
        return self._finite(node, super().read(node))


def _select(rule: Rule, frame: Frame, first: UpdateTable) -> torch.Tensor:
    """The tokens that a rule selects, bool [N].

    Raises:
        BatchError: the table lacks a column, the rule depends on a number that is not finite, or a
            name in capitals has no value.
    """
    for node in rule.walk():
        if isinstance(node, Controlled) and node.name not in first.state:
            sweep = Argument("sweep", f"{node.name}=1e-4..1e-2")
            raise BatchError(f"'{node.name}' has no value. To sweep it: ", sweep)
    chosen = frame.rule(rule)
    frame.check()
    return chosen
