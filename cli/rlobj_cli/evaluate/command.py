"""`rlobj eval`: parses the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlobj_cli.evaluate.existing import compare, regrade, score, show
from rlobj_cli.screen.console import calm_libraries, loading
from rlobj_cli.screen.errors import DefaultGroup, NamelessCommand
from rlobj_cli.screen.options import data_dir_option, option

WHAT = "Problems"
HOW = "Sampling"
RUN = "Output"

evaluation = typer.Typer(
    name="eval",
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a policy; compare, regrade and score evaluations.",
)
for command in (compare, regrade, score, show):
    evaluation.command(command.__name__)(command)


@evaluation.command(DefaultGroup.DEFAULT, cls=NamelessCommand)
def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run (its newest checkpoint), a model folder, a hub id, or: embedded.",
        ),
    ],
    checkpoint: Annotated[
        str | None,
        option(WHAT, "--checkpoint NAME", "Of a run: newest, best (held-out accuracy), or a step."),
    ] = None,
    on: Annotated[
        str | None,
        option(
            WHAT,
            "--on NAMES|FILE",
            "aime24, aime25, amc23, math500, minerva, olympiadbench, brumo25, cmimc25, hmmt25; "
            "standard (the first six) or all; built-in tasks; files, folders or hub ids; "
            "separated by commas. Default: the run's own held-out problems.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        option(
            WHAT,
            "--protocol NAME",
            "A paper's settings: stapo, stapo-sampled, justrl, stare, dapo or lp-reg. Options "
            "below change single ones.",
        ),
    ] = None,
    samples: Annotated[
        int | None, option(WHAT, "--samples -n N", "Responses per problem. Default: 4.", min=1)
    ] = None,
    limit: Annotated[
        int | None, option(WHAT, "--limit N", "Use the first N problems of each.", min=1)
    ] = None,
    data_dir: Annotated[Path | None, data_dir_option(WHAT)] = None,
    template: Annotated[
        str | None,
        option(WHAT, "--template TEXT", "Text around a problem; must contain {prompt}."),
    ] = None,
    reward: Annotated[
        str | None,
        option(
            WHAT,
            "--reward KIND|FILE.py:NAME",
            "Grader: math, exact, or your function. Default: the run's; math for benchmarks and "
            "files; exact for built-in tasks.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        option(HOW, "--temperature -t T", "0: greedy. Default: the run's or 1.", min=0),
    ] = None,
    top_p: Annotated[
        float | None, option(HOW, "--top-p P", "Nucleus sampling. 1: all.", max=1)
    ] = None,
    top_k: Annotated[
        int | None, option(HOW, "--top-k K", "The K most likely tokens. 0: all.", min=0)
    ] = None,
    max_tokens: Annotated[
        int | None,
        option(
            HOW,
            "--max-tokens N",
            "Length limit of a response. Default: the run's; for benchmarks 20480, or the rest of "
            "the model's context; else 1024.",
            min=1,
        ),
    ] = None,
    seed: Annotated[int | None, option(HOW, "--seed N", "Of sampling. Default: 0.", min=0)] = None,
    sampler: Annotated[
        str | None,
        option(HOW, "--sampler NAME", "transformers, vllm, or vllm-server (see rlobj serve)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(HOW, "--set -s KEY=VALUE", "Any other setting, by its dotted name; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        option(RUN, "--out -o DIR", "Default: a folder under evals/ for exactly these settings."),
    ] = None,
) -> None:
    """Sample responses to problems, grade them, and report how often they are right.

    After an interruption, the same command continues. The folder contains samples, grades,
    results.json, results.md and report.html, a page with every response.

    [bold]Examples[/bold]

    \b  rlobj eval embedded -n 8
      rlobj eval Qwen/Qwen3-1.7B-Base --on aime24,math500 --protocol stapo --sampler vllm
      rlobj eval runs/stapo-20260101-120000 --on problems.jsonl -n 32 --temperature 0.6
      rlobj eval MODEL --on all --data-dir benchmarks/

    [bold]Related commands[/bold]

    \b  rlobj eval compare DIR_A DIR_B     compare two evaluations
      rlobj eval regrade DIR             grade the stored responses again
      rlobj eval score FILE              grade responses of other programs
      rlobj eval show DIR                show the stored results
    """
    console = Console()
    with loading(console):
        from rlobj.config.layers import nested, parse_setting, reward_settings
        from rlobj.evaluation import evaluate as evaluate_model
        from rlobj_cli.evaluate.progress import EvaluationScreen

    given = {
        "--limit": ("data.limit", limit),
        "--template": ("data.template", template),
        "--reward": ("rewards", None if reward is None else reward_settings(reward)),
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
        evaluate_model(
            model,
            on,
            protocol,
            checkpoint=checkpoint,
            data_dir=data_dir,
            settings=layers,
            out=out or "auto",
            callback=screen,
        )
