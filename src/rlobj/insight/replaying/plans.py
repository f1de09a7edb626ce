"""What is replayed: objectives of presets, objectives, rules, and rules with a number to sweep.

Replay: what objectives and rules do to recorded tokens, as tables.

Objectives planned again on full tables: weights and gradients of every token, exactly.

Sums over tokens, and the rows made of them.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from rlobj.base.errors import Argument, BatchError, ConfigError, Message, Setting, counted
from rlobj.base.targets import importing
from rlobj.config.presets import Preset, load_preset
from rlobj.objectives import functional
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.rules import Expr, Rule, read_rule
from rlobj.objectives.rules.columns import COLUMNS
from rlobj.objectives.tokens import TokenBatch
from rlobj.records.reading import Effect
from rlobj.records.tables import UpdateTable
from rlobj.reporting import visible
from rlobj.reporting.figures import Figure, Line

RECORDED = "recorded"
"""The name of the objective that the run trained."""
POINTS, MOST_POINTS = 20, 1000
"""Values of a sweep, and the largest number of them."""
_SWEEP = re.compile(r"([A-Z]\w*)=([^.].*?)\.\.(.+?)(?::(\d{1,9}))?", re.ASCII)
_USAGE = (
    "Expected NAME=FROM..TO or NAME=FROM..TO:COUNT, a name in capitals and two numbers, such as "
    "TAU=1e-4..1e-2"
)

Sweep = str | Mapping[str, Sequence[float]]


class Candidates(NamedTuple):
    """What is replayed besides the recorded objective.

    Attributes:
        objectives: by name; a preset waits for the run's `sampling.max_tokens`.
        rules: by name, and by the swept value; None = nothing is swept in it.
        swept: the name of the number that is swept, or "".
    """

    objectives: dict[str, Objective | Preset]
    rules: dict[str, dict[float | None, Rule]]
    swept: str


def read_candidates(given: Any, sweep: Sweep | None, trust: bool) -> Candidates:
    """Read objectives and rules.

    Args:
        given: a mapping from names, or a list of names of presets, preset files, objectives and
            rules; one of them may stand alone.
        sweep: "NAME=FROM..TO:COUNT", or {NAME: values}; NAME occurs in a rule.
        trust: import the code that they name by its path.

    Raises:
        ConfigError: an unknown preset, a text that is no rule, a sweep that no rule reads, or code
            without `trust`.
    """
    if isinstance(given, str) and re.fullmatch(r"[\w.+-]+(,\s*[\w.+-]+)+", given):
        given = re.split(r",\s*", given)  # names of presets, as on the command line
    given = [given] if isinstance(given, str | Objective | Expr) else given
    if not isinstance(given, Iterable):
        raise ConfigError(
            f"objectives is {given!r}; expected names of presets, objectives and rules, such as "
            "['grpo', 'prob < 0.01']"
        )
    named = given.items() if isinstance(given, Mapping) else ((None, each) for each in given)
    swept, values = read_sweep(sweep)
    found = Candidates({}, {}, swept)
    with importing(trust):
        for name, each in named:
            text = each if isinstance(each, Objective) else " ".join(str(each).split())
            if isinstance(text, Objective):
                found.objectives[name or f"objective {len(found.objectives) + 1}"] = text
            elif re.fullmatch(r"[\w.+-]+|.+\.ya?ml", text) and text not in COLUMNS:
                preset = load_preset(text)
                preset.resolved()  # finds errors before anything is read
                found.objectives[name or preset.name] = preset
            elif swept and re.search(_named(swept), text):
                number = {value: f"({value!r})" if value < 0 else repr(value) for value in values}
                found.rules[name or text] = {
                    value: _rule(re.sub(_named(swept), number[value], text)) for value in values
                }
            else:
                found.rules[name or text] = {None: each if isinstance(each, Rule) else _rule(text)}
    if RECORDED in {**found.objectives, **found.rules}:
        raise ConfigError(f"'{RECORDED}' is the run's own objective; choose another name")
    if swept and not any(None not in rules for rules in found.rules.values()):
        raise ConfigError(
            f"no rule reads '{swept}', which is to be swept. Give a rule such as "
            f"'prob < {swept}' with ",
            Argument("sweep", f"{swept}=1e-4..1e-2"),
        )
    return found


def _named(name: str) -> str:
    """A pattern that finds a name in a rule."""
    return rf"(?<![\w.'\"]){name}\b(?!['\"])"


def _rule(text: str) -> Rule:
    try:
        return read_rule(text)
    except ConfigError as error:
        names = re.findall(_named(r"[A-Z]\w*"), text, re.ASCII)
        if not names:
            raise
        sweep = Argument("sweep", f"{names[0]}=0.1..0.9")
        raise ConfigError(error, f"\nTo sweep {names[0]}: ", sweep) from None


def read_sweep(sweep: Sweep | None) -> tuple[str, Sequence[float]]:
    """The name and the values of a sweep; ("", ()) without.

    Values have the same ratio if both ends are positive and differ by a factor of 10 or more, else
    the same distance. They are rounded to four digits, except for the ends.

    Raises:
        ConfigError: a text that cannot be read, or a range without an extent.
    """
    if not sweep:
        return "", ()
    if isinstance(sweep, Mapping):
        [(name, values), *more] = sweep.items()
        if more:
            raise ConfigError(f"one number is swept at a time, got {', '.join(sweep)}")
        if not isinstance(values, Iterable) or not (values := [float(each) for each in values]):
            raise ConfigError(f"sweep needs values, such as {{'{name}': [0.01, 0.1]}}")
        return name, values
    match = _SWEEP.fullmatch(sweep.replace(" ", ""))
    name, low, high, count = match.groups() if match else ("", "", "", "")
    try:
        low, high, points = float(low), float(high), int(count or POINTS)
    except ValueError:
        raise ConfigError(f"cannot read the sweep '{visible(sweep, 80)}'. {_USAGE}") from None
    if not (math.isfinite(high - low) and low < high and 2 <= points <= MOST_POINTS):
        raise ConfigError(
            f"the sweep '{visible(sweep, 80)}' must have 2 to {MOST_POINTS} values and rise from "
            f"one number to a larger one. {_USAGE}"
        )
    space = np.geomspace if low > 0 and high >= 10 * low else np.linspace
    between = [float(f"{value:.4g}") for value in space(low, high, points)[1:-1]]
    return name, [low, *between, high]


SHARES = {
    "share": ("share of the tokens", "touched", "tokens"),
    "precision": ("precision", "caught", "judged"),
    "recall": ("recall", "caught", "spurious"),
    "carried": ("share of the gradient", "carried", "free"),
}
"""The title of each share, and the two sums that it divides."""


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
            of objectives the sum of the tokens' `gradient` norms over that of the recorded one, and
            the parts of it that make tokens more likely, that 1% of the tokens have, and that
            spurious tokens have.
        pairs: of each two: `overlap`, the tokens that both touch over those that either touches;
            the correlation of the `weights`; and the cosine of the `gradients` by the logits. The
            last two are means over updates.
        sweeps: one row for each rule and swept value.
        tokens: if asked for, one row per token, with what each objective does to it.
        refused: why something cannot be replayed, by its name.
        notes: what should be known about the numbers.
        swept: the name of the swept number, or "".
    """

    source: str
    steps: Sequence[int]
    population: float
    reproduced: int
    objectives: Any
    pairs: Any
    sweeps: Any
    tokens: Any
    refused: Mapping[str, Message]
    notes: Sequence[Message]
    swept: str = ""

    @property
    def title(self) -> str:
        """What was read, and whether the recorded weights were found again."""
        steps = counted(len(self.steps), "step")
        steps += f" ({self.steps[0]} to {self.steps[-1]})" if len(self.steps) > 1 else ""
        source = visible(self.source, 200)
        title = f"{source}, full tables of {steps}: {self.population:,.0f} tokens"
        if self.reproduced == self.population:
            return f"{title}\nthe recorded objective gives all recorded weights again, to the bit"
        others = f"{self.population - self.reproduced:,.0f} tokens"
        return f"{title}\nthe recorded objective gives other weights than recorded to {others}"

    @property
    def remarks(self) -> list[Message]:
        """What cannot be replayed, and what should be known about the numbers."""
        names: dict[Message, list[str]] = {}
        for name, why in self.refused.items():
            names.setdefault(why, []).append(name[:60])
        refused = [
            Message(f"not replayed: {', '.join(each)}: ", why) for why, each in names.items()
        ]
        return [*refused, *self.notes]

    def to_json(self) -> str:
        """All of it but `tokens` as JSON, with control characters escaped and null for NaN."""
        tables = {
            name: getattr(self, name).to_pylist() for name in ("objectives", "pairs", "sweeps")
        }
        return json.dumps({**vars(self), **tables, "tokens": None}, indent=1)

    def __repr__(self) -> str:
        text = "\n".join([self.title, *self.remarks])
        return "\n".join(map(visible, text.split("\n")))

    def figure(self) -> Figure:
        """The curves of a sweep.

        Raises:
            ConfigError: nothing was swept.
        """
        rows = self.sweeps.to_pylist()
        if not rows:
            sweep = Argument("sweep", "TAU=1e-4..1e-2")
            raise ConfigError("a figure shows a sweep: 'prob < TAU' with ", sweep)
        rules = list(dict.fromkeys(row["name"] for row in rows))
        lines = []
        for number, rule in enumerate(rules):
            chosen = [row for row in rows if row["name"] == rule]
            for column, (title, *_) in SHARES.items():
                y = np.array([row[column] for row in chosen], float)  # None is NaN
                text, run = (f"{title}: {rule}", number) if len(rules) > 1 else (title, None)
                lines.append(Line(text, [row["value"] for row in chosen], [*y], run=run))
        values = [row["value"] for row in rows]
        wide = min(values) > 0 and max(values) >= 10 * min(values)
        title = visible(", ".join(rules), 48)
        return Figure("sweep", title, "share", lines, x=self.swept, log_x=wide)


