"""How a step's time and memory grow: with tokens, vocabulary, group size, ranks.

One rollout of random responses is trained on by a small random policy, as in `step`. Two ranks are
two processes with DistributedDataParallel, started as `rlobj train --processes 2` starts them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from rlobj.benchmarking import processes
from rlobj.benchmarking.figures import COLOURS
from rlobj.benchmarking.rollouts import (
    PROMPT,
    RolloutTrainer,
    configure,
    lognormal_lengths,
    make_policy,
    make_rollout,
    measured,
    share_of_rank,
)
from rlobj.benchmarking.tables import Cell, Column, Finding, Progress, Table, printed, silent
from rlobj.training.parallel.launcher import launch
from rlobj.training.rollouts.collector import Rollout

__all__ = ["AXES", "child", "draw", "measure", "points", "to_table"]

MODULE = "rlobj.benchmarking.scaling"
WIDTH, LENGTH, GROUP, VOCABULARY, BUDGET, SIGMA = 128, 112, 8, 1024, 1024, 0.8
"""The policy's width; tokens of a response, of 128 with its prompt; of a micro-batch."""
BALANCE = 1.01
"""Tokens of the fuller of two ranks over the mean's: what is aimed at."""
LEAST_SECONDS = 1.0
"""CPU seconds for which a point is measured at least in each round."""

AXES = {
    "tokens": "N, tokens",
    "vocabulary": "V, vocabulary",
    "group": "group size",
    "ranks": "ranks",
}
Point = dict[str, Any]


def points(quick: bool) -> dict[str, list[Point]]:
    """What is measured on each axis: `value`, responses, group size, vocabulary, ranks.

    Args:
        quick: a few of them.
    """
    sizes = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    vocabularies = (1_000, 32_000) if quick else (1_000, 8_000, 32_000, 151_936)
    groups = (4, 16, 64) if quick else (4, 8, 16, 32, 64)
    many = 64 if quick else 128
    return {
        "tokens": [_point(1024 * n, responses=8 * n) for n in sizes],
        "vocabulary": [_point(v, responses=8, vocabulary=v) for v in vocabularies],
        "group": [_point(g, responses=64, group=g) for g in groups],
        "ranks": [_point(n, responses=many, ranks=n, sigma=SIGMA) for n in (1, 2)],
    }


def _point(value: int, **changes: Any) -> Point:
    same = {"group": GROUP, "vocabulary": VOCABULARY, "ranks": 1, "sigma": 0.0}
    return {"value": value, **same, **changes}


@dataclass
class _Work:
    """A point, ready to be measured, and what was found there."""

    trainer: RolloutTrainer
    rollout: Rollout
    tokens: int
    mib: float = 0.0
    balance: float = 1.0
    rounds: list[float] = field(default_factory=list)

    def weigh(self) -> None:
        """The memory of the rank that needs most."""
        self.mib = max(self._ranks(processes.peak_above(partial(self.trainer.train, self.rollout))))

    def time(self, seconds: float) -> None:
        """One round: the slowest rank's median over at least so many CPU seconds."""
        times: list[float] = []
        while sum(times) < seconds:
            took, metrics = measured(partial(self.trainer.train, self.rollout))
            times.append(max(self._ranks(took)))
            self.balance = metrics["tokens/rank_balance"]
        self.rounds.append(median(times))

    def _ranks(self, number: float) -> list[float]:
        return self.trainer.comm.gather(number)


