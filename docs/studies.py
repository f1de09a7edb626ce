"""Tables of the documentation that show results of the benchmarks."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import markdown_tables as md

from rlobj.base.errors import counted

__all__ = ["STUDIES"]

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _results(name: str) -> Any:
    """The numbers that a benchmark has written."""
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def diagnosis_table() -> str:
    """The study of the diagnosis: what was found in sick runs, and in which healthy ones."""
    study = _results("diagnosis")
    healthy = [row for row in study["rows"] if row["kind"] == "healthy"]
    presets, seeds = ({row[key] for row in healthy} for key in ("name", "seed"))
    header = ("sick run", "must begin by step", "found, since step", "right")
    rows = [
        [row["name"], row["expected"], row["found"], row["right"]]
        for row in study["rows"]
        if row["kind"] == "sick" or row["findings"]
    ]
    about = (
        f"{counted(len(presets), 'preset')}, {counted(len(seeds), 'seed')} each. {study['reading']}"
    )
    return f"{about}\n\n{md.table(header, [[md.cell(cell) for cell in row] for row in rows])}"


def sampler_checks_table() -> str:
    """Steps until a fault in the engine stopped the run, in each configuration."""
    study = _results("sampler-checks")
    cases: dict[str, dict[str, str]] = {}
    for row in study["rows"]:
        before = f"{row['before']} → " if row["before"] else ""
        cases.setdefault(row["case"], {})[f"{row['engine']}, {row['dtype']}"] = (
            before + row["found"]
        )
    places = list(dict.fromkeys(place for found in cases.values() for place in found))
    rows = [[case, *(found.get(place, "–") for place in places)] for case, found in cases.items()]
    return md.table(["fault", *places], rows)


def collapse_table() -> str:
    """The runs of the page about a collapse: one row for each, with all seeds."""
    titles = {
        "sick": "with the weight",
        "cured": "the same, with `drop: (advantage > 0) & (prob < 0.1)`",
        "stapo": "the same, with STAPO's rule",
        "grpo": "GRPO without the weight",
    }
    study, rows = _results("collapse")["rows"], []
    for name, title in titles.items():
        seeds = [row for row in study if row["run"] == name]
        dropped, judged, tokens, caught, spurious = (
            sum(row[key] for row in seeds)
            for key in ("dropped", "judged", "tokens", "caught", "spurious_tokens")
        )
        rows.append(
            [
                title,
                *(", ".join(f"{row[key]:.3f}" for row in seeds) for key in ("before", "after")),
                ", ".join(f"{row['entropy']:.2f}" for row in seeds),
                ", ".join(f"{row['spurious']:.1%}" for row in seeds),
                f"{dropped / tokens:.2%}" if dropped else "0",
                f"{caught / judged:.1%}, {caught / spurious:.0%}" if judged else "–",
                "<br>".join(dict.fromkeys(found for row in seeds for found in row["findings"]))
                or "–",
            ]
        )
    header = (
        *("run", "held-out accuracy before", "after", "entropy, nats", "spurious tokens"),
        *("dropped tokens", "precision, recall", "findings"),
    )
    return md.table(header, rows)


def real_table() -> str:
    """The outcomes of the study of a real model: one row for each arm, with all seeds."""
    rows = []
    for arm, runs in _real_arms().items():
        until = [run["tokens_until"] for run in runs]
        rows.append(
            [
                f"`{arm}`" if arm != "random" else "the control",
                ", ".join(f"{run['accuracy'][-1]:.3f}" for run in runs),
                f"{fmean(run['accuracy'][-1] for run in runs):.3f}",
                ", ".join("–" if tokens is None else f"{tokens:,.0f}" for tokens in until),
                f"{fmean(fmean(run['entropy'][-5:]) for run in runs):.2f}",
                f"{sum(run['tokens_dropped'] for run in runs):,.0f}",
            ]
        )
    header = (
        *("objective", "accuracy at the end, by seed", "mean"),
        *("tokens until 0.5, by seed", "entropy at the end", "dropped tokens"),
    )
    return md.table(header, rows)


def real_dropped_table() -> str:
    """Where the dropped tokens of the study of a real model stand."""
    places: dict[str, dict[str, int]] = {}
    for token in _results("real")["dropped"]:
        counts = places.setdefault(token["kind"], dict.fromkeys(_real_arms(), 0))
        counts[token["arm"]] += 1
    arms = [arm for arm in _real_arms() if any(counts[arm] for counts in places.values())]
    rows = [[place, *(str(counts[arm]) for arm in arms)] for place, counts in places.items()]
    names = ["the control" if arm == "random" else f"`{arm}`" for arm in arms]
    return md.table(["where the token stands", *names], rows)


def _real_arms() -> dict[str, list[Any]]:
    """The runs of the study of a real model, by arm."""
    arms: dict[str, list[Any]] = {}
    for run in _results("real")["runs"]:
        arms.setdefault(run["arm"], []).append(run)
    return arms


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
    parts = [
        "Before and after the corrections; five forms have left the blind half since:",
        md.table(["suite", *sides], counts),
        ", ".join(f"{grader}: {versions}" for grader, versions in study["settings"].items()) + ".",
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


def stability_plan() -> str:
    """The analysis of the stability study, as its code states it."""
    return _stated(BENCHMARKS / "stability" / "__init__.py", "The analysis was ")


STABILITY_PARTS = (
    *("state", "conditions", "search", "regime", "family", "secondary", "controls", "beyond"),
    *("band", "decides", "made"),
)
MECHANISM_PARTS = ("sources", "carried", "bounds", "rules", "update", "quadrants", "growth")


def stability_part(title: str, report: str = "stability") -> str:
    """A part of a report of the stability study, by its heading.

    Raises:
        KeyError: the report has no such part.
    """
    file = BENCHMARKS / "results" / f"{report}.md"
    _, found, rest = file.read_text(encoding="utf-8").partition(f"## {title}\n\n")
    if not found:
        raise KeyError(title)
    return rest.partition("\n## ")[0].rstrip()


def _stated(file: Path, start: str) -> str:
    """A module's docstring from some words on."""
    about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return start + about.partition(start)[2]


STUDIES: dict[str, Callable[[], str]] = {
    "collapse": collapse_table,
    "diagnosis": diagnosis_table,
    "real": real_table,
    "real-dropped": real_dropped_table,
    "sampler-checks": sampler_checks_table,
    "speed": speed_table,
    "verifier": verifier_table,
    "stability-plan": stability_plan,
    **{
        f"stability-{title.replace(' ', '-')}": partial(stability_part, title)
        for title in STABILITY_PARTS
    },
    **{
        f"mechanism-{title}": partial(stability_part, title, "mechanism")
        for title in MECHANISM_PARTS
    },
}