EFFECTS: tuple[str, ...] = get_args(Effect)
UNSCORED = Message(
    "the run did not score all tokens; use ",
    Setting("training.skip_inactive", False),
    " to score those without a gradient, too",
)
UNKNOWN = "its trainer does not compute Σ π², the column collision; `rlobj train` does"
"""Why the gradients of a run in another trainer are unknown."""
MiniBatch = Sequence[UpdateTable]
"""The recorded updates on the same responses: one for each phase of the objective."""
Phase = tuple[Objective, TokenBatch, Mapping[str, Any]]
"""A phase of an objective, the table that it reads, and its state."""


def rollouts(updates: Iterable[UpdateTable]) -> Iterator[list[MiniBatch]]:
    """The recorded mini-batches of each pass over a step's rollout."""
    for _, found in groupby(updates, lambda update: update.step):
        passes: list[dict[Any, list[UpdateTable]]] = []
        for update in found:
            ids = update.table.ids
            key = update.update if ids is None else tuple(ids.tolist())
            had = [
                any(each.objective == update.objective for each in batches.get(key, ()))
                for batches in passes
            ]
            if all(had):  # a phase that the mini-batch has had begins the next pass
                passes.append({})
            passes[(*had, False).index(False)].setdefault(key, []).append(update)
        for batches in passes:
            yield list(batches.values())


