"""`rlobj train` and `rlobj resume`: they parse the command line."""

from pathlib import Path
from typing import Annotated

import typer

import rlobj
from rlobj.base.launched import first_process
from rlobj.reporting.terminal import Screen, importing
from rlobj_cli.screen import options
from rlobj_cli.screen.options import setting_layers


def train(
    context: typer.Context,
    preset: options.Preset = None,
    model: options.Model = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="FILE|ID|TASK",
            help="Training problems: a JSONL, Parquet or CSV file, a folder, a hub id, or a task: "
            "scratchpad (the default without --model), calculator, addition or max-digits.",
        ),
    ] = None,
    reward: options.Reward = None,
    environment: options.Environment = None,
    tools: options.Tools = None,
    config: options.Config = None,
    settings: options.Settings = None,
    sampler: options.Sampler = None,
    seed: options.Seed = None,
    processes: options.Processes = None,
    strategy: options.Strategy = None,
    stop_on: options.StopOn = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="New folder. Default: runs/PRESET-TIME"),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@STEP]",
            help="A new run with the settings of another one, from the policy of its newest "
            "checkpoint, of a step, or of @best. --preset replaces the objective.",
        ),
    ] = None,
    trust: options.Trust = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the settings that differ from the defaults and where they come from, and "
            "explain the objective. Writes nothing.",
        ),
    ] = False,
    place: options.Place = None,
) -> None:
    """Train a policy with a published objective, or with your own.

    Without --model, a tiny embedded policy learns sums with a scratchpad:
    about a minute on a CPU.

    [bold]Examples[/bold]

    \b  rlobj train --preset stapo
      rlobj train --preset stapo --set training.steps=50 --seed 1
      rlobj train --preset dapo --set "objective.drop=(prob < 0.01)"
      rlobj train --preset dapo --model Qwen/Qwen3-1.7B-Base --data problems.jsonl
      rlobj train --preset grpo --data addition
      rlobj train --preset stare --data calculator
      rlobj train --preset grpo --model embedded --data sums.jsonl
      rlobj train --preset grpo --reward my_rewards.py:score
      rlobj train --preset grpo --model Qwen/Qwen3-4B --data math.jsonl --tools python
      rlobj train --preset stapo --processes 2 --strategy zero2
      rlobj train --from runs/stapo-20260101-120000@50 --set training.learning_rate=1e-6
    """
    typed = setting_layers(context.params)
    with importing(*([] if place else ["torch"])):
        from rlobj_cli.screen.training import DryRunScreen, screen_of

    screen = DryRunScreen(Screen(quiet=not first_process())) if dry_run else screen_of(place)
    rlobj.train(
        preset,
        from_run=from_run,
        out=out,
        config=config,
        settings=typed,
        processes=processes,
        trust=trust,
        dry_run=dry_run,
        progress=screen,
    )


def resume(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    settings: options.Settings = None,
    sampler: options.Sampler = None,
    processes: options.Processes = None,
    strategy: options.Strategy = None,
    stop_on: options.StopOn = None,
    trust: options.Trust = False,
    place: options.Place = None,
) -> None:
    """Continue a run from its newest checkpoint, on any number of processes.

    --set accepts training.steps, settings that do not change results, and the
    learning rate, max_grad_norm, old_logprobs and evaluation.*: the run records
    their changes.

    [bold]Examples[/bold]

    \b  rlobj resume runs/stapo-20260101-120000
      rlobj resume runs/stapo-20260101-120000 --set training.steps=300
      rlobj resume RUN --processes 4 --strategy zero3
    """
    with importing(*([] if place else ["torch"])):
        from rlobj_cli.screen.training import screen_of

    typed, screen = setting_layers(context.params), screen_of(place)
    rlobj.resume(run, settings=typed, processes=processes, trust=trust, progress=screen)
