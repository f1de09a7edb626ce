"""The cost of `rlobj.replay`: presets, and a sweep, on full tables of a million tokens.

The tables are read from Parquet. Each preset plans the updates again, its loss is differentiated by
the recorded log-probs, and it is compared with each other preset, token by token. CPU seconds at
one thread, and peak memory above what was there before; the smallest of the rounds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import (
    Table,
    ask,
    cpu_seconds,
    main,
    note,
    peak_above,
    return_freed_memory,
)
from benchmarks.made_up import made_up_update
from rlobj import replay
from rlobj.runs.tables import write_tables

RESPONSE, GROUP, VOCABULARY = 1000, 8, 16384
"""Tokens of a response, responses of a group, V."""
PRESETS = (
    *("stapo", "grpo", "dapo", "dr-grpo", "gspo"),
    *("cispo", "20-entropy", "clip-cov", "stare", "tis"),
)
RULE, SWEEP = "(advantage > 0) & (prob < TAU) & entropy.bottom(0.8)", "TAU=1e-4..1e-2:20"


def answer(what: str, millions: int, steps: int) -> dict[str, float]:
    """CPU seconds of a replay, and the peak memory above what was there before it."""
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, steps + 1):
            lengths = [RESPONSE] * (millions * 10**6 // steps // RESPONSE)
            update = made_up_update(step, lengths, GROUP, VOCABULARY)
            write_tables(Path(folder), step, [(1, update)], (0, 1), {})
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
