"""`rlobj eval compare | regrade | score | show`: evaluations that exist, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlobj_cli.screen.data_folder import data_dir_option

__all__ = ["compare", "regrade", "score", "show"]

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an evaluation.")]
PARTS = ("id", "prompt", "answer", "response")


def show(directory: Folder) -> None:
    """Show the results of an evaluation, finished or not, and write its results and page again."""
    from rich.console import Console

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import summarise_folder
        from rlobj_cli.evaluate.progress import EvaluationScreen
        from rlobj_cli.evaluate.tables import show_files

    with EvaluationScreen(console) as screen:
        result = summarise_folder(directory, callback=screen)
    show_files(console, result)


def compare(
    first: Annotated[Path, typer.Argument(metavar="DIR_A", help="Folder of an evaluation.")],
    second: Annotated[Path, typer.Argument(metavar="DIR_B", help="Folder of another one.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.md", help="Write it as Markdown.")
    ] = None,
) -> None:
    """Compare two evaluations of the same problems: A minus B, problem by problem.

    [bold]Example[/bold]

    \b  rlobj eval compare evals/base evals/stapo
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.base.errors import RunError
        from rlobj.evaluation import compare as compare_evaluations
        from rlobj_cli.evaluate.tables import show_comparison

    comparison = compare_evaluations(first, second)
    show_comparison(console, comparison)
    if out is not None:
        try:
            out.write_text(comparison.to_markdown(), encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {out}: {error}") from error
        console.print(Text(f"wrote {out}"), soft_wrap=True)


def regrade(
    directory: Folder,
    reward: Annotated[
        str | None,
        typer.Option("--reward", metavar="math|exact", help="Grader. Default: as it was graded."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="SECONDS", help="Time for one answer (math)."),
    ] = None,
) -> None:
    """Grade the stored responses again, and list the grades that changed.

    Responses stay as they are; grades.jsonl, results and page are replaced.
    """
    from rich.console import Console

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import regrade as grade_again
        from rlobj_cli.evaluate.progress import EvaluationScreen
        from rlobj_cli.evaluate.tables import show_files

    with EvaluationScreen(console, doing="grading ") as screen:
        result = grade_again(directory, reward=reward, deadline=deadline, callback=screen)
    show_files(console, result)


def score(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Responses made elsewhere: JSONL, JSON or Parquet; also the sample files of "
            "lm-eval and the details of lighteval.",
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NAME",
            help="Benchmark whose gold answers to use, by id or question. Default: those in FILE.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        data_dir_option(),
    ] = None,
    reward: Annotated[str, typer.Option("--reward", metavar="math|exact", help="Grader.")] = "math",
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Whose responses they are, for the record."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="PART=COLUMN",
            help="Column of a part, if it is not found: id, prompt, answer or response.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder to make. Default: evals/ and FILE's name."
        ),
    ] = None,
) -> None:
    """Grade responses made elsewhere, with the same grader, statistics and page.

    [bold]Examples[/bold]

    \b  rlobj eval score responses.jsonl
      rlobj eval score samples_minerva_math_2026-01-01T12-00-00.jsonl --model my-model
      rlobj eval score answers.parquet --on math500 --column response=completion
    """
    from rich.console import Console

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import score as score_files
        from rlobj_cli.evaluate.progress import EvaluationScreen
        from rlobj_cli.evaluate.tables import show_files

    with EvaluationScreen(console, "rlobj eval score", "grading ") as screen:
        result = score_files(
            files,
            on,
            data_dir=data_dir,
            reward=reward,
            model=model,
            columns=_columns(columns or []),
            out=out or "auto",
            callback=screen,
        )
    show_files(console, result)


def _columns(given: list[str]) -> dict[str, str]:
    from rlobj.base.errors import ConfigError

    found = {}
    for text in given:
        part, equals, column = text.partition("=")
        if not equals or part not in PARTS:
            raise ConfigError(
                f"--column {text}: expected PART=COLUMN with one of {', '.join(PARTS)}, such as "
                "response=completion"
            )
        found[part] = column
    return found
