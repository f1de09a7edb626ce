"""The cost of `Objective.plan` on a large update: three exact cuts, beside one torch.sort.

The objective is STARE-C2 with STAPO's filter: two cuts by surprisal and one by entropy. One sort of
one column is what a single exact cut costs if it is done by sorting.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.harness import (
    Table,
    ask,
    cpu_seconds,
    main,
    note,
    peak_above,
    ratio,
    return_freed_memory,
)
from rlobj import TokenBatch, load_preset

RESPONSE, GROUP = 4000, 8
"""Tokens of a response, responses of a group."""


def make_batch(tokens: int) -> TokenBatch:
    """Float32 columns of responses in groups."""
    generator = torch.Generator().manual_seed(0)
    responses = tokens // RESPONSE
    entropy = torch.empty(tokens).exponential_(2.0, generator=generator)
    return TokenBatch(
        lengths=torch.full((responses,), RESPONSE),
        groups=torch.arange(responses) // GROUP,
        rewards=(torch.rand(responses, generator=generator) < 0.5).double(),
        logprobs=-torch.empty(tokens).exponential_(1.0, generator=generator),
        entropy=entropy,
        old_entropy=entropy,
    )


def answer(what: str, tokens: int) -> dict[str, float]:
    """CPU seconds of a `plan` or a `sort`, and MiB above its inputs."""
    batch = make_batch(tokens)
    stapo = load_preset("stapo").objective.drop_rule
    assert stapo is not None
    assert batch.entropy is not None
    objective = load_preset("stare-c2").objective.drop(stapo)
    state = {**objective.init(), "W": {"value": 1.1}, "M": {"value": 0.9}}
    work = partial(objective.plan, batch.split(GROUP), state)
    if what == "sort":
        work = batch.entropy.sort
    return_freed_memory()
    times: list[float] = []
    mib = peak_above(lambda: times.append(cpu_seconds(work)))
    return {"seconds": times[0], "mib": mib}


def measure(quick: bool, rounds: int) -> Table:
    """Seconds and memory of a plan and of a sort, from 1M tokens on."""
    rows = []
    for millions in (1, 4) if quick else (1, 2, 4, 8, 16, 32):
        found: dict[str, list[dict[str, float]]] = {"plan": [], "sort": []}
        for _ in range(rounds):
            for what, answers in found.items():
                note(f"{what} of {millions}M tokens")
                answers += ask("benchmarks.plan", {"what": what, "tokens": millions * 10**6})
        rows.append(to_row(millions, found["plan"], found["sort"]))
    return Table(
        "plan",
        "CPU seconds of one thread and peak memory above the inputs, for three exact cuts over all "
        "tokens of an update (STARE-C2 with STAPO's filter), and for one torch.sort of one float32 "
        "column.",
        {
            "millions": ("million tokens", ""),
            "plan_seconds": ("plan s", ".3g"),
            "per_million": ("s per million", ".3g"),
            "plan_mib": ("plan MiB", ",.0f"),
            "bytes": ("bytes a token", ".0f"),
            "sort_seconds": ("sort s", ".3g"),
            "sort_mib": ("sort MiB", ",.0f"),
            "ratio": ("plan over sort", ".2f"),
        },
        rows,
        {"rounds": rounds, "tokens a response": RESPONSE, "responses a group": GROUP},
        labels=("millions",),
        bars=("plan_seconds", "sort_seconds", "plan_mib", "sort_mib"),
    )


def to_row(millions: int, plan: list[dict[str, float]], sort: list[dict[str, float]]) -> Any:
    """The row of some rounds."""
    times, base = ([each["seconds"] for each in answers] for answers in (plan, sort))
    mib = median(each["mib"] for each in plan)
    return {
        "millions": millions,
        "plan_seconds": median(times),
        "per_million": median(times) / millions,
        "plan_mib": mib,
        "bytes": mib * 2**20 / (millions * 10**6),
        "sort_seconds": median(base),
        "sort_mib": median(each["mib"] for each in sort),
        "ratio": ratio(times, base),
    }


if __name__ == "__main__":
    main(measure, answer)
