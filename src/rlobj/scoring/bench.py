"""How fast heads are and what memory they take, each in a process of its own: CPU time, not wall.

    run(grid(quick=True)) -> Rows of `rlobj`, of plain autograd and of the bare products

`benchmarks/heads.py` adds other libraries' heads to METHODS and draws the tables.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rlobj.errors import RunError
from rlobj.scoring.tokens import score_tokens

Mode = Literal["logprob", "both", "proxy"]
Method = Callable[[Tensor, Tensor, Tensor, Mode], tuple[Tensor, Tensor | None]]

MODES: tuple[Mode, ...] = ("logprob", "both", "proxy")
"""Log-prob alone; with the entropy, differentiated through both; with the min-p proxy on top."""

MIN_P = 0.02
SECONDS = 4.0
"""A process repeats its measurement until so much CPU time has passed, three times at most."""


@dataclass(frozen=True)
class Point:
    """One head: N rows, H wide, over V tokens, float32; and what is asked of it."""

    rows: int
    width: int
    vocabulary: int
    mode: Mode
    backward: bool


@dataclass(frozen=True)
class Row:
    """One method at one point.

    Attributes:
        method: its name.
        point: the head.
        seconds: CPU seconds at one thread, the least of each round; empty where skipped.
        mib: peak memory above inputs and outputs.
        skipped: why there is no measurement.
    """

    method: str
    point: Point
    seconds: tuple[float, ...] = ()
    mib: float | None = None
    skipped: str | None = None


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


def ours(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """`score_tokens`."""
    scores = score_tokens(
        hidden,
        weight,
        targets,
        entropy=mode != "logprob",
        min_p=MIN_P if mode == "proxy" else None,
    )
    return scores.logprobs, scores.entropy


def autograd(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """All logits, log_softmax, and torch's own gradient."""
    logits = hidden @ weight.T
    logprobs = torch.log_softmax(logits, -1)
    entropy = None if mode == "logprob" else -(logprobs.exp() * logprobs).sum(-1)
    if mode == "proxy":
        filtered_logprobs(logits.detach(), targets)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def filtered_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """The min-p proxy from all logits: what a head without one has to add."""
    cut = logits.amax(-1, keepdim=True) + torch.tensor(MIN_P).log()
    logprobs = torch.log_softmax(logits.masked_fill(logits < cut, -torch.inf), -1)
    return logprobs.gather(1, targets[:, None])[:, 0]


class _Products(torch.autograd.Function):
    """One product forward; the same again and two more backward: 2NHV and 8NHV operations."""

    @staticmethod
    def forward(ctx, hidden, weight, columns):
        ctx.save_for_backward(hidden, weight)
        ctx.columns = columns
        tile = hidden.new_empty(len(hidden), columns)
        for part in weight.split(columns):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
        return hidden[:, 0].clone()

    @staticmethod
    def backward(ctx, *_):
        hidden, weight = ctx.saved_tensors
        tile = hidden.new_empty(len(hidden), ctx.columns)
        by_hidden, by_weight = torch.zeros_like(hidden), torch.empty_like(weight)
        for part, out in zip(weight.split(ctx.columns), by_weight.split(ctx.columns), strict=True):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
            by_hidden.addmm_(tile[:, : len(part)], part)
            torch.mm(tile[:, : len(part)].T, hidden, out=out)
        return by_hidden, by_weight, None


def products(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The bare matrix products, tile by tile: the floor of every head that keeps no logits."""
    outcome = _Products.apply(hidden, weight, max(128, (2 << 20) // len(hidden)))
    assert isinstance(outcome, Tensor)
    return outcome, outcome if mode != "logprob" else None


METHODS: dict[str, Method] = {"rlobj": ours, "autograd": autograd, "products alone": products}


def run(
    points: Iterable[Point],
    names: Sequence[str] = tuple(METHODS),
    *,
    rounds: int = 1,
    command: Sequence[str] = (sys.executable, "-m", "rlobj.scoring.bench"),
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Measure every method at every point, the methods one after another for points of one size.

    Args:
        points: where to measure.
        names: of the methods.
        rounds: how many processes each measurement of time gets.
        command: starts a process that calls `child` with these methods.
        progress: told of each row.

    Raises:
        RunError: a measurement that failed; a method that is not installed is a skipped row.
    """
    rows = []
    sizes: dict[tuple[int, int, int], list[Point]] = {}
    for point in points:
        sizes.setdefault((point.rows, point.width, point.vocabulary), []).append(point)
    for same in sizes.values():
        answers = [
            {name: _ask(command, name, same, memory=turn == 0) for name in names}
            for turn in range(rounds)
        ]
        for index, point in enumerate(same):
            for name in names:
                mine = [answer[name][index] for answer in answers]
                row = Row(name, point, skipped=mine[0].get("skipped"))
                if row.skipped is None:
                    row = Row(name, point, tuple(x["seconds"] for x in mine), mine[0]["mib"])
                progress(row)
                rows.append(row)
    return rows


def _ask(command: Sequence[str], name: str, points: Sequence[Point], *, memory: bool) -> list[dict]:
    """The measurements of points of one size in a fresh process, at one thread."""
    question = {"name": name, "points": [asdict(point) for point in points], "memory": memory}
    done = subprocess.run(
        [*command, "--one", json.dumps(question)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RunError(f"'{name}' failed at {points[0]} or after:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(question: str, methods: Mapping[str, Method]) -> None:
    """Answer measurements on the standard output."""
    asked = json.loads(question)
    points, method = [Point(**point) for point in asked["points"]], methods[asked["name"]]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = points[0]
    hidden = torch.randn(size.rows, size.width)
    weight = torch.randn(size.vocabulary, size.width) / size.width**0.5
    targets = torch.randint(size.vocabulary, (size.rows,))
    answers = []
    for point in points:
        try:
            _once(method, hidden[:64], weight[:512], targets[:64] % 512, point)
        except (ImportError, NotImplementedError) as error:
            answers.append({"skipped": f"{type(error).__name__}: {error}"})
            continue
        times: list[float] = []
        while len(times) < 3 and sum(times) < SECONDS:
            start = time.process_time()
            _once(method, hidden, weight, targets, point)
            times.append(time.process_time() - start)
        answers.append({"seconds": min(times)})
    if asked["memory"]:
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 1 << 16)  # map each buffer by itself: what is freed is gone at once
        for answer, point in zip(answers, points, strict=True):
            if "seconds" in answer:
                libc.malloc_trim(0)
                before = _peak_mib(reset=True)
                _once(method, hidden, weight, targets, point)
                outputs = (hidden.nbytes + weight.nbytes) / 2**20 if point.backward else 0.0
                answer["mib"] = _peak_mib() - before - outputs
    print(json.dumps(answers))


def _once(method: Method, hidden: Tensor, weight: Tensor, targets: Tensor, point: Point) -> None:
    if not point.backward:
        with torch.no_grad():
            method(hidden, weight, targets, point.mode)
        return
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    logprobs, entropy = method(hidden, weight, targets, point.mode)
    loss = logprobs.sum()
    if point.mode == "both" and entropy is not None:
        loss = loss + entropy.sum()
    loss.backward()


def _peak_mib(reset: bool = False) -> float:
    """Largest resident size of this process, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    child(sys.argv[2], METHODS)
