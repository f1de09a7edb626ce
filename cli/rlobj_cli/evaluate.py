"""`rlobj eval`, and `rlobj eval compare | regrade | show` for evaluations that exist."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from rlobj.base.launched import first_process, started_processes
from rlobj.reporting.terminal import Screen, importing, show_markdown
from rlobj_cli.screen import options
from rlobj_cli.screen.console import calm_libraries
from rlobj_cli.screen.options import DefaultGroup, NamelessCommand, setting_layers

evaluation = typer.Typer(
    name="eval",
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a policy; compare and regrade evaluations.",
)


@evaluation.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="DIR_A", help="Folder of an evaluation.")],
    second: Annotated[Path, typer.Argument(metavar="DIR_B", help="Folder of another evaluation.")],
) -> None:
    """Compare two evaluations of the same problems: A minus B, problem by problem.

    If one is the other graded again, the grades that changed are listed, too.

    [bold]Example[/bold]

    \b  rlobj eval compare evals/base evals/stapo
    """
    console, evaluations, _ = _loaded()
    show_markdown(console, evaluations.compare(first, second).to_markdown())


@evaluation.command()
def regrade(
    directory: options.Evaluation,
    reward: options.Reward = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The new folder. Default: DIR-KIND."),
    ] = None,
    trust: options.Trust = False,
) -> None:
    """Grade the stored responses again, without the model.

    The grades, results and page are in a new folder; the evaluation stays as it is.
    `rlobj eval compare` of both folders lists the grades that changed.

    [bold]Examples[/bold]

    \b  rlobj eval regrade evals/base
      rlobj eval regrade evals/base --reward math_verify
      rlobj eval compare evals/base evals/base-math_verify
    """
    _, evaluations, screen = _loaded()
    with screen("grading ") as callback:
        evaluations.regrade(directory, reward=reward, out=out, trust=trust, callback=callback)


@evaluation.command()
def show(directory: options.Evaluation) -> None:
    """Show the results of an evaluation, finished or not. Nothing is written.

    [bold]Example[/bold]

    \b  rlobj eval show evals/base
    """
    _, evaluations, screen = _loaded()
    with screen() as callback:
        evaluations.summarise_folder(directory, callback=callback)


def _loaded() -> tuple[Screen, Any, Any]:
    """A console, the library's module, and what shows an evaluation's progress and results."""
    console = Screen()
    with importing("torch", "transformers"):
        from rlobj import evaluation as evaluations
        from rlobj.evaluation.progress import EvaluationProgress

    return console, evaluations, partial(EvaluationProgress, console, results=True)


@evaluation.command(DefaultGroup.DEFAULT, cls=NamelessCommand)
def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A run, a model folder or GGUF file, a hub id, or: embedded."
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of a run: newest (the default), best, a step, or initial: before training.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES|FILE",
            help="aime24, aime25, amc23, math500, minerva, olympiadbench, brumo25, cmimc25, "
            "hmmt25; standard (the first six) or all; built-in tasks; files, folders or hub ids; "
            "separated by commas. Default: the run's own held-out problems.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A paper's settings: stapo, stapo-sampled, justrl, stare, dapo or lp-reg.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", "-n", metavar="N", min=1, help="Responses per problem."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The first N problems of each.")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with copies of benchmarks, such as aime24.jsonl."),
    ] = None,
    reward: options.Reward = None,
    environment: options.Environment = None,
    tools: options.Tools = None,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", "-t", metavar="T", min=0, help="0: greedy. Default: 1."),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", max=1, help="Nucleus sampling. 1: all.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Length limit of a response.")
    ] = None,
    seed: options.Seed = None,
    sampler: options.Sampler = None,
    settings: options.Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Default: one under evals/.")
    ] = None,
    processes: options.Processes = None,
    trust: options.Trust = False,
) -> None:
    """Sample responses to problems, grade them, and report how often they are right.

    After an interruption, the same command continues. The folder contains samples, grades,
    results.json, results.md and report.html, a page with every response.
    Of a run, its own settings are the defaults, such as its reward, environment and tools. Without
    a run, the reward is math for benchmarks and files, and exact for built-in tasks.

    [bold]Examples[/bold]

    \b  rlobj eval embedded -n 8
      rlobj eval Qwen/Qwen3-1.7B-Base --on aime24,math500 --protocol stapo --sampler vllm
      rlobj eval RUN --on problems.jsonl -n 32 --temperature 0.6
      rlobj eval MODEL --on all --data-dir benchmarks/
      rlobj eval MODEL --on aime24 --sampler vllm --processes 8
      rlobj eval MODEL --on aime24 --tools python --set environment.max_turns=8

    [bold]Related commands[/bold]

    \b  rlobj eval compare DIR_A DIR_B     compare two evaluations
      rlobj eval regrade DIR             grade the stored responses again
      rlobj eval show DIR                show the stored results
    """
    if processes not in (None, 1, started_processes()):
        from rlobj.training.parallel.launcher import launch

        raise typer.Exit(launch(sys.argv[1:], processes))
    console, evaluations, screen = _loaded()
    console.quiet = processes != 1 and not first_process()
    layers = setting_layers(context.params)
    calm_libraries(console)
    with screen(command="rlobj eval") as callback:
        evaluations.evaluate(
            model,
            on,
            protocol,
            checkpoint=checkpoint,
            data_dir=data_dir,
            settings=layers,
            out=out or "auto",
            trust=trust,
            processes=1 if processes == 1 else None,
            callback=callback,
        )
