"""The cost of `rlobj.replay`: presets, and a sweep, on full tables of a million tokens.

The tables are read from Parquet. Each preset plans the updates again, its loss is differentiated by
the recorded log-probs, and it is compared with each other preset, token by token.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.harness import (
    Table,
    ask,
    cpu_seconds,
    main,
    note,
    peak_above,
    return_freed_memory,
)
from rlobj import TokenBatch, load_preset, replay
from rlobj.records.observed import ObservedUpdate
from rlobj.records.tables import write_tables

RESPONSE, GROUP = 1000, 8
"""Tokens of a response, responses of a group."""
PRESETS = (
    *("stapo", "grpo", "dapo", "dr-grpo", "gspo"),
    *("cispo", "20-entropy", "clip-cov", "stare", "tis"),
)
RULE, SWEEP = "(advantage > 0) & (prob < TAU) & entropy.bottom(0.8)", "TAU=1e-4..1e-2:20"


def observed(tokens: int, seed: int) -> ObservedUpdate:
    """A random update of STAPO."""
    generator = torch.Generator().manual_seed(seed)
    responses = tokens // RESPONSE
    logprobs = -torch.empty(tokens).exponential_(1.0, generator=generator)
    entropy = torch.empty(tokens).exponential_(2.0, generator=generator)
    objective = load_preset("stapo").objective
    table = TokenBatch(
        lengths=torch.full((responses,), RESPONSE),
        groups=torch.arange(responses) // GROUP,
        ids=torch.arange(responses),
        rewards=(torch.rand(responses, generator=generator) < 0.5).double(),
        logprobs=logprobs,
        old_logprobs=logprobs,
        sampler_logprobs=logprobs,
        entropy=entropy,
        old_entropy=entropy,
        collision=logprobs.exp().square(),
        columns={"spurious": (logprobs < -6).float()},
    )
    [table] = objective.with_advantages([table])
    assert table.collision is not None
    plan = objective.plan([table], {"update": seed}, clauses=True)
    sequences = [([1] * 100, range(RESPONSE))] * responses
    columns = (table.logprobs, entropy, table.collision, torch.zeros(tokens))
    return ObservedUpdate(objective, {"update": seed}, table, plan, sequences, *columns)


def answer(what: str, millions: int, steps: int) -> dict[str, float]:
    """CPU seconds of a replay, and the peak memory above what was there before it."""
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, steps + 1):
            update = observed(millions * 10**6 // steps, step)
            write_tables(Path(folder) / "tables", step, [(1, update)], (0, 1), {})
        del update
        swept = what == "sweep"
        objectives, sweep = (RULE, SWEEP) if swept else (PRESETS[: int(what)], None)
        return_freed_memory()
        times: list[float] = []
        mib = peak_above(
            lambda: times.append(cpu_seconds(lambda: replay(folder, objectives, sweep=sweep)))
        )
        return {"cpu": times[0], "mib": mib}


def measure(quick: bool, rounds: int) -> Table:
    """Ten presets, one preset and a sweep, on one large update and on ten steps."""
    cases = [("10", 1, 1), ("10", 1, 10), ("1", 1, 1), ("sweep", 1, 1)]
    rows = []
    for what, millions, steps in cases if quick else [*cases, ("10", 4, 4)]:
        note(f"{what}, {millions}M tokens in {steps} steps")
        question = {"what": what, "millions": millions, "steps": steps}
        found = [ask("benchmarks.replay", question)[0] for _ in range(rounds)]
        name = "a sweep of 20 values" if what == "sweep" else f"{what} preset" + "s" * (what > "1")
        least = {key: min(each[key] for each in found) for key in found[0]}
        rows.append({"what": name, "millions": millions, "steps": steps, **least})
    return Table(
        "replay",
        "CPU seconds at one thread, and peak memory above what was there before, of "
        "`rlobj.replay` on full tables that are read from Parquet; the smallest of the rounds.",
        {
            "what": ("replayed", ""),
            "millions": ("million tokens", ""),
            "steps": ("steps", ""),
            "cpu": ("CPU s", ".3g"),
            "mib": ("MiB", ",.0f"),
        },
        rows,
        {"rounds": rounds, "tokens a response": RESPONSE, "presets": ", ".join(PRESETS)},
        labels=("what", "steps"),
        bars=("cpu", "mib"),
    )


if __name__ == "__main__":
    main(measure, answer)
