"""The numbers and a picture of the runs of benchmarks.real.study.

    python -m benchmarks.real.report --runs DIR --out benchmarks/results

It writes real.json, with the curves of each run and every dropped token, and real.png. A run that
did not end is left out, and the report says so. docs/studies.md shows both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import driver
from benchmarks.harness import machine, note, parser
from benchmarks.real.study import ARMS, SEEDS, folder
from rlobj import read_records
from rlobj.runs.metrics import read_metrics

GOAL = 0.5
"""The held-out accuracy whose cost in tokens is compared."""
COLUMNS = ("step", "before", "text", "after", "prob", "entropy")
KINDS = (
    "before the answer",
    "digit of the answer",
    "digit after the answer",
    "text after the answer",
)
COLOURS = dict(
    zip(
        ARMS,
        ("#E69F00", "#000000", "#D55E00", "#CC79A7", "#56B4E9", "#009E73", "#999999"),
        strict=True,
    )
)
"""Colours of Okabe and Ito, which people with any kind of colour blindness tell apart."""


def main() -> None:
    options = parser(__doc__, "folder for real.json and real.png", runs=True).parse_args()
    rows, tokens = [], []
    for arm in ARMS:
        for seed in range(SEEDS):
            run = folder(options.runs, arm, seed)
            if driver.ended(run) != driver.DONE:
                note(f"{run} did not end and is left out")
                continue
            rows.append({"arm": arm, "seed": seed, **outcome(run)})
            tokens += [{"arm": arm, "seed": seed, **token} for token in dropped(run)]
    study = {"runs": rows, "dropped": tokens, "machine": machine()}
    text = json.dumps(study).replace('{"arm"', '\n{"arm"') + "\n"
    (options.out / "real.json").write_text(text, encoding="utf-8")
    draw(rows, options.out / "real.png")


def outcome(run: Path) -> dict[str, Any]:
    """The curves of a run: at evaluations, and the entropy of each step; and what it took."""
    lines = read_metrics(run)
    evaluations = [line for line in lines if "eval/reward" in line]
    steps = [line["step"] for line in evaluations]
    trained = [line for line in lines if "tokens/sampled" in line]
    tokens = [
        sum(line["tokens/sampled"] for line in trained if line["step"] <= step) for step in steps
    ]
    accuracies = [line["eval/reward"] for line in evaluations]
    return {
        "steps": steps,
        "tokens": tokens,
        "accuracy": accuracies,
        "tokens_until": tokens_until(tokens, accuracies),
        "entropy": [line["policy/entropy"] for line in trained],
        "tokens_dropped": sum(line.get("tokens/dropped", 0) for line in trained),
        "seconds": json.loads((run / driver.DONE).read_text(encoding="utf-8"))["cpu_seconds"],
    }


def tokens_until(tokens: Sequence[float], accuracies: Sequence[float]) -> float | None:
    """Generated tokens until the accuracy first reaches the goal, by linear interpolation between
    evaluations; None if it does not."""
    for i in range(1, len(tokens)):
        if accuracies[i] >= GOAL:
            share = (GOAL - accuracies[i - 1]) / (accuracies[i] - accuracies[i - 1])
            return tokens[i - 1] + max(share, 0.0) * (tokens[i] - tokens[i - 1])
    return None


def dropped(run: Path) -> Iterator[dict[str, Any]]:
    """Every dropped token of a run, with its place in its response."""
    import pyarrow.compute as pc

    rows = read_records(run, COLUMNS, where=pc.field("effect") == "dropped").to_pylist()
    for row in sorted(rows, key=lambda row: row["step"]):
        yield {**row, "kind": kind(row["before"], row["text"], row["after"])}


def kind(before: str, text: str, after: str) -> str:
    """Where a token of a right response stands: before, in or after the first whole number.

    Args:
        before: the end of the prompt, and the response up to the token.
        text: the token.
        after: the rest of the response.
    """
    begun = re.sub(r"(?s).*\d\d \+ \d\d =", "", before)
    answer = re.search(r"\d+", begun + text + after)
    assert answer is not None, "a response without a number is not right"
    if len(begun) + len(text) <= answer.start():
        return KINDS[0]
    if len(begun) < answer.end():
        return KINDS[1]
    return KINDS[2 if re.search(r"\d", text) else 3]


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Held-out accuracy and entropy by step: each run, and the mean of each arm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    accuracy, entropy = figure.subplots(1, 2)
    for arm, colour in COLOURS.items():
        runs = [row for row in rows if row["arm"] == arm]
        if not runs:
            continue
        for axis, values, steps in (
            (accuracy, [run["accuracy"] for run in runs], runs[0]["steps"]),
            (entropy, [run["entropy"] for run in runs], range(1, 1 + len(runs[0]["entropy"]))),
        ):
            axis.plot(steps, list(map(mean, zip(*values, strict=True))), color=colour, label=arm)
            for one in values:
                axis.plot(steps, one, color=colour, alpha=0.25, lw=0.7)
    for axis, title in ((accuracy, "held-out accuracy"), (entropy, "entropy, nats")):
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
    handles, labels = accuracy.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS), frameon=False)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
