"""Is the diagnosis silent on healthy runs, and right on runs made sick on purpose?

    python -m benchmarks.diagnosis --runs DIR [--out benchmarks/results]

trains every preset with three seeds on the default task, and every run of `sick_runs.py`. A run
that is finished in DIR is not repeated, so an interrupted study goes on where it was. Each run is a
process of one thread. The findings are computed anew from the metrics in DIR at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.harness import Table, parser, write

KEPT = ("config.resolved.yaml", "metrics.jsonl", "stopped.json")
"""Files that a diagnosis of names and steps reads; the others of a finished run are deleted."""


def main() -> None:
    made = parser(__doc__, "folder for diagnosis.json and diagnosis.md", runs=True)
    add = made.add_argument
    add("--presets", help="names with commas; default: all")
    add("--seeds", type=int, default=3, help="number of seeds of healthy runs")
    add("--task", help="built-in task of healthy runs; default: the default task")
    add("--steps", type=int, help="of healthy runs; default: the profile's")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="runs at one time")
    add("--no-sick", action="store_true", help="only healthy runs")
    options = made.parse_args()
    study = planned(options.presets, options.seeds, not options.no_sick)
    works = [partial(train, run, options.task, options.steps) for run in study]
    outs = [folder(options.runs, run) for run in study]
    jobs = [driver.Job(out, work, KEPT) for out, work in zip(outs, works, strict=True)]
    driver.make_study(jobs, options.jobs)
    table = measured(options.runs, study)
    print(table.markdown())
    if options.out:
        write(table, options.out)


Run = tuple[str, str, int]
"""healthy or sick, the preset's or the sick run's name, the seed."""


def planned(presets: str | None, seeds: int, sick: bool) -> list[Run]:
    """The runs of the study; the first seed of every preset that reads no score comes first."""
    from benchmarks.sick_runs import SICK
    from rlobj.config.presets import load_preset, preset_names

    alone = [name for name in preset_names() if "scores" not in load_preset(name).config]
    names = presets.split(",") if presets else alone
    healthy = [("healthy", name, seed) for seed in range(seeds) for name in names]
    return [*(("sick", name, 0) for name in SICK if sick), *healthy]


def folder(runs: Path, run: Run) -> Path:
    """The folder of a run."""
    kind, name, seed = run
    return runs / kind / f"{name.replace(' ', '-').replace(',', '')}-{seed}"


def train(run: Run, task: str | None, steps: int | None, out: Path) -> dict[str, str]:
    """Train one run from its beginning, and return what was found in it."""
    import rlobj
    from benchmarks.sick_runs import SICK

    kind, name, seed = run
    if kind == "sick":
        return {"diagnosis": str(SICK[name].train(out, seed))}
    settings = {"seed": seed, **({"training.steps": steps} if steps else {})}
    rlobj.train(name, data=task, out=out, settings=settings)
    return {"diagnosis": str(rlobj.diagnose(out))}


def measured(runs: Path, study: Iterable[Run]) -> Table:
    """The table of all finished runs."""
    rows = [row(runs, run) for run in study if (folder(runs, run) / "done").exists()]
    healthy = [each for each in rows if each["kind"] == "healthy"]
    sick = [each for each in rows if each["kind"] == "sick"]
    silent, right = (sum(each["right"] == "yes" for each in part) for part in (healthy, sick))
    reading = (
        f"{silent} of {len(healthy)} healthy runs have no finding. {right} of {len(sick)} sick "
        "runs have the findings that they must have, in time, and none that they must not have."
    )
    columns = {
        "kind": ("run", ""),
        "name": ("preset, or what was done", ""),
        "seed": ("seed", "d"),
        "steps": ("steps", "d"),
        "early": ("accuracy early", ".3f"),
        "late": ("late", ".3f"),
        "expected": ("must begin by step", ""),
        "found": ("found, since step", ""),
        "right": ("right", ""),
    }
    settings = {"healthy": len(healthy), "silent": silent, "sick": len(sick), "right": right}
    return Table("diagnosis", columns, rows, settings, reading=reading)


def row(runs: Path, run: Run) -> dict[str, Any]:
    """What was found in a run, and whether it is right."""
    import rlobj
    from benchmarks.sick_runs import SICK
    from rlobj.config.run_folder import read_metrics

    kind, name, seed = run
    out = folder(runs, run)
    [diagnosis] = rlobj.diagnose(out).runs
    found = {finding.name: finding.since for finding in diagnosis.findings}
    lines = [line for line in read_metrics(out) if line.get("reward/accuracy") is not None]
    early, late = (
        sum(line["reward/accuracy"] for line in part) / max(len(part), 1)
        for part in (lines[:5], lines[-5:])
    )
    right, expected = not found, {}
    if kind == "sick":
        expected = SICK[name].must
        in_time = all(found.get(each, step + 1) <= step for each, step in expected.items())
        right = in_time and not found.keys() & set(SICK[name].never)
    return {
        "kind": kind,
        "name": name if kind == "healthy" else f"{name}: {SICK[name].sickness}",
        "seed": seed,
        "steps": diagnosis.steps,
        "early": early,
        "late": late,
        "expected": _steps(expected),
        "found": _steps(found),
        "right": "yes" if right else "NO",
        "findings": found,
    }


def _steps(findings: Any) -> str:
    return ", ".join(f"{name} {step}" for name, step in findings.items()) or "–"


if __name__ == "__main__":
    main()
