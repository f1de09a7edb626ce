"""Heads side by side: from hidden states to log-probs and entropies, forward and backward.

CPU seconds (process time) at one thread and peak memory above inputs and outputs, float32, each
measurement in a process of its own, the methods of a point one after another. The others come from
heads-requirements.txt; one that is not installed is skipped by name.

    python benchmarks/heads.py [--quick] [--rounds 3] [--json FILE] [--table FILE] [--figure FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from rlobj.scoring import bench
from rlobj.scoring.bench import METHODS, Mode, Point, Row

# The others, each through its own public function. Where the min-p proxy is asked, a head that
# keeps no logits has to make them once more.


def _add_proxy(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> None:
    if mode == "proxy":
        bench.filtered_logprobs(hidden.detach() @ weight.detach().T, targets)


def trl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The head of TRL's GRPOTrainer."""
    from trl.kernels import ChunkedLogProbFunction

    outputs = () if mode == "logprob" else ("entropy",)
    found: Any = ChunkedLogProbFunction.apply(
        hidden, weight, None, targets, 1.0, 32768, None, 1.0, outputs
    )
    _add_proxy(hidden, weight, targets, mode)
    return found[0], found[1]


def trl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """TRL's functions on logits."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    logits = hidden @ weight.T
    entropy = None if mode == "logprob" else entropy_from_logits(logits)
    if mode == "proxy":
        bench.filtered_logprobs(logits.detach(), targets)
    return selective_log_softmax(logits, targets), entropy


def verl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """verl's FusedLinearForPPO; the entropy is always made."""
    with contextlib.redirect_stdout(sys.stderr):
        from verl.utils.experimental.torch_functional import FusedLinearForPPO

    logprobs, entropy = FusedLinearForPPO()(hidden, weight, targets)
    _add_proxy(hidden, weight, targets, mode)
    return logprobs, entropy


def verl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """verl's functions on logits."""
    with contextlib.redirect_stdout(sys.stderr):
        from verl.utils.torch_functional import entropy_from_logits, logprobs_from_logits

    logits = hidden @ weight.T
    entropy = None if mode == "logprob" else entropy_from_logits(logits)
    if mode == "proxy":
        bench.filtered_logprobs(logits.detach(), targets)
    return logprobs_from_logits(logits, targets), entropy


