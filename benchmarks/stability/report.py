"""The report of a study, finished or not: stability.json, stability.md and two pictures.

docs/stability.md shows the parts of stability.md by their headings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.harness import machine
from benchmarks.stability import claims, pictures, results, tables
from benchmarks.stability.analysis import LEVEL, Outcome
from benchmarks.stability.conditions import BASE
from benchmarks.stability.plan import Asked
from benchmarks.stability.regimes import Setting
from benchmarks.stability.results import Results
from benchmarks.stability.runs import Run
from rlobj.base.errors import ConfigError, RunError

NAME = "stability"
COMMAND = "python -m benchmarks.stability --runs DIR --out benchmarks/results"


def write(runs: Path, out: Path, asked: Asked | None = None) -> str:
    """Write the report of the runs below a folder, and return its text.

    Args:
        runs: folder of the study.
        out: folder of the report.
        asked: what the study was asked for, which says what is missing; None = the defaults.

    Raises:
        RunError: there is no such folder of runs.
    """
    try:
        found = results.read(runs, asked)
    except (OSError, ConfigError) as error:
        raise RunError(
            f"{error}. Delete the folder of this run; the command of the study trains it again"
        ) from None
    out.mkdir(parents=True, exist_ok=True)
    text = markdown(found)
    (out / f"{NAME}.md").write_text(text, encoding="utf-8")
    (out / f"{NAME}.json").write_text(numbers(found), encoding="utf-8")
    edge = tables.core(found.of(found.edge))
    if found.edge and edge:
        where = f"at the edge, learning rate {found.edge.learning_rate:g}"
        title = f"Held-out accuracy {where}"
        comparisons = tables.compared(edge, every=False)
        pictures.draw(edge, comparisons, title, out / f"{NAME}.png")
        title = f"Entropy of the policy {where}"
        pictures.draw_entropies(edge, title, out / f"{NAME}-entropy.png")
    return text


def markdown(found: Results) -> str:
    """The whole report."""
    if not found.searched:
        parts = {"state": state(found), "given": tables.by_flag(found), "made": made(found)}
        return together(parts)
    parts = {
        "state": state(found),
        "conditions": tables.conditions(found),
        "found": findings(found),
        "search": tables.search(found),
        "map": tables.chart(found),
        "power": tables.powers(found),
    }
    for title, setting in (("edge", found.edge), ("stable", found.stable)):
        each, primary = tables.core(found.of(setting)), title == "edge"
        made_of = {
            "differences": lambda runs, primary=primary: tables.differences(runs, primary),
            "entropy": tables.entropies,
            "tokens": tables.tokens,
        } | ({"shares": tables.share_tests} if primary else {})
        parts[f"{title} accuracy"] = tables.accuracies(each)  # "Not run.", once
        parts |= {f"{title} {what}": make(each) if each else "" for what, make in made_of.items()}
    beyond = found.chosen.beyond if found.chosen else None
    parts["beyond"] = tables.described(tables.core(found.of(beyond)))
    parts |= {"by flag": tables.by_flag(found), "claims": claims.table(found), "made": made(found)}
    return together(parts)


def together(parts: Mapping[str, str]) -> str:
    """The parts below their headings."""
    sections = (f"## {title}\n\n{part}\n" for title, part in parts.items())
    return f"# {NAME}\n\n" + "\n".join(sections)


def numbers(found: Results) -> str:
    """Everything as JSON, one run a line."""
    head = {
        "command": COMMAND,
        "machine": facts(),
        "planned": found.planned,
        "missing": [[str(setting), *more] for setting, *more in found.missing],
        "chosen": {
            name: str(getattr(found.chosen, name, None) or "none")
            for name in ("edge", "stable", "beyond")
        },
        "comparisons": {
            str(setting): [asdict(each) for each in tables.compared(found.of(setting))]
            for setting in (found.edge, found.stable)
            if setting
        },
    }
    rows = [
        json.dumps(rounded({"setting": str(setting), "condition": condition, **asdict(run)}))
        for setting, condition, run in each_run(found)
    ]
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return f'{text},\n "runs": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n"


def each_run(found: Results) -> Iterator[tuple[Setting, str, Outcome]]:
    """Setting, condition and numbers of each run that ended."""
    for setting, conditions in found.runs.items():
        for condition, runs in conditions.items():
            for run in runs.values():
                yield setting, condition, run


def rounded(value: Any) -> Any:
    """Numbers with six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def state(found: Results) -> str:
    """How far the study is."""
    ended = list(each_run(found))
    failed = sum(bool(run.failed) for *_, run in ended)
    text = f"{len(ended)} runs ended, {failed} of them failed."
    if not found.missing:
        return f"{text} All {found.planned} planned runs are among them."
    left = sum(len(seeds) for *_, seeds in found.missing)
    at_edge = any(setting == found.edge for setting, *_ in found.missing)
    about = "Until they have ended, the p-values are not those of the plan."
    if found.edge and not at_edge:
        about = "The primary comparison, at the edge, is complete."
    return (
        f"**The study is not finished.** {text} {left} of {found.planned} planned runs are "
        f"missing, {len(found.unfinished)} of them began. {about}"
    )


