"""`rlobj eval compare | regrade | score | show`: evaluations that exist, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from rlobj_cli.screen.console import loading, show_markdown


def show(directory: Path) -> None:
    """Show the results of an evaluation, finished or not, and write its results and page again."""
    console, evaluation, screen = _loaded()
    with screen(console) as callback:
        evaluation.summarise_folder(directory, callback=callback)


def compare(first: Path, second: Path, out: Path | None = None) -> None:
    """Compare two evaluations of the same problems: A minus B, problem by problem.

    [bold]Example[/bold]

    \b  rlobj eval compare evals/base evals/stapo
    """
    console, evaluation, _ = _loaded()
    from rlobj.base.files import write_whole

    comparison = evaluation.compare(first, second)
    show_markdown(console, comparison.to_markdown())
    if out is not None:
        write_whole(out, comparison.to_markdown().encode())
        console.print(f"wrote {out}", markup=False, highlight=False, soft_wrap=True)


def regrade(directory: Path, reward: str | None = None, deadline: float | None = None) -> None:
    """Grade the stored responses again, and list the grades that changed.

    Responses do not change; grades.jsonl, results and page are replaced.
    """
    console, evaluation, screen = _loaded()
    with screen(console, doing="grading ") as callback:
        evaluation.regrade(directory, reward=reward, deadline=deadline, callback=callback)


def score(
    files: list[Path],
    on: str | None = None,
    data_dir: Path | None = None,
    reward: str = "math",
    model: str | None = None,
    columns: list[str] | None = None,
    out: Path | None = None,
) -> None:
    """Grade responses of other programs, with the same grader, statistics and page.

    [bold]Examples[/bold]

    \b  rlobj eval score responses.jsonl
      rlobj eval score samples_minerva_math_2026-01-01T12-00-00.jsonl --model my-model
      rlobj eval score answers.parquet --on math500 --column response=completion
    """
    console, evaluation, screen = _loaded()
    with screen(console, "rlobj eval score", "grading ") as callback:
        evaluation.score(
            files,
            on,
            data_dir=data_dir,
            reward=reward,
            model=model,
            columns={part: name for part, _, name in (c.partition("=") for c in columns or [])},
            out=out or "auto",
            callback=callback,
        )


def _loaded() -> tuple[Any, Any, Any]:
    """A console, the library's module, and the class that shows an evaluation's progress."""
    console = Console()
    with loading(console):
        from rlobj import evaluation
        from rlobj_cli.evaluate.progress import EvaluationScreen

    return console, evaluation, EvaluationScreen