def liger_scaled(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """Liger's linear scaled cross entropy, which falls back to torch without a Hopper GPU."""
    from liger_kernel.ops.fused_linear_scaled_cross_entropy import (
        LigerFusedLinearScaledCrossEntropyFunction as LigerFunction,
    )

    found: Any = LigerFunction.apply(hidden, weight, targets, return_entropy=mode != "logprob")
    _add_proxy(hidden, weight, targets, mode)
    return (-found, None) if mode == "logprob" else (-found[0], found[1])


def liger_chunked(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The function in Liger's chunked GRPO loss, which knows no entropy."""
    if mode != "logprob":
        raise NotImplementedError("no entropy")
    from liger_kernel.chunked_loss import fused_linear_ppo as liger

    return liger._ChunkedSelectiveLogProbFunction.apply(
        hidden, weight, targets, None, 1.0, 4096
    ), None


def prime_rl(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The function in prime-rl's fused head; its entropy has no gradient, and is always made."""
    if mode == "both":
        raise NotImplementedError("no gradient through the entropy")
    from prime_rl.trainer.models.layers import lm_head as prime

    inverse = hidden.new_ones(len(hidden))
    found: Any = prime._SequenceChunkedLogProbEntropyFn.apply(
        hidden, weight, targets, inverse, 1024
    )
    _add_proxy(hidden, weight, targets, mode)
    return found[0], found[1]


HEADS = {
    **METHODS,
    "TRL fused": trl_fused,
    "TRL on logits": trl_logits,
    "verl fused": verl_fused,
    "verl on logits": verl_logits,
    "Liger scaled": liger_scaled,
    "Liger chunked": liger_chunked,
    "prime-rl": prime_rl,
}


def run(points: Sequence[Point], names: Sequence[str] = tuple(HEADS), **options: Any) -> list[Row]:
    """`rlobj.scoring.bench.run` over the others as well."""
    return bench.run(points, names, command=[sys.executable, __file__], **options)


# What is printed. A ratio compares the least time of each round, and is the median over rounds.


def ratio(row: Row, base: Row) -> float:
    """Time of one method over another's at the same point."""
    return median(a / b for a, b in zip(row.seconds, base.seconds, strict=True))


def rivals(rows: Sequence[Row], point: Point) -> list[Row]:
    """The measured heads of others at a point that give what is asked there."""
    own = ("rlobj", "products alone")
    return [r for r in rows if r.point == point and r.method not in own and not r.skipped]


def gates(rows: Sequence[Row]) -> list[str]:
    """What was to be reached, beside what was."""
    by = {(r.method, r.point): r for r in rows}
    lines = []
    for point in dict.fromkeys(r.point for r in rows):
        mine, floor = by["rlobj", point], by["products alone", point]
        others = rivals(rows, point)
        if not others:
            continue
        fastest = min(others, key=lambda r: min(r.seconds))
        leanest = min(others, key=lambda r: r.mib or 0)
        text = (
            f"{label(point)}: {1 / ratio(fastest, mine):.2f}x the time of {fastest.method}, "
            f"{(mine.mib or 0) / (leanest.mib or 1):.2f}x the memory of {leanest.method}, "
            f"{ratio(mine, floor):.2f}x the bare products"
        )
        trl = by.get(("TRL fused", point))
        if trl is not None and not trl.skipped:
            text += f", {1 / ratio(trl, mine):.2f}x the time of TRL fused"
        lines.append(text)
    return lines


def label(point: Point) -> str:
    """A point in words."""
    what = {"logprob": "log-prob", "both": "log-prob and entropy", "proxy": "with proxy"}
    return (
        f"N {point.rows}, H {point.width}, V {round(point.vocabulary / 1000)}k, "
        f"{what[point.mode]}, "
        f"{'forward+backward' if point.backward else 'forward'}"
    )


def table(rows: Sequence[Row]) -> str:
    """Seconds, the ratio to ours, and memory, point by point."""
    by = {(r.method, r.point): r for r in rows}
    lines = []
    for point in dict.fromkeys(r.point for r in rows):
        lines.append(label(point))
        mine = by["rlobj", point]
        for row in (r for r in rows if r.point == point):
            if row.skipped:
                lines.append(f"  {row.method:16} skipped: {row.skipped}")
                continue
            lines.append(
                f"  {row.method:16} {min(row.seconds):8.3f} s  {ratio(row, mine):5.2f}x"
                f"  {row.mib:8.0f} MiB  {(row.mib or 0) / (mine.mib or 1):6.1f}x"
            )
    return "\n".join([*lines, "", "rlobj against:", *gates(rows)]) + "\n"


def draw(rows: Sequence[Row], file: Path) -> None:
    """Time and memory over ours, for log-prob and entropy, forward and backward."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    points = [p for p in dict.fromkeys(r.point for r in rows) if p.mode == "both" and p.backward]
    by = {(r.method, r.point): r for r in rows if not r.skipped}
    names = [n for n in dict.fromkeys(r.method for r in rows) if (n, points[0]) in by]
    figure, axes = pyplot.subplots(2, 1, figsize=(9, 7), sharex=True)
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        found = [(place, by[name, p]) for place, p in enumerate(points) if (name, p) in by]
        places = [place + (index - (len(names) - 1) / 2) * width for place, _ in found]
        times = [ratio(row, by["rlobj", row.point]) for _, row in found]
        axes[0].bar(places, times, width, label=name)
        axes[1].bar(places, [max(row.mib or 0, 1) for _, row in found], width)
    axes[0].set_ylabel("CPU time over rlobj's")
    axes[0].axhline(1, color="black", linewidth=0.6)
    axes[0].legend(fontsize=8, ncols=2)
    axes[1].set_ylabel("MiB above inputs and outputs")
    axes[1].set_yscale("log")
    ticks = [f"N {p.rows}\nH {p.width}\nV {round(p.vocabulary / 1000)}k" for p in points]
    axes[1].set_xticks(range(len(points)), ticks)
    figure.suptitle("log-prob and entropy, forward and backward, one CPU thread")
    figure.tight_layout()
    figure.savefig(file, dpi=120)


def save(rows: Sequence[Row], file: Path) -> None:
    """The rows as JSON."""
    file.write_text(json.dumps([asdict(row) for row in rows], indent=0), encoding="utf-8")


def load(file: Path) -> list[Row]:
    """Rows that `save` wrote."""
    return [
        Row(**{**entry, "point": Point(**entry["point"]), "seconds": tuple(entry["seconds"])})
        for entry in json.loads(file.read_text(encoding="utf-8"))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="N 512 and V 32k alone")
    parser.add_argument("--rounds", type=int, default=3, help="processes a measurement of time")
    parser.add_argument("--json", type=Path, help="write the rows; also after each point")
    parser.add_argument("--table", type=Path, help="write what is printed")
    parser.add_argument("--figure", type=Path, help="draw, with matplotlib")
    parser.add_argument(
        "--from", type=Path, dest="source", help="rows of an earlier run; measure what is missing"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        bench.child(arguments.one, HEADS)
        return
    rows = load(arguments.source) if arguments.source else []
    done = {row.point for row in rows}
    points = [point for point in bench.grid(arguments.quick) if point not in done]
    for _, same in itertools.groupby(points, key=lambda p: (p.rows, p.width, p.vocabulary)):
        rows += run(list(same), rounds=arguments.rounds)
        print(label(rows[-1].point), file=sys.stderr, flush=True)
        if arguments.json:
            save(rows, arguments.json)
    text = table(rows)
    print(text, end="")
    if arguments.table:
        arguments.table.write_text(text, encoding="utf-8")
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
