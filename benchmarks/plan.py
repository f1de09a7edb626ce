"""The cost of `Objective.plan` on a large update: three exact cuts, beside one torch.sort.

The objective is STARE-C2 with STAPO's filter: two cuts by surprisal and one by entropy. One sort of
one float32 column is what a single exact cut costs if it is done by sorting. Each form of the rule
language is measured in DAPO's loss, as the rule of the tokens to keep, beside these three cuts. CPU
seconds are of one thread, and peak memory is above the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import Table, asked, cpu_seconds, medians, ratio
from rlobj import TokenBatch, load_preset

RESPONSE, GROUP = 4000, 8
"""Tokens of a response, responses of a group."""
CUTS = "stare-c2 with stapo's filter"
FORMS = {
    "no rule": None,
    "mean by update": "entropy > entropy.mean()",
    "mean by response": "entropy > entropy.mean(by='response')",
    "mean by group": "entropy > entropy.mean(by='group')",
    "mean of rewards by group": "reward.mean(by='group') > 0.3",
    "max by response": "entropy < entropy.max(by='response')",
    "any by response": "~(prob < 1e-6).any(by='response')",
    "share by group": "(prob < 0.1).share(by='group') < 0.5",
    "top by update": "entropy.top(0.2)",
    "top by response": "entropy.top(0.2, by='response')",
    "top by group": "entropy.top(0.2, by='group')",
    "quantile by response": "entropy > entropy.quantile(0.8, by='response')",
    "suffix_sum": "logprob.suffix_sum(decay=0.9) < 0",
    "exp and log": "exp(prob) * log(1 + entropy) > 0.1",
}
"""Rules of tokens to keep."""


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
    """CPU seconds of a `plan`, of the cuts or of a form, or of a `sort`; MiB above its inputs."""
    batch = make_batch(tokens)
    stapo = load_preset("stapo").objective.drop_rule
    assert stapo is not None
    assert batch.entropy is not None
    objective = load_preset("stare-c2").objective.drop(stapo)
    if what in FORMS:
        objective = load_preset("dapo-loss").objective.replace(keep=FORMS[what])
    state = {"W": {"value": 1.1}, "M": {"value": 0.9}}
    work = partial(objective.plan, batch.split(GROUP), state)
    if what == "sort":
        work = batch.entropy.sort
    harness.return_freed_memory()
    times: list[float] = []
    mib = harness.peak_above(lambda: times.append(cpu_seconds(work)))
    return {"seconds": times[0], "mib": mib}


def measure(quick: bool, rounds: int) -> Table:
    """Seconds and memory of a plan and of a sort, from 1M tokens on."""
    rows = []
    for millions in (1, 4) if quick else (1, 2, 4, 8, 16, 32):
        found = answers(("plan", "sort"), millions, rounds)
        rows.append(to_row(CUTS, millions, found["plan"], found["sort"]))
    found = answers(("plan", *FORMS), 1, rounds)
    base = found.pop("plan")
    rows += [to_row(form, 1, x) | {"over_cuts": ratio(x, base)} for form, x in found.items()]
    return Table(
        "plan",
        {
            "rule": ("rule", ""),
            "millions": ("million tokens", ""),
            "plan_seconds": ("plan s", ".3g"),
            "per_million": ("s per million", ".3g"),
            "plan_mib": ("plan MiB", ",.0f"),
            "bytes": ("bytes a token", ".0f"),
            "sort_seconds": ("sort s", ".3g"),
            "sort_mib": ("sort MiB", ",.0f"),
            "ratio": ("plan over sort", ".2f"),
            "over_cuts": ("plan over the three cuts", ".2f"),
        },
        rows,
        {"rounds": rounds, "tokens a response": RESPONSE, "responses a group": GROUP},
        labels=("rule", "millions"),
        bars=("plan_seconds", "sort_seconds", "plan_mib", "sort_mib"),
    )


def answers(names: Sequence[str], millions: int, rounds: int) -> dict[str, list[Any]]:
    """The answers of all rounds, by name."""
    questions = {what: {"what": what, "tokens": millions * 10**6} for what in names}
    return asked("benchmarks.plan", questions, rounds)


def to_row(rule: str, millions: int, plan: list[Any], sort: Sequence[Any] = ()) -> dict[str, Any]:
    """The row of some rounds."""
    row: dict[str, Any] = {"rule": rule, "millions": millions}
    for name, rounds in {"plan": plan, "sort": sort}.items():
        row |= {f"{name}_{key}": value for key, value in medians(rounds).items()}
    row["per_million"] = row["plan_seconds"] / millions
    row["bytes"] = row["plan_mib"] * 2**20 / (millions * 10**6)
    return row | ({"ratio": ratio(plan, sort)} if sort else {})


if __name__ == "__main__":
    harness.main(measure, answer)
