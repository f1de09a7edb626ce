"""What `plan` costs on a large update: STARE-C2 with STAPO's filter, beside one torch.sort.

The objective takes three cuts (two by surprisal, one by entropy); a sort of one column is what a
single exact cut costs where it is done by sorting.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch

from rlobj.benchmarking.figures import COLOURS, plain_ticks, tidy
from rlobj.benchmarking.processes import ask, peak_mib, return_freed_memory
from rlobj.benchmarking.tables import Cell, Column, Finding, Progress, Table, silent
from rlobj.config.presets import load_preset
from rlobj.objectives.tokens import TokenBatch

__all__ = ["answer", "draw", "measure", "table"]

MILLIONS = (1, 2, 4, 8, 16, 32)
QUICK = (1, 4)
RESPONSE, GROUP = 4000, 8
"""Tokens of a response, responses of a group."""

COLUMNS = (
    Column("tokens", "tokens", "count"),
    Column("plan_seconds", "plan s", "seconds"),
    Column("plan_per_million", "s per 1M tokens", "seconds"),
    Column("plan_mib", "MiB above inputs", "mib"),
    Column("plan_bytes", "bytes a token", "number"),
    Column("sort_seconds", "sort s", "seconds"),
    Column("sort_mib", "sort MiB", "mib"),
    Column("over_sort", "plan over sort", "ratio"),
)


def measure(*, quick: bool, rounds: int, progress: Progress = silent) -> Table:
    """Seconds and memory of a plan and of a sort against the tokens of the update."""
    millions = QUICK if quick else MILLIONS
    work = [(m, what) for m in millions for _ in range(rounds) for what in ("plan", "sort")]
    answers: dict[tuple[int, str], list[Mapping[str, float]]] = {}
    for done, (count, what) in enumerate(work):
        progress(f"{what} of {count}M tokens", done, len(work))
        question = {"what": what, "tokens": count * 1_000_000}
        answers.setdefault((count, what), []).append(ask(__spec__.name, question))
    progress("", len(work), len(work))
    return table(answers, rounds)


def table(answers: Mapping[tuple[int, str], Sequence[Mapping[str, float]]], rounds: int) -> Table:
    """The table of answers by millions of tokens and `plan` or `sort`."""
    rows: list[dict[str, Cell]] = []
    for count in dict.fromkeys(count for count, _ in answers):
        plan, sort = (answers[count, what] for what in ("plan", "sort"))
        pairs = zip(plan, sort, strict=True)
        tokens = count * 1_000_000
        seconds, mib = (min(each[key] for each in plan) for key in ("seconds", "mib"))
        rows.append(
            {
                "tokens": tokens,
                "plan_seconds": seconds,
                "plan_per_million": seconds / count,
                "plan_mib": mib,
                "plan_bytes": mib * 2**20 / tokens,
                "sort_seconds": min(each["seconds"] for each in sort),
                "sort_mib": min(each["mib"] for each in sort),
                "over_sort": median(a["seconds"] / b["seconds"] for a, b in pairs),
            }
        )
    return Table(
        name="plan",
        title="Plan: selecting over the whole update",
        reading="CPU seconds of one thread and peak memory for three exact cuts over all tokens of "
        "an update (STARE-C2 with STAPO's filter), beside one torch.sort of one float32 column "
        "of 4 bytes a token.",
        columns=COLUMNS,
        rows=tuple(rows),
        findings=tuple(_findings(rows)),
        settings=(
            ("rounds", rounds),
            ("tokens a response", RESPONSE),
            ("responses a group", GROUP),
        ),
    )


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Whether time and memory grow no faster than the tokens, and both beside the sort."""
    first, last = rows[0], rows[-1]
    growth = last["plan_per_million"] / first["plan_per_million"]
    sizes = f"from {first['tokens'] / 1e6:.0f}M to {last['tokens'] / 1e6:.0f}M tokens"
    ratios = sorted(row["over_sort"] for row in rows)
    ends = dict.fromkeys(f"{value:.1f}x" for value in (ratios[0], ratios[-1]))
    most = max(row["plan_bytes"] for row in rows)
    return [
        Finding(
            f"Seconds per million tokens {sizes}: {first['plan_per_million']:.2f} to "
            f"{last['plan_per_million']:.2f}, {growth:.2f}x (aim: flat, at most 1.25x).",
            reached=growth <= 1.25,
        ),
        Finding(
            f"Memory: {last['plan_bytes']:.0f} bytes a token at {last['tokens'] / 1e6:.0f}M "
            f"tokens, {most:.0f} at most."
        ),
        Finding(f"Three cuts take {' to '.join(ends)} the time of one sort."),
    ]


def draw(figure: Any, table: Table) -> None:
    """Seconds and MiB against tokens, on logarithmic axes."""
    tokens = [float(row["tokens"] or 0) / 1e6 for row in table.rows]
    axes = figure.subplots(1, 2)
    for axis, key, title in zip(axes, ("seconds", "mib"), ("CPU seconds", "MiB"), strict=True):
        for what, name, marker, colour in (
            ("plan", "plan, three cuts", "o", COLOURS[0]),
            ("sort", "one torch.sort", "s", COLOURS[1]),
        ):
            values = [float(row[f"{what}_{key}"] or 0) for row in table.rows]
            axis.plot(tokens, values, marker=marker, color=colour, label=name)
            axis.annotate(
                f"{values[-1]:,.2f} s" if key == "seconds" else f"{values[-1]:,.0f} MiB",
                (tokens[-1], values[-1]),
                xytext=(-6, 8),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.margins(y=0.15)
        axis.set_xlabel("million tokens in the update")
        axis.set_title(title)
        plain_ticks(axis.yaxis)
        axis.set_xticks(tokens, [f"{count:g}" for count in tokens])
        axis.minorticks_off()
        tidy(axis)
    axes[0].legend()
    figure.suptitle("Selecting over the whole update: less is better")


def make_batch(tokens: int) -> TokenBatch:
    """Float32 columns of responses in groups."""
    generator = torch.Generator().manual_seed(0)
    responses = tokens // RESPONSE
    logprobs = -torch.empty(tokens).exponential_(1.0, generator=generator)
    entropy = torch.empty(tokens).exponential_(2.0, generator=generator)
    return TokenBatch(
        lengths=torch.full((responses,), RESPONSE),
        groups=torch.arange(responses) // GROUP,
        rewards=(torch.rand(responses, generator=generator) < 0.5).double(),
        logprobs=logprobs,
        entropy=entropy,
        old_entropy=entropy,
    )


def answer(what: str, tokens: int) -> dict[str, float]:
    """CPU seconds, and MiB above the inputs, of a `plan` or a `sort` in this process."""
    torch.set_num_threads(1)
    batch = make_batch(tokens)
    stapo = load_preset("stapo").objective.drop_rule
    assert stapo is not None
    assert batch.entropy is not None
    objective = load_preset("stare-c2").objective.drop(stapo)
    state = {**objective.init(), "W": {"value": 1.1}, "M": {"value": 0.9}}
    parts = batch.split(GROUP)
    return_freed_memory()
    before = peak_mib(reset=True)
    start = time.process_time()
    if what == "plan":
        objective.plan(parts, state)
    else:
        batch.entropy.sort()
    return {"seconds": time.process_time() - start, "mib": peak_mib() - before}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(answer(asked["what"], asked["tokens"])))
