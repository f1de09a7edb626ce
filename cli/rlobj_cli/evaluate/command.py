"""`rlobj eval`: how often a policy is right, and how sure that number is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlobj_cli.evaluate.existing import compare, regrade, score, show
from rlobj_cli.screen.data_folder import data_dir_option
from rlobj_cli.screen.errors import DefaultGroup, NamelessCommand

__all__ = ["evaluation"]

WHAT = "What is asked"
HOW = "How responses are drawn"
RUN = "Where"

evaluation = typer.Typer(
    name="eval",
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a policy; compare, regrade and score evaluations.",
)
evaluation.command("compare")(compare)
evaluation.command("regrade")(regrade)
evaluation.command("score")(score)
evaluation.command("show")(show)


@evaluation.command(DefaultGroup.DEFAULT, cls=NamelessCommand)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run (its newest checkpoint), a model folder, a hub id, or: embedded.",
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NAMES|FILE",
            help="aime24, aime25, amc23, math500, minerva, olympiadbench, brumo25, cmimc25, "
            "hmmt25; standard (the first six) or all; built-in tasks; files, folders or hub ids; "
            "separated by commas. Default: the run's own held-out problems.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="A paper's settings: stapo, stapo-sampled, justrl, stare, dapo or lp-reg. Options "
            "below change single ones.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            "-n",
            min=1,
            metavar="N",
            help="Responses per problem. Default: the protocol's, or 4.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            min=1,
            metavar="N",
            help="Only the first so many problems of each.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        data_dir_option(WHAT),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template",
            metavar="TEXT",
            help="Text around a problem, with {prompt} in it.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="math|exact",
            help="Grader. Default: math for benchmarks and files; exact for built-in tasks; the "
            "run's.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "-t",
            min=0,
            metavar="T",
            help="0 = greedy. Default: the run's, or 1.",
            rich_help_panel=HOW,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", max=1, metavar="P", help="Nucleus.", rich_help_panel=HOW),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=0, metavar="K", help="0 = all.", rich_help_panel=HOW),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            metavar="N",
            help="Longest response. Default: the run's; for benchmarks 20480, or what the model's "
            "context leaves; else 1024.",
            rich_help_panel=HOW,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            metavar="N",
            help="Equal seeds, equal samples. Default: 0.",
            rich_help_panel=HOW,
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler",
            metavar="NAME",
            help="transformers, vllm, or vllm-server (see rlobj serve).",
            rich_help_panel=HOW,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="Any other setting, such as model.chat_template=false; repeatable.",
            rich_help_panel=HOW,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder of the evaluation. Default: one under evals/ that belongs to exactly "
            "these settings, so that the same command continues it.",
            rich_help_panel=RUN,
        ),
    ] = None,
) -> None:
    """Sample a policy's answers to problems, grade them, and say how often they are right.

    If it is stopped, the same command continues it. DIR gets samples, grades, results.json,
    results.md and report.html, a page with every response.

    [bold]Examples[/bold]

    \b  rlobj eval embedded -n 8
      rlobj eval Qwen/Qwen3-1.7B-Base --on aime24,math500 --protocol stapo --sampler vllm
      rlobj eval runs/stapo-20260101-120000 --on problems.jsonl -n 32 --temperature 0.6
      rlobj eval MODEL --on all --data-dir benchmarks/

    [bold]And then[/bold]

    \b  rlobj eval compare DIR_A DIR_B     paired difference, p-value, flips
      rlobj eval regrade DIR             grade the stored responses again
      rlobj eval score FILE              grade responses made elsewhere
      rlobj eval show DIR                table and pages of what is stored
    """
    from rich.console import Console

    from rlobj_cli.screen.console import calm_libraries, loading

    console = Console()
    with loading(console):
        from rlobj.config.layers import nested, parse_setting
        from rlobj.evaluation import evaluate as evaluate_model
        from rlobj_cli.evaluate.progress import EvaluationScreen
        from rlobj_cli.evaluate.tables import show_files

    given = {
        "--limit": ("data.limit", limit),
        "--template": ("data.template", template),
        "--reward": ("rewards.kind", reward),
        "--temperature": ("evaluation.temperature", temperature),
        "--top-p": ("evaluation.top_p", top_p),
        "--top-k": ("evaluation.top_k", top_k),
        "--max-tokens": ("sampling.max_tokens", max_tokens),
        "-n": ("evaluation.samples", samples),
        "--seed": ("seed", seed),
        "--sampler": ("sampling.engine", sampler),
    }
    layers = [(f"--set {text}", parse_setting(text)) for text in settings or []]
    layers += [(flag, nested(*pair)) for flag, pair in given.items() if pair[1] is not None]
    calm_libraries(console)
    with EvaluationScreen(console, "rlobj eval") as screen:
        result = evaluate_model(
            model,
            on,
            protocol,
            data_dir=data_dir,
            settings=layers,
            out=out or "auto",
            callback=screen,
        )
    show_files(console, result)
