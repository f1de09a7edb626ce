"""The runs and the pictures of docs/diagnosis.md: a sick run, its cure, two others.

    python -m benchmarks.collapse --runs DIR [--out benchmarks/results] [--pictures docs/_static]

A run that is finished in DIR is not repeated. The page shows collapse.json as a table. Pictures of
pages need Chromium.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlencode

from benchmarks import driver
from benchmarks.driver import Job
from benchmarks.harness import machine, of_tests, parser

WEIGHT = "objective.reweight=when(advantage > 0, 1 + 3 * surprisal, 1)"
RULE = "objective.drop=(advantage > 0) & (prob < {})"
RUNS = {
    "sick": (WEIGHT,),
    "cured": (WEIGHT, RULE.format(0.1)),
    "stapo": (WEIGHT, RULE.format(0.002) + " & entropy.bottom(0.8)"),
    "grpo": (),
}
"""What each run sets, above the preset grpo."""
STEPS, SEEDS = 40, 3
SWEEP = ("(advantage > 0) & (prob < TAU)", "TAU=0.001..0.5:8")
TOKEN = {"range:advantage": "0.001..", "range:prob": "..0.1", "step": "10", "at": "10_1_218_6"}
"""What the picture of the inspection page shows."""


def main() -> None:
    made = parser(__doc__, "folder for collapse.json", runs=True)
    made.add_argument("--pictures", type=Path, help="folder for the pictures")
    options = made.parse_args()
    study = [(name, seed) for seed in range(SEEDS) for name in RUNS]
    outs = [folder(options.runs, *run) for run in study]
    driver.make_study(
        [Job(out, partial(train, *run)) for out, run in zip(outs, study, strict=True)]
    )
    rows = [row(options.runs, name, seed) for name in RUNS for seed in range(SEEDS)]
    found = json.dumps({"rows": rows, "machine": machine()}, indent=1) + "\n"
    print(found)
    if options.out:
        (options.out / "collapse.json").write_text(found, encoding="utf-8")
    if options.pictures:
        draw(options.runs, options.pictures)


def folder(runs: Path, name: str, seed: int = 0) -> Path:
    """The folder of a run."""
    return runs / (f"{name}-seed-{seed}" if seed else name)


def train(name: str, seed: int, out: Path) -> dict[str, str]:
    """Train a run as the page does."""
    import rlobj

    given = dict(setting.split("=", 1) for setting in RUNS[name])
    rlobj.train("grpo", out=out, settings={"seed": seed, "training.steps": STEPS, **given})
    return {}


def row(runs: Path, name: str, seed: int) -> dict[str, Any]:
    """What came out of a run; the shares are those of its last 10 steps."""
    import rlobj
    from rlobj.runs.metrics import read_metrics

    lines = read_metrics(folder(runs, name, seed))
    held_out = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    [diagnosis] = rlobj.diagnose(folder(runs, name, seed)).runs

    def total(metric: str, part: Sequence[Any] = lines) -> float:
        return sum(line.get(metric) or 0.0 for line in part)

    return {
        "run": name,
        "seed": seed,
        "before": held_out[0],
        "after": held_out[-1],
        "entropy": total("policy/entropy", lines[-10:]) / 10,
        "spurious": total("spurious/share", lines[-10:]) / 10,
        "tokens": total("tokens/step"),
        "dropped": total("tokens/dropped"),
        "judged": total("spurious/dropped"),
        "caught": total("spurious/caught"),
        "spurious_tokens": total("spurious/tokens"),
        "findings": {finding.name: finding.since for finding in diagnosis.findings},
    }


def draw(runs: Path, out: Path) -> None:
    """The pictures of the page."""
    import rlobj
    from rlobj.insight import write_inspection_page
    from rlobj.reporting.figures import save_figure

    out.mkdir(parents=True, exist_ok=True)
    sick = folder(runs, "sick")
    save_figure(accuracies(runs), out / "collapse-accuracy.svg")
    rule, values = SWEEP
    swept = rlobj.replay(sick, [rule], sweep=values, step=10).figure()
    save_figure(swept, out / "collapse-sweep.svg")
    report = rlobj.report([sick], out=runs / "report.html")
    write_inspection_page(sick, runs / "inspect.html")
    photograph(report, "", (1000, 530), "Entropy", out / "collapse-report.png")
    page = f"#{urlencode(TOKEN)}"
    photograph(runs / "inspect.html", page, (1100, 920), "", out / "collapse-tokens.png")


def accuracies(runs: Path) -> Any:
    """The accuracy of the samples by step: the mean over seeds, between the lowest and highest."""
    from rlobj.reporting.figures import Figure, Line
    from rlobj.runs.metrics import read_metrics

    titles = {
        "grpo": "GRPO",
        "cured": "with the weight and the rule",
        "stapo": "with the weight and STAPO's rule",
        "sick": "with the weight",
    }
    drawn = []
    for number, (name, title) in enumerate(titles.items()):
        seeds = [read_metrics(folder(runs, name, seed)) for seed in range(SEEDS)]
        curves = [[x["reward/accuracy"] for x in lines[1:]] for lines in seeds]
        steps = list(zip(*curves, strict=True))
        middle, low, high = ([f(step) for step in steps] for f in (mean, min, max))
        drawn.append(Line(title, range(1, len(steps) + 1), middle, low, high, run=number))
    title = f"Accuracy of the samples, {SEEDS} seeds"
    return Figure("accuracy", title, "share of responses", drawn)


def photograph(page: Path, fragment: str, size: tuple[int, int], heading: str, out: Path) -> None:
    """A picture of a page in Chromium, from a heading on, with few colours to be small."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as profile:
        browser = of_tests("browser").Browser(Path(profile))
        browser.resize(*size)
        browser.open(page, fragment)
        found = f"[...document.querySelectorAll('h2')].find(e => e.textContent === '{heading}')"
        if heading:
            browser.run(f"{found}.scrollIntoView(); scrollBy(0, -100)")
        else:
            browser.wait("document.querySelector('#found').textContent.includes('of')")
        time.sleep(2)  # charts are drawn when they come into view
        browser.screenshot(out)
        browser.close()
    Image.open(out).convert("RGB").quantize(64).save(out, optimize=True)


if __name__ == "__main__":
    main()
