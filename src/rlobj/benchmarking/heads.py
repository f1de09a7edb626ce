"""Heads side by side: from hidden states to log-probs and entropies, forward and backward.

CPU seconds of one thread and peak memory above inputs and outputs, float32, each method in a
process of its own, one after another for heads of one size. Where there is a CUDA device, they are
measured on it as well (`device_heads`).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from rlobj.base.errors import RunError
from rlobj.benchmarking import device_heads
from rlobj.benchmarking.figures import COLOURS, plain_ticks, tidy
from rlobj.benchmarking.head_findings import (
    Row,
    cpu_findings,
    gpu_findings,
    memory_ratio,
    ratio,
)
from rlobj.benchmarking.head_methods import METHODS, MODES, OURS, PRODUCTS, Method, Point, once
from rlobj.benchmarking.peer_heads import PEERS, how_to_install, installed
from rlobj.benchmarking.processes import ask, peak_above, return_freed_memory
from rlobj.benchmarking.tables import Cell, Column, Progress, Table, silent

__all__ = ["answer", "draw", "grid", "measure", "run", "table"]

SECONDS = 4.0
"""A process repeats its measurement until so much CPU time has passed, three times at most."""

OVER = "×\N{NO-BREAK SPACE}ours"
COLUMNS = (
    Column("head", "head"),
    Column("method", "method"),
    Column("forward_seconds", "forward s", "seconds"),
    Column("forward_time", OVER, "ratio"),
    Column("forward_mib", "MiB", "mib"),
    Column("backward_seconds", "both s", "seconds"),
    Column("backward_time", OVER, "ratio"),
    Column("backward_mib", "MiB", "mib"),
    Column("backward_memory", OVER, "ratio"),
)
READING = (
    "From hidden states [N, H] and output embeddings [V, H] to what is asked. s: CPU seconds of "
    "one thread (a GPU's own where it says GPU); both: forward and backward. MiB: what is needed "
    "at once above inputs and outputs. × ours: 2x takes twice what rlobj takes. The bare products "
    "are the multiplications alone, with nothing done to the logits. The min-p proxy is rlobj's "
    "own: for it the others' numbers are those of their head and of a plain proxy that makes all "
    "logits at once."
)


def grid(quick: bool = False) -> list[Point]:
    """H 256, 1024; V 32k, 152k; N 512, 2048. Quick: V 32k and N 512 alone.

    The proxy carries no gradient: with it there is a forward pass alone.
    """
    vocabularies = (32_000,) if quick else (32_000, 151_936)
    counts = (512,) if quick else (512, 2048)
    return [
        Point(rows, width, vocabulary, mode, backward)
        for width, vocabulary, rows in itertools.product((256, 1024), vocabularies, counts)
        for mode in MODES
        for backward in ((False,) if mode == "proxy" else (False, True))
    ]


def measure(*, quick: bool, rounds: int, progress: Progress = silent) -> Table:
    """Ours, plain autograd, the bare products, and the heads of other libraries that are here."""
    points = grid(quick)
    if torch.cuda.is_available():
        points += device_heads.grid(quick)
    missing = [name for name in PEERS if not installed(name)]
    names = [*METHODS, *(name for name in PEERS if name not in missing)]
    rows = run(points, names, rounds=rounds, progress=progress)
    return table(rows, missing, rounds)


def run(
    points: Iterable[Point],
    names: Sequence[str] = tuple(METHODS),
    *,
    rounds: int = 1,
    progress: Progress = silent,
) -> list[Row]:
    """Every method at every point, the methods one after another for points of one size.

    Args:
        points: where to measure.
        names: of the methods.
        rounds: how many processes each measurement of time gets.
        progress: told of each process.

    Raises:
        RunError: a method of rlobj's failed; another library's is a skipped row.
    """
    sizes: dict[str, list[Point]] = {}
    for point in points:
        sizes.setdefault(point.size(), []).append(point)
    work = [
        (size, turn, name)
        for turn in range(rounds)  # outermost: one that is stopped has all sizes in fewer rounds
        for size, same in sizes.items()
        for name in names
        if same[0].device == "cuda" or name not in PEERS or not PEERS[name].gpu_only
    ]
    answers: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}
    for done, (size, turn, name) in enumerate(work):
        progress(f"{name} at {size}", done, len(work))
        answers.setdefault((size, name), []).append(_asked(name, sizes[size], memory=turn == 0))
    progress("", len(work), len(work))
    return [
        _row(name, point, [answer[index] for answer in answers[size, name]])
        for size, same in sizes.items()
        for index, point in enumerate(same)
        for name in names
        if (size, name) in answers
    ]


def _asked(name: str, points: Sequence[Point], *, memory: bool) -> list[dict[str, Any]]:
    """The answers on points of one size of a fresh process."""
    question = {"name": name, "points": [asdict(point) for point in points], "memory": memory}
    try:
        return ask(__spec__.name, question)
    except RunError as error:
        if name in METHODS:
            raise
        reason = str(error).strip().splitlines()[-1]
        return [{"skipped": f"failed: {reason}"} for _ in points]


def _row(name: str, point: Point, answers: Sequence[dict[str, Any]]) -> Row:
    for each in answers:
        if "skipped" in each:
            return Row(name, point, skipped=each["skipped"])
    return Row(name, point, tuple(each["seconds"] for each in answers), answers[0].get("mib"))


def answer(method: Method, points: Sequence[Point], *, memory: bool) -> list[dict[str, Any]]:
    """Least CPU seconds and peak MiB of points of one size, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = points[0]
    hidden = torch.randn(size.rows, size.width)
    weight = torch.randn(size.vocabulary, size.width) / size.width**0.5
    targets = torch.randint(size.vocabulary, (size.rows,))
    answers: list[dict[str, Any]] = []
    for point in points:
        try:
            once(method, hidden[:64], weight[:512], targets[:64] % 512, point)
        except (ImportError, NotImplementedError) as error:
            answers.append({"skipped": str(error)})
            continue
        times: list[float] = []
        while len(times) < 3 and sum(times) < SECONDS:
            start = time.process_time()
            once(method, hidden, weight, targets, point)
            times.append(time.process_time() - start)
        answers.append({"seconds": min(times)})
    if memory:
        for each, point in zip(answers, points, strict=True):
            if "seconds" in each:
                return_freed_memory()
                peak = peak_above(partial(once, method, hidden, weight, targets, point))
                outputs = (hidden.nbytes + weight.nbytes) / 2**20 if point.backward else 0.0
                each["mib"] = peak - outputs
    return answers


