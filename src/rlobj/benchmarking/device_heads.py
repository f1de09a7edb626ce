"""Heads on a CUDA device: times between events, and the peak of what torch allocates.

Written without a GPU at hand: its tests take the same path on a CPU, with the process's clock and
without memory. Nothing here has been run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlobj.benchmarking.head_methods import MODES, Method, Point, once

__all__ = ["answer", "grid"]

REPEATS = 5


def grid(quick: bool = False) -> list[Point]:
    """N 32k, V 152k, bfloat16; H 2048 and 4096. Quick: H 2048, log-prob and entropy alone."""
    return [
        Point(32_768, width, 151_936, mode, backward, "cuda")
        for width in ((2048,) if quick else (2048, 4096))
        for mode in (("both",) if quick else MODES)
        for backward in ((False,) if mode == "proxy" else (False, True))
    ]


def answer(method: Method, points: Sequence[Point], device: str = "cuda") -> list[dict[str, Any]]:
    """Least seconds and peak MiB above inputs and outputs of points of one size.

    What does not fit the device's memory is skipped; the first passes, in which kernels are
    compiled and tuned, are not counted.
    """
    torch.manual_seed(0)
    size = points[0]
    hidden = torch.randn(size.rows, size.width, device=device).bfloat16()
    weight = (torch.randn(size.vocabulary, size.width, device=device) / size.width**0.5).bfloat16()
    targets = torch.randint(size.vocabulary, (size.rows,), device=device)
    answers: list[dict[str, Any]] = []
    for point in points:

        def work(point: Point = point) -> None:
            once(method, hidden, weight, targets, point)

        outputs = hidden.nbytes + weight.nbytes if point.backward else 0
        try:
            answers.append(_measured(work, outputs, device))
        except (ImportError, NotImplementedError) as error:
            answers.append({"skipped": str(error)})
        except torch.cuda.OutOfMemoryError:
            answers.append({"skipped": "out of memory"})
            torch.cuda.empty_cache()
    return answers


def _measured(work: Callable[[], None], outputs: int, device: str) -> dict[str, Any]:
    """Seconds of the fastest repeat, and MiB; two passes before them are for warmth."""
    seconds = _seconds_on_gpu if device == "cuda" else _seconds_on_cpu
    for _ in range(2):
        work()
    mib = None
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        mib = (torch.cuda.max_memory_allocated() - before - outputs) / 2**20
    return {"seconds": min(seconds(work) for _ in range(REPEATS)), "mib": mib}


def _seconds_on_gpu(work: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def _seconds_on_cpu(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
