"""`rlobj eval`, and `rlobj eval compare | regrade | show` for evaluations that exist."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer

from rlobj_cli.screen.console import Screen, calm_libraries, show_markdown, working
from rlobj_cli.screen.groups import DefaultGroup, NamelessCommand
from rlobj_cli.screen.options import described, settings_given


def show(directory: Path) -> None:
    """Show the results of an evaluation, finished or not, and write its results and page again."""
    console, evaluations, screen = _loaded()
    with screen(console) as callback:
        evaluations.summarise_folder(directory, callback=callback)


def compare(first: Path, second: Path, out: Path | None = None) -> None:
    """Compare two evaluations of the same problems: A minus B, problem by problem.

    [bold]Example[/bold]

    \b  rlobj eval compare evals/base evals/stapo
    """
    console, evaluations, _ = _loaded()
    from rlobj.base.files import write_whole

    comparison = evaluations.compare(first, second)
    show_markdown(console, comparison.to_markdown())
    if out is not None:
        write_whole(out, comparison.to_markdown().encode())
        console.print(f"wrote {out}", markup=False, highlight=False, soft_wrap=True)


def regrade(directory: Path, reward: str | None = None, deadline: float | None = None) -> None:
    """Grade the stored responses again, and list the grades that changed.

    Responses do not change; grades.jsonl, results and page are replaced.

    [bold]Examples[/bold]

    \b  rlobj eval regrade evals/base
      rlobj eval regrade evals/base --reward math
    """
    console, evaluations, screen = _loaded()
    with screen(console, doing="grading ") as callback:
        evaluations.regrade(directory, reward=reward, deadline=deadline, callback=callback)


def _loaded() -> tuple[Any, Any, Any]:
    """A console, the library's module, and the class that shows an evaluation's progress."""
    console = Screen()
    with working(console):
        from rlobj import evaluation as evaluations
        from rlobj_cli.screen.progress import EvaluationScreen

    return console, evaluations, EvaluationScreen


def evaluate(
    ctx: typer.Context,
    model: str,
    checkpoint: str | None = None,
    on: str | None = None,
    protocol: str | None = None,
    samples: int | None = None,
    limit: int | None = None,
    data_dir: Path | None = None,
    template: str | None = None,
    reward: str | None = None,
    environment: str | None = None,
    tools: str | None = None,
    max_turns: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    settings: list[str] | None = None,
    out: Path | None = None,
    processes: int | None = None,
    trust: bool = False,
) -> None:
    """Sample responses to problems, grade them, and report how often they are right.

    After an interruption, the same command continues. The folder contains samples, grades,
    results.json, results.md and report.html, a page with every response.

    [bold]Examples[/bold]

    \b  rlobj eval embedded -n 8
      rlobj eval Qwen/Qwen3-1.7B-Base --on aime24,math500 --protocol stapo --sampler vllm
      rlobj eval runs/stapo-20260101-120000 --on problems.jsonl -n 32 --temperature 0.6
      rlobj eval MODEL --on all --data-dir benchmarks/
      rlobj eval MODEL --on aime24 --sampler vllm --processes 8
      rlobj eval MODEL --on aime24 --tools python --max-turns 8

    [bold]Related commands[/bold]

    \b  rlobj eval compare DIR_A DIR_B     compare two evaluations
      rlobj eval regrade DIR             grade the stored responses again
      rlobj eval show DIR                show the stored results
    """
    if processes not in (None, 1):
        from rlobj.training.parallel.launcher import launch

        raise typer.Exit(launch(sys.argv[1:], processes))
    console, evaluations, screen = _loaded()
    from rlobj.config.layers import parse_setting

    console.quiet = processes != 1 and os.environ.get("RANK", "0") != "0"  # the first one prints
    layers = [(f"--set {text}", parse_setting(text)) for text in settings or []]
    layers += settings_given(ctx, "eval")
    calm_libraries(console)
    with screen(console, "rlobj eval") as callback:
        evaluations.evaluate(
            model,
            on,
            protocol,
            checkpoint=checkpoint,
            data_dir=data_dir,
            settings=layers,
            out=out or "auto",
            trust=trust,
            processes=processes,
            callback=callback,
        )


evaluation = typer.Typer(
    name="eval",
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a policy; compare and regrade evaluations.",
)
for command in (compare, regrade, show):
    evaluation.command(command.__name__)(described(f"eval {command.__name__}", command))
evaluation.command(DefaultGroup.DEFAULT, cls=NamelessCommand)(described("eval", evaluate))