def table(rows: Sequence[Row], missing: Sequence[str], rounds: int) -> Table:
    """Forward and backward side by side, by what is asked, with what the numbers say.

    Args:
        rows: of `run`.
        missing: peers that are not installed.
        rounds: of the measurement.
    """
    by = {(row.method, row.point): row for row in rows}
    lines: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows:
        point, ours = row.point, by[OURS, row.point]
        head = f"{point.size()}: {MODES[point.mode]}"
        line = lines.setdefault((head, row.method), {"head": head, "method": row.method})
        line |= {"rows": point.rows, "width": point.width, "vocabulary": point.vocabulary}
        line |= {"mode": point.mode, "device": point.device}
        way = "backward" if point.backward else "forward"
        if row.skipped is not None:
            line[f"{way}_skipped"] = row.skipped
            continue
        line[f"{way}_seconds"] = min(row.seconds)
        line[f"{way}_time"] = ratio(row, ours)
        line[f"{way}_mib"] = row.mib
        if row.mib is not None:
            line[f"{way}_memory"] = memory_ratio(row, ours)
    for line in lines.values():
        if "forward_skipped" in line and "backward_seconds" not in line:
            line["skipped"] = line["forward_skipped"]
    absent: list[dict[str, Cell]] = [
        {"head": "not measured", "method": name, "skipped": "not installed"}
        for name in missing
        if not PEERS[name].gpu_only or any(row.point.device == "cuda" for row in rows)
    ]
    on_cpu = [row for row in rows if row.point.device == "cpu"]
    on_gpu = [row for row in rows if row.point.device == "cuda"]
    told = [*cpu_findings(on_cpu), *gpu_findings(on_gpu)]
    told += how_to_install([str(line["method"]) for line in absent])
    return Table(
        name="heads",
        title="Heads: from hidden states to log-probs and entropies",
        reading=READING,
        columns=COLUMNS,
        rows=(*lines.values(), *absent),
        findings=tuple(told),
        settings=(("rounds", rounds), ("dtype on the CPU", "float32"), ("threads", 1)),
    )


def draw(figure: Any, table: Table) -> None:
    """Time and memory of each method for log-prob and entropy, forward and backward."""
    rows = [row for row in table.rows if row.get("mode") == "both" and row.get("backward_seconds")]
    names = list(dict.fromkeys(str(row["method"]) for row in rows))
    heads = list(dict.fromkeys(str(row["head"]) for row in rows))
    ours = [name for name in names if name == OURS]
    others = [name for name in names if name not in (OURS, PRODUCTS)]

    def typical(name: str) -> float:
        times = sorted(float(r["backward_time"] or 0) for r in rows if r["method"] == name)
        return times[len(times) // 2]

    order = [*sorted(others, key=typical, reverse=True), *ours]
    order += [name for name in names if name == PRODUCTS]
    widths = list(dict.fromkeys(row["width"] for row in rows))  # a colour each
    sizes = list(dict.fromkeys((row["rows"], row["vocabulary"]) for row in rows))  # a sign each
    axes = figure.subplots(1, 2, sharey=True)
    panels = (("backward_time", "time over rlobj's"), ("backward_mib", "MiB above inputs, outputs"))
    for axis, (key, title) in zip(axes, panels, strict=True):
        for head in heads:
            size = next(r for r in rows if r["head"] == head)
            found = [r for r in rows if r["head"] == head and r.get(key) is not None]
            axis.scatter(
                [max(float(r[key] or 0), 0.1) for r in found],
                [order.index(str(r["method"])) for r in found],
                color=COLOURS[widths.index(size["width"]) % len(COLOURS)],
                marker="os^Dvp*h"[sizes.index((size["rows"], size["vocabulary"])) % 8],
                label=head.partition(":")[0],
                zorder=3,
            )
        axis.set_xscale("log")
        axis.set_xlabel(title)
        tidy(axis)
        plain_ticks(axis.xaxis)
        axis.axhspan(order.index(OURS) - 0.4, order.index(OURS) + 0.4, color="#e8f1f8", zorder=0)
    axes[0].axvline(1, color="black", linewidth=0.8)
    axes[0].set_yticks(range(len(order)), order)
    axes[0].set_ylim(-0.6, len(order) - 0.4)
    known = axes[0].get_legend_handles_labels()
    figure.legend(*known, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("Log-prob and entropy, forward and backward: less is better")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    every = {**METHODS, **{name: peer.head for name, peer in PEERS.items()}}
    places = [Point(**point) for point in asked["points"]]
    if places[0].device == "cuda":
        print(json.dumps(device_heads.answer(every[asked["name"]], places)))
    else:
        print(json.dumps(answer(every[asked["name"]], places, memory=asked["memory"])))
