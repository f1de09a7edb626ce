"""`rlobj train`: parses the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rlobj
from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.validation import InvalidFields
from rlobj.reporting.terminal import importing
from rlobj_cli.screen import options
from rlobj_cli.screen.options import setting_layers

if TYPE_CHECKING:
    from rlobj.settings.layers import Layer


def train(
    preset: options.Preset = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER|FILE|ID",
            help="Causal language model: a folder, a GGUF file, a hub id, or embedded (the "
            "default): a tiny policy for the built-in tasks and for problems of digits and "
            "+ - * , = only.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="FILE|ID|TASK",
            rich_help_panel="Problems",
            help="Training problems: a JSONL, Parquet or CSV file, a folder, a hub id, or a "
            "built-in task.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Problems",
            help="A built-in task as --data: scratchpad (sums with their steps, the default "
            "without --model), calculator (the policy may ask one), addition or max-digits.",
        ),
    ] = None,
    reward: options.Reward = None,
    environment: options.Environment = None,
    tools: options.Tools = None,
    max_turns: options.MaxTurns = None,
    data_dir: options.DataDir = None,
    config: options.Config = None,
    settings: options.Settings = None,
    eval_on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            rich_help_panel="Problems",
            help="Held-out problems: a benchmark such as math500, a file, a folder or a hub id. "
            "Default: the test part of --data.",
        ),
    ] = None,
    eval_every: options.EvalEvery = None,
    sampler: options.Sampler = None,
    async_depth: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=0,
            rich_help_panel="Sampling",
            help="Sample while training runs, K rollouts ahead: each rollout is exactly K steps "
            "old. 0: sample, then train.",
        ),
    ] = None,
    seed: options.Seed = None,
    processes: options.Processes = None,
    strategy: options.Strategy = None,
    stop_on: options.StopOn = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            rich_help_panel="The run",
            help="New folder for the run. Default: runs/PRESET-TIME",
        ),
    ] = None,
    from_run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN[@STEP]",
            rich_help_panel="The run",
            help="A new run with the settings of another one, from the policy of its newest "
            "checkpoint, of a step, or of @best. If that run has no checkpoint yet, the new one "
            "starts from its model. Everything may be changed; --preset replaces the objective.",
        ),
    ] = None,
    trust: options.Trust = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            rich_help_panel="The run",
            help="Show every setting and where it comes from, and explain the objective. Writes "
            "nothing.",
        ),
    ] = False,
) -> None:
    """Train a policy with a published objective, or with your own.

    Without --model, a tiny embedded policy learns sums with a scratchpad:
    about a minute on a CPU.

    [bold]Examples[/bold]

    \b  rlobj train --preset stapo
      rlobj train --preset stapo --set training.steps=50 --seed 1
      rlobj train --preset dapo --set "objective.drop=(prob < 0.01)"
      rlobj train --preset dapo --model Qwen/Qwen3-1.7B-Base --data problems.jsonl
      rlobj train --preset grpo --task addition
      rlobj train --preset stare --task calculator
      rlobj train --preset grpo --model embedded --data sums.jsonl
      rlobj train --preset grpo --reward my_rewards.py:score
      rlobj train --preset grpo --model Qwen/Qwen3-4B --data math.jsonl --tools python
      rlobj train --preset stapo --processes 2 --strategy zero2
      rlobj train --from runs/stapo-20260101-120000@50 --set training.learning_rate=1e-6
    """
    from rlobj.conversations.settings import named_tools
    from rlobj.settings.layers import parse_setting, reward_settings

    named = setting_layers(
        {
            "--model": ("model.name", model),
            "--data": ("data.source", data),
            "--task": ("data.source", task),
            "--max-turns": ("environment.max_turns", max_turns),
            "--eval-on": ("data.test", eval_on),
            "--async-depth": ("sampling.async_depth", async_depth),
            "--seed": ("seed", seed),
            "--reward": ("rewards", None if reward is None else reward_settings(reward)),
            "--environment": ("environment.target", environment),
            "--tools": ("environment.tools", None if tools is None else named_tools(tools)),
            "--eval-every": ("evaluation.every", eval_every),
            "--sampler": ("sampling.engine", sampler),
            "--strategy": ("training.strategy", strategy),
            "--stop-on": ("training.stop_on", stop_on or None),
        }
    )
    typed = [*named, *(("--set", parse_setting(text)) for text in settings or [])]
    _check_problems(data, task)
    if from_run is None:
        _check_typed(preset, config, typed)
    with importing("torch"):
        from rlobj_cli.screen.training import DryRunScreen, explained, process_console, run_screen

    screen = (DryRunScreen if dry_run else run_screen)(process_console())
    with explained(screen):
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


def _check_problems(data: str | None, task: str | None) -> None:
    """Check the options that name the training problems.

    Raises:
        ConfigError: --task and --data, or a task that does not exist.
    """
    from rlobj.data.tasks import TASKS

    if None not in (task, data):
        raise ConfigError(f"--task {task} and --data {data} both name the problems: give one")
    if task is not None and task not in TASKS:
        raise ConfigError(
            f"--task {task}: there is no such task.{nearest(task, TASKS, spell_out=False)} "
            f"The tasks are {', '.join(TASKS)}; a file or a hub id is given with --data"
        )


def _check_typed(preset: str | None, config: Path | None, typed: Sequence[Layer]) -> None:
    """Check the model and the data before torch is imported, which takes seconds.

    A preset of one's own may name the columns, so the data are checked later, with its settings.

    Raises:
        ConfigError: there is no such model, or as `check_columns`.
        DataError: as `check_columns`.
    """
    from rlobj.data.sources import DataConfig, check_columns
    from rlobj.models.location import require_model
    from rlobj.settings.layers import file_layer, merged
    from rlobj.settings.presets import preset_names

    settings = merged([*([] if config is None else [file_layer(config)]), *typed])
    model, data = (settings.get(section) for section in ("model", "data"))
    name = model.get("name") if isinstance(model, Mapping) else None
    if isinstance(name, str) and name != "embedded":
        with reported(ConfigError, "model.name", ConfigError):
            require_model(name)
    preset = preset or settings.get("preset")
    if isinstance(data, Mapping) and preset in (None, *preset_names()):
        with contextlib.suppress(InvalidFields):  # all wrong settings are reported together, later
            check_columns(DataConfig(**data), answers=False)
