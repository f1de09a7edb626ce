"""Whole training runs, ours beside TRL's GRPOTrainer: samples per second, and the same learning.

Both get the same policy folder, the same prompts in the same order, the same reward function, the
same objective (DAPO's loss) and transformers' model, each in a process of its own, ours and TRL's
in turn. Each draws responses in its own way: ours in its own loop over the model, TRL's with
`generate`. `trainer_work` says what the work is, `trainer_ours` and `trl_trainer` do it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean, median, stdev
from typing import Any

from rlobj.benchmarking import processes
from rlobj.benchmarking.figures import COLOURS, tidy
from rlobj.benchmarking.peer_heads import INSTALL
from rlobj.benchmarking.tables import Cell, Column, Finding, Progress, Table, silent
from rlobj.benchmarking.trainer_work import MEDIAN, Asked
from rlobj.config.run_config import TrainingConfig

__all__ = ["Curves", "Measured", "draw", "findings", "measure", "table"]

OURS, TRL = "rlobj", "TRL GRPOTrainer"
MODULES = {OURS: "rlobj.benchmarking.trainer_ours", TRL: "rlobj.benchmarking.trl_trainer"}
AIMS = {"equal": 1.3, "skewed": 2.0}
"""How many times TRL's samples per second are aimed at."""
UNITS = {OURS: "tokens", TRL: "responses"}
"""That a micro-batch is counted in."""
SAMPLES = {"equal": 64, "skewed": 64, "learning": 256}
WINDOW = 10
"""Steps that a reward is averaged over."""

COLUMNS = (
    Column("work", "responses"),
    Column("side", "trainer"),
    Column("micro_batch", "micro-batch"),
    Column("samples", "samples/s", "number"),
    Column("tokens", "tokens/s", "number"),
    Column("seconds", "step s", "seconds"),
    Column("rollout", "of it rollout s", "seconds"),
    Column("update", "update s", "seconds"),
    Column("mib", "peak MiB", "mib"),
    Column("ratio", "rlobj's speed over it", "ratio"),
    Column("update_ratio", "in the update", "ratio"),
)
READING = (
    "CPU seconds of a step at one thread. The rollout is drawing and grading responses; the update "
    "is all the rest of the step, logging included. rlobj draws in its own loop over the "
    "transformers model, one prefill for each prompt and finished rows dropped; TRL draws with "
    "transformers' generate. Peak memory is that above the loaded policy. "
    "Each side draws its own responses, so skewed lengths differ: tokens/s allows for that. "
    "The last two columns say how many times as fast rlobj is: medians over rounds of both sides, "
    "run in turn."
)


@dataclass(frozen=True)
class Measured:
    """What one process measured.

    Attributes:
        side: the trainer.
        asked: the work.
        runs: for each seed its steps and its peak memory in MiB.
    """

    side: str
    asked: Asked
    runs: Sequence[Mapping[str, Any]]

    def per_step(self, name: str) -> float:
        """The mean over steps, the first of each run left out: it warms up."""
        return mean(step[name] for run in self.runs for step in run["steps"][1:])

    @property
    def update(self) -> float:
        """CPU seconds of a step's update."""
        return self.per_step("seconds") - self.per_step("rollout")


def measure(*, quick: bool, rounds: int, progress: Progress = silent) -> Table:
    """Ours and, where it is installed, TRL's trainer on three kinds of work.

    Args:
        quick: few steps, shorter skewed lengths, and one choice of TRL's micro-batches.
        rounds: processes for each measurement of speed; learning is measured once.
        progress: told of each process.
    """
    there = importlib.util.find_spec("trl") is not None
    todo = [
        (side, asked)
        for turn in range(rounds)
        for side, asked in _questions(quick, turn)
        if (there or side == OURS) and not (turn and asked.work == "learning")
    ]
    found = []
    for place, (side, asked) in enumerate(todo):
        progress(f"{asked.work}, {side}", place, len(todo))
        found.append(Measured(side, asked, processes.ask(MODULES[side], asdict(asked))))
    return table(found, rounds)


def _questions(quick: bool, turn: int) -> list[tuple[str, Asked]]:
    """Ours and TRL's in turn; TRL's also with other micro-batches, to find its best.

    Each turn has a seed of its own, so that rounds differ in the lengths that were drawn as well.
    """
    equal, skewed = ((64,), (16,)) if quick else ((64, 32), (16, 64, 32, 8))
    length = MEDIAN / 2 if quick else MEDIAN
    steps, seeds = (60, (0, 1)) if quick else (100, (0, 1, 2))
    tokens = TrainingConfig().micro_batch_tokens
    asked = []
    for work, count, choices in (("equal", 4 if quick else 6, equal), ("skewed", 8, skewed)):
        timed = partial(Asked, work, count, seeds=(turn,), median=length)
        asked.append((OURS, timed(tokens)))
        asked += [(TRL, timed(rows)) for rows in choices]
    learning = partial(Asked, "learning", steps, seeds=seeds)
    return [*asked, (OURS, learning(tokens)), (TRL, learning(SAMPLES["learning"]))]