def child(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The measurements of some points.

    Args:
        question: `points`; `rounds`.
    """
    processes.return_freed_memory()
    rounds, done = question["rounds"], []
    with contextlib.ExitStack() as stack:
        for point in question["points"]:
            done.append(_opened(point, stack))
            done[-1].weigh()
        processes.keep_freed_memory()
        for _ in range(rounds):  # in turn: what disturbs one round disturbs all points
            for work in done:
                work.time(LEAST_SECONDS / rounds)
    names = ("tokens", "rounds", "mib", "balance")
    return [{name: getattr(work, name) for name in names} for work in done]


def _opened(point: Point, stack: contextlib.ExitStack) -> _Work:
    vocabulary, group = point["vocabulary"], point["group"]
    lengths = lognormal_lengths(point["responses"], LENGTH, point["sigma"])
    config = configure("grpo", micro_batch_tokens=BUDGET)
    trainer = stack.enter_context(RolloutTrainer(config, make_policy(vocabulary, width=WIDTH)))
    few, many = (
        share_of_rank(
            make_rollout(some, group=size, vocabulary=vocabulary),
            trainer.comm.rank,
            trainer.comm.size,
        )
        for some, size in (([LENGTH] * 8, 4), (lengths, group))
    )
    trainer.train(few)  # what a first step sets up is there for good
    return _Work(trainer, many, sum(lengths) + PROMPT * len(lengths))


def measure(*, quick: bool, rounds: int, progress: Progress = silent) -> Table:
    """A step's time and memory along four axes.

    Args:
        quick: a few points of each.
        rounds: how often each is measured.
        progress: told of each axis.
    """
    along = points(quick)
    rows: list[dict[str, Any]] = []
    for done, (axis, some) in enumerate(along.items()):
        progress(AXES[axis], done, len(along))
        groups = [[point] for point in some] if axis == "ranks" else [some]
        found = [
            row
            for group in groups
            for row in processes.ask(MODULE, {"points": group, "rounds": rounds})
        ]
        for point, row in zip(some, found, strict=True):
            rows.append({"axis": axis, "value": point["value"], **row})
    settings = {
        "tokens of a response with its prompt": LENGTH + PROMPT,
        "sigma on ranks": SIGMA,
        "tokens of a micro-batch": BUDGET,
        "V": VOCABULARY,
        "group size": GROUP,
        "N on V, group size": f"{1024:,}, {8 * 1024:,}",
        "rounds": rounds,
    }
    return to_table(rows, settings)


def to_table(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Cell]) -> Table:
    """The table of some measurements, with what they say.

    Args:
        rows: of `child`, each with its `axis` and `value`.
        settings: what was measured with.
    """
    cells: list[dict[str, Cell]] = []
    for row in rows:
        seconds = median(row["rounds"])
        more = {"seconds": seconds, "rate": 1000 * seconds / row["tokens"]}
        kept = {key: value for key, value in row.items() if key != "rounds"}
        cells.append({**kept, "axis": AXES[row["axis"]], **more})
    return Table(
        name="scaling",
        title="The training step: how it grows",
        reading="CPU seconds of one rollout's training at one thread, and peak memory above what "
        "lies there between steps; on several ranks those of the rank with the most. Each axis "
        "changes one number and nothing else.",
        columns=(
            Column("axis", "axis"),
            Column("value", "value", "count"),
            Column("seconds", "CPU s", "seconds"),
            Column("rate", "s per 1k tokens", "seconds"),
            Column("mib", "MiB", "mib"),
            Column("balance", "rank balance", "number"),
        ),
        rows=tuple(cells),
        findings=_findings(cells),
        settings=tuple(settings.items()),
    )


def _findings(rows: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    along = {key: [row for row in rows if row["axis"] == title] for key, title in AXES.items()}
    tokens, vocabulary, group = (along[key] for key in ("tokens", "vocabulary", "group"))
    one, two = along["ranks"]
    bounded = [row for row in tokens if row["value"] >= 4 * BUDGET]
    first, last = bounded[0], bounded[-1]
    rates = [row["rate"] for row in tokens]
    grown = last["value"] / first["value"]
    told = (
        f"Time per token from N = {tokens[0]['value']:,} to {last['value']:,}: the slowest is "
        f"{max(rates) / min(rates):.2f} times the fastest (1 is linear growth).",
        f"Memory at N = {last['value']:,} over {first['value']:,}: {last['mib'] / first['mib']:.2f}"
        f" times, of {grown:.0f} times the tokens: micro-batches bound it, and what grows is "
        f"{2**20 * (last['mib'] - first['mib']) / (last['value'] - first['value']):.0f} bytes a "
        "token.",
        f"V = {vocabulary[-1]['value']:,} over {vocabulary[0]['value']:,}: "
        f"{_over(vocabulary, 'seconds'):.1f} times the time, {_over(vocabulary, 'mib'):.1f} times "
        f"the memory; that is {vocabulary[-1]['mib']:,.0f} MiB, where the gradient of the tied "
        f"embeddings is {_mib(WIDTH, vocabulary[-1]['value'])} and all logits would be "
        f"{_mib(vocabulary[-1]['tokens'], vocabulary[-1]['value'])}.",
        f"Group size {group[0]['value']} to {group[-1]['value']} at equal tokens: time within "
        f"{_range(group, 'seconds'):.2f} times, memory within {_range(group, 'mib'):.2f} times.",
    )
    ranks = (
        f"Two ranks: the slower one takes {two['seconds'] / one['seconds']:.1%} of one process's "
        f"CPU time (50% is ideal); tokens of the fuller over the mean's are {two['balance']:.4f} "
        f"(aimed at: at most {BALANCE})."
    )
    return (*map(Finding, told), Finding(ranks, two["balance"] <= BALANCE))


def _mib(rows: int, columns: int) -> str:
    """MiB of a float32 matrix."""
    return f"{rows * columns / 2**18:,.0f}"


def _over(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return rows[-1][name] / rows[0][name]


def _range(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    values = [row[name] for row in rows]
    return max(values) / min(values)


_SECONDS, _MIB, *_ = COLOURS


def draw(figure: Any, table: Table) -> None:
    """Time above memory, a column for each axis; logarithmic where a number grows more than 8x."""
    grid = figure.subplots(2, len(AXES), sharex="col", squeeze=False)
    for column, title in enumerate(AXES.values()):
        rows = [row for row in table.rows if row["axis"] == title]
        values = [float(row["value"] or 0) for row in rows]
        series = (("seconds", "CPU s", _SECONDS, "o"), ("mib", "peak MiB", _MIB, "s"))
        for line, (name, label, colour, marker) in enumerate(series):
            axes = grid[line, column]
            heights = [float(row[name] or 0) for row in rows]
            axes.plot(values, heights, color=colour, marker=marker, ms=5, lw=1.5)
            if max(heights) > 8 * min(heights) > 0:
                axes.set_yscale("log")
                axes.set_ylim(min(heights) / 1.5, 2 * max(heights))
            else:
                axes.set_ylim(0, 1.25 * max(heights))
            for end in (0, -1):
                place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
                text = printed(heights[end], "number")
                axes.annotate(text, (values[end], heights[end]), size="small", **place)
            axes.margins(x=0.15)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#dddddd", lw=0.6)
            if column == 0:
                axes.set_ylabel(label)
        if values[-1] > 8 * values[0]:
            axes.set_xscale("log", base=2)
        shown = values[:: 1 + len(values) // 6]
        axes.set_xticks(shown, [_short(value) for value in shown], size="small")
        axes.minorticks_off()
        axes.set_xlabel(title)
    figure.suptitle(table.title, x=0.01, ha="left")


def _short(value: float) -> str:
    """1024 as 1k, 151,936 as 152k."""
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1024:.0f}k" if value % 1024 == 0 else f"{value / 1000:.0f}k"


def main() -> None:
    """Answer, or where there are to be several ranks, start them."""
    question = json.loads(sys.argv[1])
    ranks = max(point["ranks"] for point in question["points"])
    if ranks > 1 and "RANK" not in os.environ:
        sys.exit(launch(sys.argv[1:], ranks, program=[sys.executable, "-m", MODULE]))
    logging.disable(logging.WARNING)
    answer = child(question)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
