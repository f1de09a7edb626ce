"""What an evaluation came to: the table on screen, results.json and samples.jsonl."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import rlobj
from rlobj.errors import ConfigError, RunError
from rlobj.evaluation import Evaluation
from rlobj_cli.screen import number
from rlobj_cli.targets import Benchmark, Target

__all__ = ["Result", "prepare_folder", "show_table", "write_results"]


@dataclass(frozen=True)
class Result:
    """One benchmark's evaluation."""

    benchmark: Benchmark
    evaluation: Evaluation
    seconds: float

    @property
    def pass_at(self) -> dict[int, float]:
        """pass@k for k = 1, 2, 4, ... and n."""
        n = self.benchmark.config.evaluation.samples
        powers = [2**i for i in range(n.bit_length()) if 2**i < n]
        return {k: self.evaluation.pass_at(k) for k in (*powers, n)}

    @property
    def reasons(self) -> dict[str, int]:
        """Why samples were left undecided, and how many."""
        grades = [grade for each in self.evaluation.problems for grade in each.grades]
        return dict(Counter(grade.reason for grade in grades if grade.correct is None))


def show_table(console: Console, target: Target, results: Sequence[Result]) -> None:
    """Measures down, benchmarks across: it stays narrow however many k there are."""
    first = results[0].benchmark
    n = first.config.evaluation.samples
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for result in results:
        table.add_column(Text(result.benchmark.name), justify="right", overflow="fold")

    def row(name: str, *values: str, style: str | None = None) -> None:
        table.add_row(name, *values, style=style)

    runs = [result.evaluation for result in results]
    row("problems", *(f"{len(run.problems):,}" for run in runs))
    row(f"avg@{n}", *(number(run.accuracy) for run in runs), style="bold")
    for which, meaning in enumerate(("over samples", "over problems")):
        errors = [run.standard_errors[which] for run in runs]
        row(f"  ± standard error {meaning}", *(number(error) for error in errors), style="dim")
    for k in results[0].pass_at:
        row(f"pass@{k}", *(number(result.pass_at[k]) for result in results))
    table.add_section()
    row("mean length, tokens", *(number(run.mean_length, 1) for run in runs))
    row("truncated", *(f"{run.truncated:.1%}" for run in runs))
    row("undecided samples", *(f"{run.undecided:,}" for run in runs))
    console.print(table)
    settings = first.settings
    notes = [
        f"temperature {settings.temperature}, top-p {settings.top_p}, at most "
        f"{settings.max_tokens} tokens, seed {first.config.seed}, "
        f"{sum(result.seconds for result in results):.1f} s",
        "over samples: this policy on these very problems; over problems: on problems like these",
    ]
    for result in results:
        for reason, count in result.reasons.items():
            notes.append(f"{result.benchmark.name}: {count} undecided, {reason}")
    for note in notes:
        console.print(Text(note, style="dim"))


def prepare_folder(out: Path) -> None:
    """Make the folder for the results, before any time is spent on them.

    Raises:
        ConfigError: it holds results already, or cannot be written.
    """
    if (out / "results.json").exists():
        raise ConfigError(f"{out} holds results already. Choose another folder with --out DIR")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results to {out}: {error}") from error


def write_results(out: Path, target: Target, results: Sequence[Result]) -> None:
    """results.json with everything the numbers depend on, and samples.jsonl, a line a sample.

    Raises:
        RunError: the disk refused.
    """
    versions = {name: version(name) for name in ("torch", "transformers")}
    summary = {
        "model": target.name,
        "versions": {"rlobj": rlobj.__version__, **versions},
        "results": [_summary(result) for result in results],
    }
    lines = [line for result in results for line in _samples(result)]
    try:
        with (out / "samples.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        text = json.dumps(summary, indent=2, ensure_ascii=False)
        (out / "results.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write results to {out}: {error}") from error


def _summary(result: Result) -> dict[str, Any]:
    config, evaluation = result.benchmark.config, result.evaluation
    over_samples, over_problems = evaluation.standard_errors
    return {
        "on": result.benchmark.name,
        "problems": len(evaluation.problems),
        "samples_per_problem": config.evaluation.samples,
        "accuracy": _known(evaluation.accuracy),
        "accuracy_se_samples": _known(over_samples),
        "accuracy_se_problems": _known(over_problems),
        "pass_at": {str(k): _known(value) for k, value in result.pass_at.items()},
        "length_mean": _known(evaluation.mean_length),
        "truncated": _known(evaluation.truncated),
        "undecided": evaluation.undecided,
        "undecided_reasons": result.reasons,
        "seconds": round(result.seconds, 3),
        "seed": config.seed,
        "sampling": result.benchmark.settings.model_dump(mode="json"),
        "template": config.data.template,
        "rewards": config.rewards.model_dump(mode="json"),
    }


def _samples(result: Result) -> list[dict[str, Any]]:
    return [
        {
            "on": result.benchmark.name,
            "problem": each.problem.id,
            "sample": i,
            "prompt": each.problem.prompt,
            "answer": each.problem.answer,
            "response": sample.text,
            "graded_answer": grade.answer,
            "correct": grade.correct,
            "reason": grade.reason,
            "length": len(sample.token_ids),
            "finish": sample.finish,
        }
        for each in result.evaluation.problems
        for i, (sample, grade) in enumerate(zip(each.samples, each.grades, strict=True))
    ]


def _known(value: float) -> float | None:
    """JSON has no not-a-number."""
    return None if math.isnan(value) else value