# What was measured, as a table.


def table(found: Sequence[Measured], rounds: int = 1) -> Table:
    """The rows and findings of some measurements.

    Args:
        found: in the order in which they were made.
        rounds: as asked for.
    """
    rows = tuple(row for work in SAMPLES for row in _rows(work, found))
    counted = {each.asked.work: sum(len(r["steps"]) - 1 for r in each.runs) for each in found}
    return Table(
        name="trainer",
        title="Whole training steps, beside TRL's GRPOTrainer",
        reading=READING,
        columns=COLUMNS,
        rows=rows,
        findings=tuple(findings(rows, found, rounds)),
        settings=(
            ("rounds", rounds),
            ("steps counted in each", ", ".join(f"{k} {n}" for k, n in counted.items())),
            ("arithmetic", "float32"),
            ("evaluation, checkpoints and tables of samples", "off"),
            ("log", "every step"),
        ),
    )


def _rows(work: str, found: Sequence[Measured]) -> list[dict[str, Cell]]:
    """Ours, then TRL's by micro-batch, the fastest first."""
    ours = [each for each in found if (each.asked.work, each.side) == (work, OURS)]
    theirs: dict[int, list[Measured]] = {}
    for each in found:
        if (each.asked.work, each.side) == (work, TRL):
            theirs.setdefault(each.asked.micro_batch, []).append(each)
    rows = [_row(ours)] if ours else []
    compared = [_row(rounds, ours) for rounds in theirs.values()]
    return rows + sorted(compared, key=lambda row: -float(row["samples"] or 0))


def _row(rounds: Sequence[Measured], ours: Sequence[Measured] = ()) -> dict[str, Cell]:
    """Medians over rounds; ratios are of processes that ran side by side."""
    side, asked = rounds[0].side, rounds[0].asked
    work, samples = asked.work, SAMPLES[asked.work]
    pairs = list(zip(rounds, ours, strict=False))
    row: dict[str, Cell] = {
        "work": _described(asked),
        "side": side,
        "micro_batch": f"{asked.micro_batch:,} {UNITS[side]}",
        "samples": median(samples / each.per_step("seconds") for each in rounds),
        "tokens": median(
            samples * each.per_step("length") / each.per_step("seconds") for each in rounds
        ),
        "seconds": median(each.per_step("seconds") for each in rounds),
        "rollout": median(each.per_step("rollout") for each in rounds),
        "update": median(each.update for each in rounds),
        "mib": median(max(run["mib"] for run in each.runs) for each in rounds),
        "length": median(each.per_step("length") for each in rounds),
        "kind": work,
    }
    if pairs:
        ratios = [a.per_step("seconds") / b.per_step("seconds") for a, b in pairs]
        row |= {"ratio": median(ratios), "least_ratio": min(ratios), "most_ratio": max(ratios)}
        row["rollout_ratio"] = median(
            a.per_step("rollout") / b.per_step("rollout") for a, b in pairs
        )
        row["update_ratio"] = median(a.update / b.update for a, b in pairs)
        tokens = [a.per_step("length") / b.per_step("length") for a, b in pairs]
        row["token_ratio"] = median(
            ratio / more for ratio, more in zip(ratios, tokens, strict=True)
        )
    if work == "learning":
        curves = [smoothed([step["reward"] for step in run["steps"]]) for run in rounds[0].runs]
        row["curve"] = " ".join(f"{mean(step):.4f}" for step in zip(*curves, strict=True))
    return row


def _described(asked: Asked) -> str:
    """The responses of a work."""
    if asked.work == "learning":
        return "learning: addition, 2 or 3 tokens"
    lengths = asked.lengths
    if lengths.median is None:
        return f"equal lengths: {lengths.longest} tokens"
    return (
        f"skewed lengths: lognormal, median {lengths.median:.0f}, sigma {lengths.sigma}, "
        f"up to {lengths.longest}"
    )


def smoothed(values: Sequence[float]) -> list[float]:
    """The mean of each value and those before it, `WINDOW` at most."""
    return [mean(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values))]


# What the numbers say.


