"""Tables of the documentation that show results of the benchmarks, which are measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import markdown_tables as md

__all__ = ["RESULTS"]

FOLDER = Path(__file__).parents[1] / "benchmarks" / "results"


def _results(name: str) -> Any:
    """The numbers that a benchmark has written."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def speed_table() -> str:
    """Whole training runs of rlobj and of TRL's GRPOTrainer: samples per second, and memory."""
    titles = {
        "equal": "random GPT-2, responses of 64 tokens",
        "skewed": "the same, lengths lognormal with σ 0.8",
        "chat": "the same, prompts of 96 and responses of 16 tokens",
        "learning": "the embedded policy learns sums, responses of 2 or 3 tokens",
        "real-6": "SmolLM2-135M, 6 tokens; half have no signal, and rlobj leaves them out",
        "real-60": "SmolLM2-135M, at most 60 tokens",
        "real-120": "SmolLM2-135M, at most 120 tokens",
    }
    sides = {(row["work"], row["side"]): row for row in _results("trainer")["rows"]}
    pairs = {work: (sides[work, "rlobj"], sides[work, "TRL GRPOTrainer"]) for work in titles}
    rows = [
        [
            titles[work],
            *(f"{side['samples']:,.{2 if side['samples'] < 10 else 0}f}" for side in pair),
            f"{pair[1]['ratio']:.1f}",
            " and ".join(f"{side['mib']:,.0f}" for side in pair),
        ]
        for work, pair in pairs.items()
    ]
    header = ("policy and responses", "rlobj, samples/s", "TRL", "factor", "MiB, rlobj and TRL")
    return md.table(header, rows)


def verifier_table() -> str:
    """The errors of the verifier and of other graders on the blind half."""
    study = _results("verifier")
    rows, sides = study["rows"], ("false positives", "false negatives")
    keys = ("suite", "grader", *sides, "undecided", "differs", "rlobj right")
    titles = [study["columns"][key][0].replace(" (", "<br>(") for key in keys]
    before = _results("verifier-blind")["before"]
    now = {row["suite"]: row for row in rows if row["grader"] == "rlobj"}
    pairs = (("fp", sides[0]), ("fn", sides[1]))
    counts = [
        [suite, *(f"{old[key]} → {now[suite][side].partition(', ')[0]}" for key, side in pairs)]
        for suite, old in before.items()
    ]
    versions = [
        ("rlobj" if name == "verifier" else name, value)
        for name, value in study["settings"].items()
    ]
    parts = [
        "Before and after the corrections; five forms have left the blind half since:",
        md.table(["suite", *sides], counts),
        f"Measured with {'; '.join(f'{name}: {value}' for name, value in versions)}. The first is"
        " `verifier_version()` of that day; a later one may judge better or worse.",
        md.table(
            titles, [[md.cell(f"{row[key]}").replace(", ", "<br>") for key in keys] for row in rows]
        ),
        "False negatives of all suites, by kind of gold answer:",
    ]
    whole = [row for row in rows if row["suite"] == "all"]
    kinds = [row["false negatives by gold"] for row in whole]
    shares = [
        [kind, *(f"{each[kind][0]:,} of {each[kind][1]:,}" for each in kinds)] for kind in kinds[0]
    ]
    parts.append(md.table(["gold answer", *(row["grader"] for row in whole)], shares))
    for side in sides:
        forms = sorted(whole[0][f"{side} by form"].items(), key=lambda each: -each[1][0])
        listed = ", ".join(f"`{name}` {errors} of {most}" for name, (errors, most) in forms)
        parts.append(f"Forms in which rlobj has {side}: {listed or 'none'}.")
    return "\n\n".join(parts)


RESULTS: dict[str, Callable[[], str]] = {"speed": speed_table, "verifier": verifier_table}
