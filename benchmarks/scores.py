"""What a score costs: CPU seconds of a step and memory, beside the same run without one.

The policy is the random GPT-2 of `trainer` with responses of 64 tokens. Each run is made in a
process of its own, in turn.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Table, asked, main
from benchmarks.trainer import run_rlobj
from benchmarks.trainer_work import prepare

NONE, SCORED = "no score", "no score, but a rule that reads l"
SCORES: dict[str, dict[str, Any]] = {
    NONE: {},
    SCORED: {},
    "frozen model": {},
    "moving average": {"model": "policy", "ema": 0.99},
    "another prompt": {"model": "policy", "prompt": "{{ prompt }}"},
}
"""The settings of each score; those of the frozen model name the policy's folder."""
STEPS, MICRO_BATCH = 8, 4096


def answer(score: str) -> dict[str, float]:
    """A run with a score: median CPU seconds of a step, and MiB above the loaded policy."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        work = prepare("equal", 64.0, Path(folder))
        settings: dict[str, Any] = {}
        if score == SCORED:
            settings = {"objective.shape": "advantage + 0 * logprob"}
        elif score != NONE:
            own = SCORES[score] or {"model": work.policy}
            settings = {"scores": {"other": own}, "objective.shape": "advantage + 0.1 * other_gap"}
        found = run_rlobj(work, STEPS, MICRO_BATCH, 0, Path(folder) / "run", settings)
    return {"seconds": median(each["seconds"] for each in found["steps"][1:]), "mib": found["mib"]}


def measure(quick: bool, rounds: int) -> Table:
    """The table: each score beside none."""
    found = asked("benchmarks.scores", {name: {"score": name} for name in SCORES}, rounds)
    middle = {
        name: {key: median(each[key] for each in answers) for key in ("seconds", "mib")}
        for name, answers in found.items()
    }
    return Table(
        name="scores",
        reading=(
            "A gap needs the policy's own scoring pass as well, which the second row has alone. A "
            "score makes one more forward pass over each rollout. A frozen model also has its own "
            "weights, and a moving average has a copy of those that are trained. The frozen model "
            "is loaded before memory is measured."
        ),
        columns={
            "score": ("score", ""),
            "seconds": ("CPU s a step", ".3f"),
            "share": ("beside no score", ".2f"),
            "mib": ("MiB", ".0f"),
        },
        rows=[
            {"score": name, "share": row["seconds"] / middle[NONE]["seconds"], **row}
            for name, row in middle.items()
        ],
        settings={"steps": STEPS, "rounds": rounds},
    )


if __name__ == "__main__":
    main(measure, answer)