@dataclass
class Planned:
    """What an objective does to the tokens of decided responses of a mini-batch, in all phases.

    Attributes:
        weights: m·ω/Z_t, [N].
        gradient: −∂loss/∂l · sqrt(1 − 2π + Σ π²), [N]: its size is the norm of the gradient by the
            logits; it is positive if the update makes the token more likely.
        free: the norm for the objective without its `drop` and `keep`, [N].
        effect: the place in EFFECTS of what was done, int8 [N]; −1 = the token was not touched.
        equal: the planned weight is the recorded one, to the bit, bool [N].
    """

    weights: torch.Tensor
    gradient: torch.Tensor
    free: torch.Tensor
    effect: torch.Tensor
    equal: torch.Tensor


def plan_again(phases: Sequence[Phase], batch: MiniBatch) -> Planned:
    """Plan each phase of an objective on its table, with its state.

    Raises:
        BatchError: a table lacks a column, or a number is not finite.
    """
    rows = batch[0].table.decided
    zeros = torch.zeros_like(batch[0].table.logprobs)
    found = Planned(zeros, zeros, zeros, torch.full_like(rows, -1, dtype=torch.int8), rows)
    for i, (objective, table, state) in enumerate(phases):
        plan = objective.plan([table], state, clauses=True)
        assert plan.clauses is not None
        every = objective.replace(drop=None, keep=None)
        own = whole = token_gradient(objective, table, plan)
        if every != objective:
            whole = token_gradient(every, table, every.plan([table], state))
        found.weights = found.weights + plan.weights[0]
        found.gradient, found.free = found.gradient + own, found.free + whole.abs()
        found.equal = found.equal & (plan.weights[0] == recorded(batch, i).weights)
        for code, name in enumerate(EFFECTS):
            found.effect = found.effect.masked_fill(plan.clauses.touched(name), code)
    return Planned(*(column[rows] for column in vars(found).values()))


