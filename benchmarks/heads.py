"""Heads: from hidden states to log-probs, entropies and the min-p proxy, forward and backward.

rlobj's `score_tokens` beside plain autograd, the bare matrix products, and the heads of TRL, verl
and Liger if they are installed. Each method runs in a process of its own: on a GPU if there is one,
with bfloat16 inputs, else on one thread in float32.

Hidden states are [N, H], output embeddings [V, H]. Seconds: CPU seconds of one thread, or a GPU's.
Over rlobj: 2 is twice rlobj's time. MiB: peak above inputs and outputs. The bare products are the
multiplications alone. Only rlobj computes the min-p proxy itself: to the other libraries' heads, a
plain one from all logits is added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import Table, ask, cpu_seconds, main, note, peak_above
from rlobj.scoring import score_tokens

Mode = Literal["logprob", "both", "proxy"]
Method = Callable[[Tensor, Tensor, Tensor, Mode], tuple[Tensor, Tensor | None]]

MODES: dict[Mode, str] = {
    "logprob": "log-prob",
    "both": "log-prob and entropy",
    "proxy": "log-prob, entropy and min-p proxy",
}
WAYS: tuple[tuple[Mode, bool], ...] = (
    *(("logprob", False), ("logprob", True), ("both", False), ("both", True), ("proxy", False)),
)
"""What is computed, and whether backward too: through both outputs; the proxy has no gradient."""
MIN_P = 0.02
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SECONDS, REPEATS = 4.0, 3 if DEVICE == "cpu" else 7
"""A measurement is repeated up to so often, until it has taken so many seconds. On a CPU the least
counts; on a GPU the median, because the card's clock changes."""