@dataclass(frozen=True)
class Curves:
    """How far reward curves lie apart, in reward, each smoothed and averaged over its steps.

    Attributes:
        between: |ours − TRL's| with the same prompts, for each seed.
        within: |one seed − another| of the same trainer, for each pair of seeds.
        gain: by how much the reward rises, of each side's mean curve.
    """

    between: tuple[float, ...]
    within: tuple[float, ...]
    gain: tuple[float, float]

    @classmethod
    def of(cls, ours: Measured, theirs: Measured) -> Curves:
        """From a run of each seed by both trainers."""
        sides = [
            [smoothed([step["reward"] for step in run["steps"]]) for run in each.runs]
            for each in (ours, theirs)
        ]
        pairs = [(side[i], side[j]) for side in sides for i in range(len(side)) for j in range(i)]
        means = [[mean(step) for step in zip(*side, strict=True)] for side in sides]
        return cls(
            between=tuple(_apart(a, b) for a, b in zip(*sides, strict=True)),
            within=tuple(_apart(a, b) for a, b in pairs),
            gain=(means[0][-1] - means[0][0], means[1][-1] - means[1][0]),
        )

    def finding(self) -> Finding:
        """In words, with the bound: two trainers differ no more than two seeds of one do."""
        spread = f" ± {stdev(self.between):.3f}" if len(self.between) > 1 else ""
        text = (
            f"The reward rises by {self.gain[0]:.3f} with rlobj and by {self.gain[1]:.3f} with "
            f"TRL; with the same prompts the two curves are {mean(self.between):.3f}{spread} "
            f"apart (mean over steps, then over {len(self.between)} seeds)"
        )
        if not self.within:
            return Finding(text + ".")
        bound = mean(self.within)
        within = mean(self.between) <= 1.5 * bound
        verdict = "within" if within else "beyond"
        bounded = f"{verdict} 1.5x of the {bound:.3f} between two seeds of one trainer"
        return Finding(f"{text}, {bounded}.", within)


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return mean(abs(a - b) for a, b in zip(one, other, strict=True))


def findings(
    rows: Sequence[Mapping[str, Cell]], found: Sequence[Measured], rounds: int
) -> list[Finding]:
    """One for each aim, and one for the curves."""
    if not any(each.side == TRL for each in found):
        return [Finding(f"Not installed: {TRL}. To measure: {INSTALL['trl']}")]
    told = []
    for work, aim in AIMS.items():
        best = next((r for r in rows if r["kind"] == work and r["side"] == TRL), None)
        if best is None or best.get("ratio") is None:
            continue
        tried = sum((r["kind"], r["side"]) == (work, TRL) for r in rows)
        told.append(_speed(work, aim, best, tried, rounds))
    learned = {each.side: each for each in found if each.asked.work == "learning"}
    if len(learned) == 2:
        told.append(Curves.of(learned[OURS], learned[TRL]).finding())
    return told


def _speed(work: str, aim: float, best: Mapping[str, Cell], tried: int, rounds: int) -> Finding:
    """How many times TRL's speed; one round is no measurement of it."""
    choice = f"the best of {tried} tried" if tried > 1 else "the only one tried"
    ratio, least, most, rollout, update, tokens = (
        float(best[f"{name}ratio"] or 0)
        for name in ("", "least_", "most_", "rollout_", "update_", "token_")
    )
    text = (
        f"At {work} lengths rlobj trains {ratio:.2f}x the samples per second of TRL with "
        f"micro-batches of {best['micro_batch']}, {choice}: {rollout:.2f}x in the rollout, "
        f"{update:.2f}x in the update, {tokens:.2f}x in tokens per second; aim {aim}x"
    )
    if rounds == 1:
        return Finding(f"{text}. One round: take more with --rounds.")
    verdict = "reached" if ratio >= aim else "missed"
    return Finding(
        f"{text}: {verdict} ({least:.2f}x to {most:.2f}x in {rounds} rounds).", ratio >= aim
    )


# A picture of it.


def draw(figure: Any, table: Table) -> None:
    """The reward of both on one axis; the time of a step by part on the other."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
    colours = {OURS: COLOURS[0], TRL: COLOURS[1]}
    for row in table.rows:
        if row.get("curve"):
            side, values = str(row["side"]), [float(x) for x in str(row["curve"]).split()]
            left.plot(range(1, len(values) + 1), values, color=colours[side], label=side)
    left.set_xlabel("step")
    left.set_ylabel(f"reward, mean of {WINDOW} steps and all seeds")
    left.legend(frameon=False)
    shown: dict[tuple[str, str], Mapping[str, Cell]] = {}
    for row in table.rows:  # of TRL's micro-batches the best comes first
        shown.setdefault((str(row["kind"]), str(row["side"])), row)
    slowest = {kind: max(_time(r) for (k, _), r in shown.items() if k == kind) for kind, _ in shown}
    for place, ((kind, side), row) in enumerate(shown.items()):
        rollout, whole = float(row["rollout"] or 0) / slowest[kind], _time(row) / slowest[kind]
        right.barh(place, rollout, color=colours[side], alpha=0.45)
        right.barh(place, whole - rollout, left=rollout, color=colours[side])
        right.text(whole + 0.01, place, f"{_time(row):.2f} s", va="center", fontsize=8)
    right.set_yticks(range(len(shown)), [f"{kind}\n{side.split()[0]}" for kind, side in shown])
    right.set_xlim(0, 1.15)
    right.set_xlabel("CPU time of a step over the slower trainer's\nrollout (pale), update")
    right.invert_yaxis()
    for axis in (left, right):
        tidy(axis)
    figure.suptitle("Whole training steps, beside TRL's GRPOTrainer")


def _time(row: Mapping[str, Cell]) -> float:
    return float(row["seconds"] or 0)
