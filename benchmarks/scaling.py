"""How the time and memory of a training step grow: with tokens, vocabulary, group size, processes.

A rollout of random responses is trained on by a small random policy, as in `step`. Several
processes are started by torchrun. CPU seconds are of one rollout's training at one thread, and peak
memory is above what is there between steps; of several processes, those of the process with the
most. Each axis changes one number. Balance: tokens of the fullest process over the mean one.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from benchmarks.harness import Table, asked, main, medians
from benchmarks.made_up import PROMPT, RandomSampler, lognormal_lengths, train

LENGTH, BUDGET, SIGMA = 112, 1024, 0.8
"""Tokens of a response, of 128 with its prompt; of a micro-batch; sigma on several processes."""
SAME = {"responses": 64, "group": 8, "vocabulary": 1024, "strategy": "ddp", "sigma": 0.0}


def answer(
    responses: int, group: int, vocabulary: int, strategy: str, sigma: float
) -> dict[str, float]:
    """Seconds, memory and balance of this rank."""
    lengths = lognormal_lengths(responses, LENGTH, sigma)
    sampler = RandomSampler(lengths, group, vocabulary)
    found = train("grpo", sampler, {"micro_batch_tokens": BUDGET, "strategy": strategy})
    return {**found, "tokens": sum(lengths) + PROMPT * responses}


def points(quick: bool) -> dict[tuple[str, Any], dict[str, Any]]:
    """What each point changes, by (axis, value)."""
    tokens = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32, 64)
    vocabularies = (1_000, 32_000) if quick else (1_000, 8_000, 32_000, 151_936)
    groups = (4, 16, 64) if quick else (4, 8, 16, 32, 64)
    some: dict[tuple[str, Any], dict[str, Any]] = {}
    some |= {("tokens", 1024 * n): {"responses": 8 * n} for n in tokens}
    some |= {("vocabulary", v): {"responses": 8, "vocabulary": v} for v in vocabularies}
    some |= {("group size", g): {"group": g} for g in groups}
    skewed = {"responses": 64 if quick else 128, "sigma": SIGMA}
    strategies = ("ddp", "zero2", "zero3") if find_spec("deepspeed") else ("ddp",)
    some["processes", "1"] = skewed
    some |= {("processes", f"2, {s}"): {**skewed, "strategy": s} for s in strategies}
    return some


def measure(quick: bool, rounds: int) -> Table:
    """A step's time and memory along four axes."""
    questions = {point: {**SAME, **changes} for point, changes in points(quick).items()}
    ranks = {point: 2 for point in questions if "2, " in str(point[1])}
    rows: list[dict[str, Any]] = []
    for point, answers in asked("benchmarks.scaling", questions, rounds, ranks).items():
        row = medians(answers)
        row |= {"rate": 1000 * row["seconds"] / row["tokens"]}
        rows.append({"axis": point[0], "value": point[1], **row})
    return Table(
        "scaling",
        {
            "axis": ("axis", ""),
            "value": ("value", ""),
            "seconds": ("CPU s", ".3g"),
            "rate": ("s per 1k tokens", ".3g"),
            "mib": ("MiB", ",.0f"),
            "rank_balance": ("balance", ".4f"),
        },
        rows,
        {**SAME, "tokens of a micro-batch": BUDGET, "sigma of processes": SIGMA, "rounds": rounds},
        labels=("axis", "value"),
        bars=("rate", "mib"),
    )


if __name__ == "__main__":
    main(measure, answer)