def ours(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """`score_tokens`."""
    min_p = MIN_P if mode == "proxy" else None
    scores = score_tokens(hidden, weight, targets, entropy=mode != "logprob", min_p=min_p)
    return scores.logprobs, scores.entropy


def autograd(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """All logits, log_softmax, and torch's own gradient."""
    logits = hidden @ weight.T
    logprobs = torch.log_softmax(logits, -1)
    entropy = None if mode == "logprob" else -(logprobs.exp() * logprobs).sum(-1)
    if mode == "proxy":
        proxy(logits.detach(), targets)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def proxy(logits: Tensor, targets: Tensor) -> Tensor:
    """The min-p proxy from all logits: what every head but ours needs in addition."""
    cut = logits.amax(-1, keepdim=True) + torch.tensor(MIN_P).log().item()
    logprobs = torch.log_softmax(logits.masked_fill(logits < cut, -torch.inf), -1)
    return logprobs.gather(1, targets[:, None])[:, 0]


class _Products(torch.autograd.Function):
    """One product forward; the same again and two more backward: 2NHV and 8NHV operations."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, columns: int) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.columns = columns
        tile = hidden.new_empty(len(hidden), columns)
        for part in weight.split(columns):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
        return hidden[:, 0].clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        hidden, weight = ctx.saved_tensors
        tile = hidden.new_empty(len(hidden), ctx.columns)
        by_hidden, by_weight = torch.zeros_like(hidden), torch.empty_like(weight)
        for part, out in zip(weight.split(ctx.columns), by_weight.split(ctx.columns), strict=True):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
            by_hidden.addmm_(tile[:, : len(part)], part)
            torch.mm(tile[:, : len(part)].T, hidden, out=out)
        return by_hidden, by_weight, None


def products(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """The matrix products alone, tile by tile: the least that a head without logits can take."""
    elements = 1 << (21 if DEVICE == "cpu" else 27)  # of a tile; a CPU's fits in its cache
    outcome: Any = _Products.apply(hidden, weight, max(128, elements // len(hidden))).float()
    return outcome, outcome if mode != "logprob" else None


def trl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """The head of TRL's GRPOTrainer."""
    outputs = () if mode == "logprob" else ("entropy",)
    head = import_module("trl.kernels").ChunkedLogProbFunction
    found = head.apply(hidden, weight, None, targets, 1.0, 32768, None, 1.0, outputs)
    return found[0], found[1]


def trl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """TRL's functions of logits."""
    trl = import_module("trl.trainer.utils")
    logits = hidden @ weight.T
    if mode == "logprob":
        return trl.selective_log_softmax(logits, targets), None
    return trl.selective_log_softmax_and_entropy(logits, targets)


def verl_fused(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """verl's FusedLinearForPPO; it always computes the entropy."""
    verl = import_module("verl.utils.experimental.torch_functional")
    return verl.FusedLinearForPPO()(hidden, weight, targets)


def verl_logits(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """verl's functions of logits."""
    verl = import_module("verl.utils.torch_functional")
    logits = hidden @ weight.T
    entropy = None if mode == "logprob" else verl.entropy_from_logits(logits)
    return verl.logprobs_from_logits(logits, targets), entropy


def liger(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode) -> Any:
    """Liger's linear scaled cross entropy."""
    module = import_module("liger_kernel.ops.fused_linear_scaled_cross_entropy")
    head = module.LigerFusedLinearScaledCrossEntropyFunction
    found = head.apply(hidden, weight, targets, return_entropy=mode != "logprob")
    return (-found, None) if mode == "logprob" else (-found[0], found[1])


OURS = "rlobj"
METHODS: dict[str, Method] = {
    OURS: ours,
    "bare products": products,
    "autograd": autograd,
    "TRL fused": trl_fused,
    "TRL on logits": trl_logits,
    "verl fused": verl_fused,
    "verl on logits": verl_logits,
    "Liger": liger,
}
PEERS = {"TRL": "trl", "verl": "verl", "Liger": "liger_kernel"}
"""Package to be installed, by the first word of a method's name."""


def once(name: str, inputs: Sequence[Tensor], mode: Mode, backward: bool) -> None:
    """One pass forward, and backward if asked."""
    with torch.set_grad_enabled(backward):
        hidden, weight = (x.detach().requires_grad_(backward) for x in inputs[:2])
        logprobs, entropy = METHODS[name](hidden, weight, inputs[2], mode)
        if mode == "proxy" and name.partition(" ")[0] in PEERS:
            proxy(hidden.detach() @ weight.detach().T, inputs[2])
        if backward:
            loss = logprobs.sum()
            if mode == "both" and entropy is not None:
                loss = loss + entropy.sum()
            loss.backward()


def seconds(work: Callable[[], Any]) -> float:
    """CPU seconds, or the seconds between two events on the GPU."""
    if DEVICE == "cpu":
        return cpu_seconds(work)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def peak(work: Callable[[], Any]) -> float:
    """MiB at most, above what was in memory before: of the process, or of the GPU."""
    if DEVICE == "cpu":
        harness.return_freed_memory()
        return peak_above(work)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def answer(
    name: str, rows: int, width: int, vocabulary: int, peaked: float = 1.0, memory: bool = True
) -> list[dict[str, float]]:
    """Seconds and, if asked, peak MiB above inputs and outputs, of each way.

    `peaked` is the standard deviation of the logits.
    """
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"device": DEVICE}
    hidden = torch.randn(rows, width, **numbers)
    weight = torch.randn(vocabulary, width, **numbers) * (peaked / width**0.5)
    if DEVICE == "cuda":
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    inputs = (hidden, weight, torch.randint(vocabulary, (rows,), **numbers))
    few = (hidden[:64], weight[:512], inputs[2][:64] % 512)
    found = []
    for way in WAYS:
        once(name, few, *way)  # warms up
        times: list[float] = []
        while len(times) < REPEATS and sum(times) < SECONDS:
            times.append(seconds(partial(once, name, inputs, *way)))
        found.append({"seconds": min(times) if DEVICE == "cpu" else median(times)})
    for each, way in zip(found, WAYS if memory else (), strict=False):
        outputs = (hidden.nbytes + weight.nbytes) / 2**20 if way[1] else 0.0
        each["mib"] = peak(partial(once, name, inputs, *way)) - outputs
    return found


def sizes(quick: bool) -> list[dict[str, float]]:
    """On a CPU: N 512, 2048; H 256, 1024; V 32k, 152k. On a GPU: as an update of a 2B or 8B."""
    if DEVICE == "cuda":
        points = [(8192, 2048, 1.0), (32_768, 4096, 1.0), (32_768, 4096, 4.0)]
        names = ("rows", "width", "peaked", "vocabulary")
        every: list[dict[str, float]] = [
            dict(zip(names, (*each, 151_936), strict=True)) for each in points
        ]
        return every[:1] if quick else every
    counts, vocabularies = ([512], [32_000]) if quick else ([512, 2048], [32_000, 151_936])
    return [
        {"rows": rows, "width": width, "vocabulary": vocabulary}
        for rows, width, vocabulary in itertools.product(counts, [256, 1024], vocabularies)
    ]


def measure(quick: bool, rounds: int) -> Table:
    """Every installed method at every size."""
    names = [n for n in METHODS if find_spec(PEERS.get(n.partition(" ")[0], "torch"))]
    found: dict[tuple[str, str], list[Any]] = {}
    for turn, size, name in itertools.product(range(rounds), sizes(quick), names):
        text = "N {rows:,}, H {width:,}, V {vocabulary:,}".format(**size) + f", {DEVICE}"
        text += f", logits of deviation {size['peaked']:g}" if size.get("peaked", 1) != 1 else ""
        note(f"{name} at {text}")
        try:
            [each] = ask("benchmarks.heads", {"name": name, **size, "memory": turn == 0})
        except RuntimeError as error:
            if name.partition(" ")[0] not in PEERS:
                raise
            each = str(error).strip().splitlines()[-1]
        found.setdefault((text, name), []).append(each)
    return to_table(found, rounds)


def to_table(found: dict[tuple[str, str], list[Any]], rounds: int) -> Table:
    """The answers of each round as rows by size, mode and method."""
    rows: list[dict[str, Any]] = []
    sizes = dict.fromkeys(size for size, _ in found)
    for size, mode, name in itertools.product(sizes, MODES, METHODS):
        if (size, name) not in found:
            continue
        answers, ours = found[size, name], found[size, OURS]
        row: dict[str, Any] = {"size": size, "computed": MODES[mode], "method": name}
        rows.append(row)
        if failed := next((each for each in answers if isinstance(each, str)), None):
            row["forward"] = f"failed: {failed}"
            continue
        for index, (computed, backward) in enumerate(WAYS):
            if computed == mode:
                way = "both" if backward else "forward"
                some, base = ([each[index] for each in every] for every in (answers, ours))
                row[way] = median(each["seconds"] for each in some)
                row |= {f"{way}_ratio": harness.ratio(some, base), f"{way}_mib": some[0]["mib"]}
    return Table(
        "heads" if DEVICE == "cpu" else "heads-gpu",
        {
            "size": ("size", ""),
            "computed": ("computed", ""),
            "method": ("method", ""),
            "forward": ("forward s", ".3g"),
            "forward_ratio": ("over rlobj", ".2f"),
            "forward_mib": ("MiB", ",.0f"),
            "both": ("with backward s", ".3g"),
            "both_ratio": ("time with backward over rlobj", ".2f"),
            "both_mib": ("MiB with backward", ",.0f"),
        },
        rows,
        {"rounds": rounds, "threads": 1},
        labels=("size", "computed", "method"),
        bars=("both_ratio", "both_mib"),
    )


if __name__ == "__main__":
    main(measure, answer)
