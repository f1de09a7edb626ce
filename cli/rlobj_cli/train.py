"""`rlobj train`: parses the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from rlobj.base.errors import ConfigError, nearest
from rlobj_cli.screen.console import Screen, working
from rlobj_cli.screen.options import refused_on_resume, settings_given

if TYPE_CHECKING:
    from rlobj.config.layers import Layer


def train(
    ctx: typer.Context,
    preset: str | None = None,
    model: str | None = None,
    data: str | None = None,
    task: str | None = None,
    reward: str | None = None,
    environment: str | None = None,
    tools: str | None = None,
    max_turns: int | None = None,
    data_dir: Path | None = None,
    config: Path | None = None,
    settings: list[str] | None = None,
    eval_on: str | None = None,
    eval_every: int | None = None,
    sampler: str | None = None,
    async_depth: int | None = None,
    seed: int | None = None,
    processes: int | None = None,
    strategy: str | None = None,
    stop_on: list[str] | None = None,
    out: Path | None = None,
    from_run: str | None = None,
    resume: Path | None = None,
    trust: bool = False,
    dry_run: bool = False,
) -> None:
    """Train a policy with a published objective, or with your own.

    Without --model, a tiny embedded policy learns sums with a scratchpad:
    about two minutes on a CPU.

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
      rlobj train --resume runs/stapo-20260101-120000 --set training.steps=300
      rlobj train --from runs/stapo-20260101-120000@50 --set training.learning_rate=1e-6
    """
    from rlobj.config.run_config import build_config

    console = Screen(quiet=os.environ.get("RANK", "0") != "0")  # the first process prints
    given = settings_given(ctx, "train")
    if resume is not None:
        from rlobj.training.run import open_resumed

        code = ("--reward", "--environment", "--tools")
        changing = [layer for layer in given if layer[0] not in code]
        again = [(name[2:], values) for name, values in given if name in code]
        changes, refused = _overrides(None, changing, settings or []), refused_on_resume(ctx)
        with working(console):
            found = open_resumed(resume, changes, again, trust=trust, refused=refused)
        _training(console).resume(console, found, changes, processes, reward)
        return
    _check_problems(data, task)
    overrides = _overrides(config, given, settings or [])
    from rlobj.training.run import layers_from, new_folder, prepared

    if from_run is None:
        layers = _layers(preset, overrides)
    else:
        with working(console):
            layers = layers_from(from_run, preset, overrides, trust=trust)
    built = prepared(build_config(layers, trust=trust))  # a mistake is an error at once
    folder = new_folder(built, None if dry_run else out)
    _training(console).start(console, built, layers, folder, dry_run, processes)


def _training(console: Console) -> Any:
    """The module that trains, whose import takes seconds, with a sign of life on the screen."""
    with working(console):
        from rlobj_cli.screen import training

    return training


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


def _overrides(config: Path | None, given: Sequence[Layer], settings: Sequence[str]) -> list[Layer]:
    """The layers above the preset, lowest first."""
    from rlobj.base.files import path_of
    from rlobj.config.layers import file_layer, parse_setting

    if config is not None and not (path := path_of(config)).is_file():
        what = "is a folder, not a YAML file" if path.is_dir() else "is no file"
        what = what if path.exists() else "is not there"
        raise ConfigError(f"--config {config} {what}")
    below = [file_layer(config)] if config is not None else []
    return [*below, *given, *(("--set", parse_setting(text)) for text in settings)]


def _layers(preset: str | None, overrides: list[Layer]) -> list[Layer]:
    """All layers of the command line, lowest first."""
    from rlobj.config.layers import layers_of

    layers = layers_of(preset, overrides)
    if not any("objective" in layer for _, layer in layers):
        raise ConfigError(
            "no objective: name a preset, or give a --config file with a preset or an objective:\n"
            "  rlobj train --preset stapo\n  rlobj presets list    shows all presets"
        )
    return layers