def findings(found: Results) -> str:
    """The result in a few sentences."""
    edge = tables.core(found.of(found.edge))
    if found.edge is None:
        return "The search found no edge." if found.chosen else "The search is not finished."
    if BASE not in edge:
        return "No run of dapo-loss has ended at the edge yet."
    base = list(edge[BASE].values())
    before = mean(run.accuracies[0] for run in base if run.accuracies)
    comparisons = tables.compared(edge, every=False)
    holm = tables.corrected(edge)
    clear = [each for each in comparisons if holm[each.name, each.base] < 1 - LEVEL]
    rest = [each for each in comparisons if each not in clear]
    lines = [
        f"At the edge (learning rate {found.edge.learning_rate:g}), the held-out accuracy of "
        f"dapo-loss goes from {before:.3f} to {mean(run.last for run in base):.3f}, the means of "
        f"{len(base)} seeds. {tables.count(base, 'degraded')} runs degraded, which only says that "
        "they ended below their start.",
        f"{len(clear)} of the {len(comparisons)} primary comparisons "
        f"{'has' if len(clear) == 1 else 'have'} a p-value below 0.05 "
        "after Holm's correction.",
    ]
    for about, part in (("Below 0.05", clear), ("Not below 0.05", rest)):
        if part:
            shown = "; ".join(map(tables.signed_difference, part))
            lines.append(f"{about} (difference in last accuracy and its 95% interval): {shown}.")
    collapsed = (f"{name} {tables.count([*x.values()], 'collapsed')}" for name, x in edge.items())
    lines.insert(1, f"Runs that collapsed at the edge: {', '.join(collapsed)}.")
    for course in ("collapsed", "exploded"):
        shares = (
            f"{name} {sum(run.entropy_course == course for run in each.values())} of {len(each)}"
            for name, each in edge.items()
        )
        lines.append(f"Runs whose entropy {course}: {', '.join(shares)}.")
    return "\n".join(f"- {line}" for line in lines)


def facts() -> dict[str, str]:
    """The machine and the packages that the study uses, with plain names."""
    named = {"GiB": "memory, GiB", "rlobj": "commit of the report"}
    used = ("processor", "cores", "GiB", "Python", "torch", "transformers", "rlobj")
    return {named.get(name, name): x for name, x in machine().items() if name in used}


def made(found: Results) -> str:
    """Hardware, time, seeds, command, and the runs that failed."""
    lines = [f"- {name}: {value}" for name, value in facts().items()]
    each_made = [run.made for *_, run in each_run(found) if run.made]
    if each_made:
        commits = Counter(x["commit"] for x in each_made)
        cpu, wall = ([x[key] for x in each_made] for key in ("cpu_seconds", "wall_seconds"))
        lines += [
            f"- a run: {median(cpu):.0f} s CPU, {median(wall):.0f} s wall (medians), one thread",
            f"- {len(each_made)} runs: {sum(cpu) / 3600:.1f} h CPU, {sum(wall) / 3600:.1f} h wall",
            f"- commits of the runs: {', '.join(f'{x} ({n} runs)' for x, n in commits.items())}",
        ]
    lines.append(f"- command: `{COMMAND}`")
    for setting, conditions in found.runs.items():
        shown = (f"{name} {tables.spans(sorted(each))}" for name, each in conditions.items())
        lines.append(f"- seeds of {setting}: {'; '.join(shown)}")
    lines += [f"- missing: {setting}, {x}: {tables.spans(s)}" for setting, x, s in found.missing]
    failures = [each for each in each_run(found) if each[2].failed]
    for setting, condition, run in failures:
        folder = Run(setting, condition, run.seed).folder(found.folder)
        lines.append(
            f"- **failed**: {setting}, {condition}, seed {run.seed}: {run.failed}; the end of its "
            f"log: {last_line(folder / 'log')}"
        )
    return "\n".join(lines if failures else [*lines, "- No run failed."])


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    lines = log.read_text("utf-8", errors="replace").splitlines() if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "empty")
