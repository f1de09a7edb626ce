"""`rlobj eval`: parses the command line."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from rlobj_cli.evaluate.existing import compare, regrade, score, show
from rlobj_cli.screen.console import calm_libraries, loading
from rlobj_cli.screen.errors import DefaultGroup, NamelessCommand
from rlobj_cli.screen.options import described, settings_given

evaluation = typer.Typer(
    name="eval",
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Evaluate a policy; compare, regrade and score evaluations.",
)
for command in (compare, regrade, score, show):
    evaluation.command(command.__name__)(described(f"eval {command.__name__}", command))


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
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    settings: list[str] | None = None,
    out: Path | None = None,
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
        from rlobj.config.layers import parse_setting
        from rlobj.evaluation import evaluate as evaluate_model
        from rlobj_cli.evaluate.progress import EvaluationScreen

    layers = [(f"--set {text}", parse_setting(text)) for text in settings or []]
    layers += settings_given(ctx, "eval")
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


evaluation.command(DefaultGroup.DEFAULT, cls=NamelessCommand)(described("eval", evaluate))
