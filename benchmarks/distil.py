"""The runs and the figure of docs/distil-and-reinforce.md: a teacher, a reward, and both.

    python -m benchmarks.distil --runs DIR [--out benchmarks/results] [--pictures docs/_static]

A run that is finished in DIR is not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import driver
from benchmarks.driver import Job
from benchmarks.harness import machine, parser

SEEDS, STEPS, TEACHER_STEPS = 3, 100, 240
COMMON = {
    "training.updates_per_step": 1,
    "training.learning_rate": 5e-4,
    "evaluation.every": 10,
    "checkpoint.every": 0,
    "output.tables_every": 0,
}
SHAPES = {
    "reward": None,
    "teacher": "clip(teacher_gap, -5, 5)",
    "both": "advantage + 0.5 * clip(teacher_gap, -5, 5)",
}
NAMES = {"reward": "reward alone", "teacher": "teacher alone", "both": "reward and teacher"}


def main() -> None:
    made = parser(__doc__, "folder for distil.json", runs=True)
    made.add_argument("--pictures", type=Path, help="folder for the figure")
    options = made.parse_args()
    teacher = options.runs / "teacher"
    driver.make_study([Job(teacher, train_teacher)])
    study = [(name, seed) for seed in range(SEEDS) for name in SHAPES]
    driver.make_study(
        [Job(options.runs / f"{n}-{s}", partial(train, n, s, teacher)) for n, s in study], 2
    )
    rows = [{"arm": n, "seed": s, **curve(options.runs / f"{n}-{s}")} for n, s in study]
    found = {"teacher": curve(teacher), "rows": rows, "machine": machine()}
    text = json.dumps(found, indent=1) + "\n"
    print(summary(found))
    if options.out:
        (options.out / "distil.json").write_text(text, encoding="utf-8")
    if options.pictures:
        draw(found, options.pictures / "distil.svg")


def train_teacher(out: Path) -> dict[str, str]:
    """Train the teacher, with the reward alone."""
    import rlobj

    settings = {**COMMON, "training.steps": TEACHER_STEPS, "seed": 100, "checkpoint.every": 240}
    rlobj.train("dapo", out=out, settings=settings)
    return {}


def train(name: str, seed: int, teacher: Path, out: Path) -> dict[str, str]:
    """Train one arm."""
    import rlobj

    settings: dict[str, Any] = {**COMMON, "training.steps": STEPS, "seed": seed}
    if SHAPES[name] is not None:
        settings |= {"objective.shape": SHAPES[name], "scores.teacher.run": str(teacher)}
        settings["scores.teacher.checkpoint"] = "best"
    rlobj.train("dapo-loss", out=out, settings=settings)
    return {}


def curve(run: Path) -> dict[str, list[float]]:
    """Sampled tokens and held-out accuracy at each evaluation, and the gap to the teacher."""
    from rlobj.runs.metrics import read_metrics

    tokens, found = 0.0, {"tokens": [], "accuracy": [], "gap": []}
    for line in read_metrics(run):
        tokens += line.get("tokens/sampled", 0.0)
        if "eval/accuracy" in line:
            found["tokens"].append(tokens)
            found["accuracy"].append(line["eval/accuracy"])
            found["gap"].append(line.get("score/teacher/gap"))
    return found


def summary(found: dict[str, Any]) -> str:
    """The table of the page: tokens, and accuracies after 20, 50 and the last 20 steps."""
    teacher = found["teacher"]
    lines = [
        "| run | sampled tokens | step 20 | step 50 | mean of the last three, by seed |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| teacher's | {teacher['tokens'][-1]:,.0f} | | | best {max(teacher['accuracy']):.3f} |",
    ]
    for arm, name in NAMES.items():
        rows = [row for row in found["rows"] if row["arm"] == arm]
        early, half = (mean(row["accuracy"][i] for row in rows) for i in (2, 5))
        ends = ", ".join(f"{mean(row['accuracy'][-3:]):.3f}" for row in rows)
        tokens = mean(row["tokens"][-1] for row in rows)
        lines.append(f"| {name} | {tokens:,.0f} | {early:.3f} | {half:.3f} | {ends} |")
    return "\n".join(lines)


def draw(found: dict[str, Any], file: Path) -> None:
    """Held-out accuracy by sampled tokens: of the student alone, and with the teacher's."""
    from matplotlib.figure import Figure

    from rlobj.reporting.figures import COLORS

    figure = Figure((10, 4), layout="constrained")
    axes: Sequence[Any] = figure.subplots(1, 2, sharey=True)
    own, best = found["teacher"]["tokens"][-1], max(found["teacher"]["accuracy"])
    for axis, charged in zip(axes, (False, True), strict=True):
        for color, (arm, name) in zip(COLORS, NAMES.items(), strict=False):
            rows = [row for row in found["rows"] if row["arm"] == arm]
            before = own if charged and arm != "reward" else 0.0
            for number, row in enumerate(rows):
                places = [(before + each) / 1000 for each in row["tokens"]]
                label = name if not number else None
                axis.plot(places, row["accuracy"], color=color, label=label, linewidth=1.2)
        axis.axhline(best, color="0.5", linestyle=":", label="teacher")
        axis.set_xlabel("thousand sampled tokens" + ", with the teacher's" * charged)
    axes[0].set_ylabel("held-out accuracy")
    axes[0].legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


if __name__ == "__main__":
    main()