def recorded(batch: MiniBatch, phase: int) -> UpdateTable:
    """The recorded update of a phase, from 0; further phases have the last one."""
    return batch[min(phase, len(batch) - 1)]


def token_gradient(objective: Objective, table: TokenBatch, plan: Plan) -> torch.Tensor:
    """−∂loss/∂l · sqrt(1 − 2π + Σ π²) of each token, [N]; NaN if it was not scored.

    What reaches the policy through its entropy, as an entropy bonus does, is not in it.
    """
    logprobs = table.logprobs.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = objective.loss(table.replace(logprobs=logprobs), plan, 0, check=False).loss
        [slope] = torch.autograd.grad(loss, [logprobs], materialize_grads=True)
    trained = table.spread(objective.responses_with_gradient(table, plan, 0)) & table.decided
    collision = torch.full_like(slope, torch.nan) if table.collision is None else table.collision
    norm = functional.gradient_norm(table.logprobs.detach(), collision, slope)
    return torch.where(trained & (slope != 0), -slope.sign() * norm, 0.0)


class Replayed:
    """An objective besides the recorded one, from one recorded rollout to the next.

    Its controllers begin at their start values, and see the recorded rollouts only; those of the
    recorded objective, if it has the same ones, keep the recorded values.

    Args:
        objective: resolved.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective, self.state, self._step = objective, objective.init(), 0

    def phases(self, batches: Sequence[MiniBatch]) -> list[list[Phase]]:
        """The phases of each mini-batch of a pass, on tables with the objective's advantages.

        If no rewards were recorded, these are the recorded advantages.

        Raises:
            BatchError: the tables lack rewards, or columns that the controllers read.
        """
        found: list[list[Phase]] = [[] for _ in batches]
        first = batches[0][0]
        for i, part in enumerate(self.objective.phases):
            updates = [recorded(batch, i) for batch in batches]
            tables = [update.table for update in updates]
            if all(table.rewards is not None for table in tables):
                tables = [table.replace(advantages=None) for table in tables]
            tables = self.objective.with_advantages(tables)
            if i == 0 and self.objective.controllers == first.objective.controllers:
                self.state = dict(first.state)
            elif i == 0 and self._step != first.step:  # a further pass is no further rollout
                self.state = self.objective.observe(tables, self.state)
            self._step = first.step
            for phases, table, update in zip(found, tables, updates, strict=True):
                number = update.state.get("update", 0)
                phases.append((part, table, {**self.state, "update": number}))
        return found


def reason(error: BatchError, table: TokenBatch, reads: Iterable[str]) -> Message:
    """Why something cannot be replayed on a table, and what to type so that a run records it.

    Args:
        error: of the plan.
        table: of the first mini-batch.
        reads: the columns that it reads.
    """
    for name, penalty in (("ref", "kl"), ("proxy", "proxy_kl")):
        column = f"{name}_logprobs"
        if column in reads and getattr(table, column) is None:
            penalties = Setting("objective.penalties", f"[{{kind: {penalty}, coefficient: 0}}]")
            return Message(f"the run did not record {column}; use ", penalties, " to record them")
    gaps = unscored(table)
    if gaps and gaps == len(table):
        return Message("no log-probs were recorded: ", error)
    return UNSCORED if gaps else error.message


def unscored(table: TokenBatch) -> int:
    """The number of tokens of decided responses without a log-prob."""
    return int((table.logprobs.isnan() & table.decided).sum())


TOP = 0.01
"""The share of the tokens whose part of the gradient is measured."""
_SIMILAR = ("weights", "gradients")
_PARTS = ("gradient_up", "gradient_top", "gradient_spurious")


class Tallies(defaultdict[tuple[Any, ...], defaultdict[str, float]]):
    """Sums over tokens by their name, of objectives (name, None), of rules (name, swept value) and
    of pairs (name, name)."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(float))

    def add(self, key: tuple[Any, ...], columns: Mapping[str, torch.Tensor]) -> None:
        """Add columns [N] of tokens."""
        for name, column in columns.items():
            self[key][name] += float(column.double().sum())

    def forget(self, name: str) -> None:
        """Remove an objective or a rule that cannot be replayed to the end."""
        for key in [key for key in self if name in key]:
            del self[key]

    def add_touched(
        self,
        key: tuple[Any, ...],
        touched: torch.Tensor,
        spurious: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Add what the touched or selected tokens are, and what they carry.

        Args:
            key: of an objective or a rule.
            touched: bool [N].
            spurious: 1, 0 or NaN where nobody judged, [N].
            gradient: the norm of each token's gradient if none is dropped, [N].
        """
        columns = {
            "tokens": torch.ones_like(touched),
            "touched": touched,
            "judged": touched & ~spurious.isnan(),
            "caught": touched & (spurious == 1),
            "spurious": spurious == 1,
            "free": gradient,
            "carried": torch.where(touched, gradient, 0.0),
        }
        self.add(key, columns)

    def add_planned(self, name: str, planned: Planned, spurious: torch.Tensor) -> None:
        """Add what an objective does to tokens."""
        self.add_touched((name, None), planned.effect >= 0, spurious, planned.free)
        norms = planned.gradient.abs()
        columns = {
            "kept": planned.weights != 0,
            **{effect: planned.effect == code for code, effect in enumerate(EFFECTS)},
            "equal": planned.equal,
            "gradient": norms,
            "gradient_up": planned.gradient.clamp(min=0),
            "gradient_top": norms.topk(math.ceil(TOP * len(norms))).values,
            "gradient_spurious": torch.where(spurious == 1, norms, 0.0),
        }
        self.add((name, None), columns)

    def add_pairs(
        self, touched: Mapping[str, torch.Tensor], planned: Mapping[str, Planned]
    ) -> None:
        """Add what each two have in common.

        Args:
            touched: the tokens that each touches or selects, bool [N].
            planned: the results of objectives.
        """
        vectors = {
            name: {"weights": _centred(each.weights), "gradients": each.gradient.double()}
            for name, each in planned.items()
        }
        for a, b in combinations(touched, 2):
            both, either = touched[a] & touched[b], touched[a] | touched[b]
            self.add((a, b), {"both": both, "either": either})
            for what in _SIMILAR if {a, b} <= planned.keys() else ():
                x, y = vectors[a][what], vectors[b][what]
                size = (x @ x * (y @ y)).sqrt()
                if size != 0:  # also NaN
                    cosine = {what: x @ y / size, f"updates {what}": torch.ones(())}
                    self.add((a, b), cosine)

    # Rows of the results.

    def chosen(self, swept: bool) -> list[dict[str, Any]]:
        """One row for each objective and rule, or for each swept value of a rule."""
        rows = []
        for (name, value), tally in self.items():
            if isinstance(value, str) or (value is None) == swept:
                continue
            row = {"name": name, "value": value} if swept else {"name": name}
            row |= {"touched": tally["touched"]}
            row |= {name: _share(tally, *sums) for name, (_, *sums) in SHARES.items()}
            if not swept:
                row |= {each: tally.get(each, math.nan) for each in ("kept", *EFFECTS)}
                base = self[RECORDED, None].get("gradient") or math.nan
                row["gradient"] = tally.get("gradient", math.nan) / base
                row |= {part: _share(tally, part, "gradient") for part in _PARTS}
                if not tally["spurious"]:  # nobody judged, or there is none
                    row["gradient_spurious"] = math.nan
            rows.append(row)
        return rows

    def pairs(self) -> list[dict[str, Any]]:
        """One row for each pair."""
        rows = []
        for (a, b), tally in self.items():
            if isinstance(b, str):
                row = {"first": a, "second": b, "overlap": _share(tally, "both", "either")}
                means = {what: _share(tally, what, f"updates {what}") for what in _SIMILAR}
                rows.append(row | means)
        return rows


def _share(tally: Mapping[str, float], part: str, whole: str) -> float:
    """Σ part / Σ whole; nan if the whole is 0."""
    return tally[part] / tally[whole] if tally[whole] else math.nan


def _centred(weights: torch.Tensor) -> torch.Tensor:
    """Weights minus their mean, float64; exactly 0 if they are equal but for rounding."""
    centred = weights.double() - weights.double().mean()
    equal = not len(weights) or centred.abs().amax() <= 1e-6 * weights.abs().amax()
    return torch.zeros_like(centred) if equal else centred
