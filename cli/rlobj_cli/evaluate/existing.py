"""`rlobj eval compare | regrade | score | show`: evaluations that exist, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rlobj_cli.screen.data_folder import data_dir_option

__all__ = ["compare", "regrade", "score", "show"]

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an evaluation.")]


def show(directory: Folder) -> None:
    """Show what an evaluation came to, finished or not, and write its results and page again."""
    from rich.console import Console

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import EvaluationDirectory
        from rlobj_cli.evaluate.results import publish

    publish(console, EvaluationDirectory.open(directory))


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

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import EvaluationDirectory
        from rlobj_cli.evaluate.comparing import show_comparison

    folders = EvaluationDirectory.open(first), EvaluationDirectory.open(second)
    show_comparison(console, *folders, out)


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
    """Grade the kept responses again, and list the grades that changed.

    Responses stay as they are; grades.jsonl, results and page are replaced.
    """
    from rich.console import Console

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        from rlobj.evaluation import EvaluationDirectory
        from rlobj_cli.evaluate.regrading import regrade_all

    change: dict[str, Any] = {"kind": reward, "deadline": deadline}
    given = {name: value for name, value in change.items() if value is not None}
    regrade_all(console, EvaluationDirectory.open(directory), given)


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
            help="Where a part lies, if it is not found: id, prompt, answer or response.",
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
        from rlobj_cli.evaluate.regrading import score_files

    score_files(console, files, on, data_dir, reward, model, columns or [], out)
