"""`rlobj train`: parses the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from rlobj_cli.screen.console import loading
from rlobj_cli.screen.options import data_dir_option, option

if TYPE_CHECKING:
    from rlobj.config.layers import Layer

WHAT = "What to train"
HOW = "Settings"
MANY = "Several processes"
RUN = "The run"
ON_RESUME = ("resume", "settings", "strategy", "stop_on", "processes", "data_dir")
"""Parameters that a resumed run accepts."""


def train(
    ctx: typer.Context,
    preset: Annotated[
        str | None,
        option(WHAT, "--preset -p NAME|FILE", "Published objective: see rlobj presets list."),
    ] = None,
    model: Annotated[
        str | None,
        option(
            WHAT,
            "--model -m FOLDER|ID",
            "Causal language model: a folder, a hub id, or embedded (the default): a tiny policy "
            "for the built-in tasks and for problems of digits and + - * , = only.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        option(
            WHAT,
            "--data -d FILE|ID|TASK",
            "Training problems: a JSONL, Parquet or CSV file, a folder, a hub id, or a built-in "
            "task.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        option(
            WHAT,
            "--task NAME",
            "A built-in task as --data: scratchpad (sums with their steps, the default without "
            "--model), scratchpad-3, scratchpad-5, addition or max-digits.",
        ),
    ] = None,
    reward: Annotated[
        str | None,
        option(
            WHAT,
            "--reward KIND|FILE.py:NAME",
            "What grades a response: math, exact, or your function f(response, answer, **columns), "
            "such as my_rewards.py:score.",
        ),
    ] = None,
    data_dir: Annotated[Path | None, data_dir_option(WHAT)] = None,
    config: Annotated[
        Path | None,
        option(
            HOW,
            "--config -c FILE",
            "YAML file with settings above those of the preset. It can name preset, model and data "
            "itself.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            HOW,
            "--set -s KEY=VALUE",
            "One setting, above everything else, such as training.steps=50. Repeatable.",
        ),
    ] = None,
    eval_on: Annotated[
        str | None,
        option(
            WHAT,
            "--eval-on NAME|FILE",
            "Held-out problems: a benchmark such as math500, a file, a folder or a hub id. "
            "Default: the test part of --data.",
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        option(
            HOW,
            "--eval-every N",
            "Steps between evaluations on the held-out problems. 0: none.",
            min=0,
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        option(
            HOW,
            "--sampler NAME",
            "Engine that samples responses: transformers, vllm (in this process), or vllm-server "
            "(see rlobj serve).",
        ),
    ] = None,
    async_depth: Annotated[
        int | None,
        option(
            HOW,
            "--async-depth K",
            "Sample while training runs, K rollouts ahead: each rollout is exactly K steps old. "
            "0: sample, then train.",
            min=0,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option(HOW, "--seed N", "Seed of sampling and data order.", min=0),
    ] = None,
    processes: Annotated[
        int | None,
        option(
            MANY,
            "--processes K",
            "Train in K processes on this machine, one per GPU if there are GPUs.",
            min=1,
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        option(
            MANY,
            "--strategy NAME",
            "How the processes share the policy: ddp, zero1, zero2, zero3, or fsdp2 (GPUs).",
        ),
    ] = None,
    stop_on: Annotated[
        list[str] | None,
        option(
            RUN,
            "--stop-on FINDING",
            "Save and stop with exit code 1 when the diagnosis finds this, such as collapse. "
            "Repeatable; see rlobj diagnose.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        option(RUN, "--out -o DIR", "New folder for the run. Default: runs/PRESET-TIME"),
    ] = None,
    resume: Annotated[
        Path | None,
        option(
            RUN,
            "--resume RUN",
            "Continue a run from its newest checkpoint, on any number of processes. Accepts "
            "--set training.steps=N and settings that do not change results.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        option(
            RUN,
            "--beside PRESET|base",
            "Then train with another objective, all else equal, into DIR-beside-PRESET, and print "
            "both runs side by side. base: the preset that --preset builds on.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        option(
            RUN,
            "--dry-run",
            "Show every setting and where it comes from, and explain the objective. Writes "
            "nothing.",
        ),
    ] = False,
) -> None:
    """Train a policy with a published objective, or with your own.

    Without --model, a tiny embedded policy learns sums with a scratchpad:
    about two minutes on a CPU.

    [bold]Examples[/bold]

    \b  rlobj train --preset stapo
      rlobj train --preset stapo --beside base
      rlobj train --preset stapo --set training.steps=50 --seed 1
      rlobj train --preset dapo --set "objective.drop=(prob < 0.01)"
      rlobj train --preset dapo --model Qwen/Qwen3-1.7B-Base --data problems.jsonl
      rlobj train --preset grpo --task addition
      rlobj train --preset grpo --model embedded --data sums.jsonl
      rlobj train --preset grpo --reward my_rewards.py:score
      rlobj train --preset stapo --processes 2 --strategy zero2
      rlobj train --resume runs/stapo-20260101-120000 --set training.steps=300
    """
    from rlobj.config.layers import reward_settings

    console = Console(quiet=os.environ.get("RANK", "0") != "0")  # the first process prints
    kept = [
        ("--strategy", "training.strategy", strategy),
        ("--stop-on", "training.stop_on", stop_on),
    ]
    if resume is not None:
        given = [
            f"--{name.replace('_', '-')}"
            for name, value in ctx.params.items()
            if name not in ON_RESUME and value is not None and value is not False
        ]
        changes = _overrides(None, kept, settings or [])
        _running(console).resume(console, resume, changes, given, processes)
        return
    options = [
        ("--model", "model.name", model),
        _problems(data, task),
        ("--reward", "rewards", None if reward is None else reward_settings(reward)),
        ("--eval-on", "data.test", eval_on),
        ("--eval-every", "evaluation.every", eval_every),
        ("--sampler", "sampling.engine", sampler),
        ("--async-depth", "sampling.async_depth", async_depth),
        ("--seed", "seed", seed),
        *kept,
    ]
    layers = _layers(preset, _overrides(config, options, settings or []))
    _running(console).start(console, layers, out, dry_run, processes, beside)


def _running(console: Console) -> Any:
    """The module that trains, whose import takes seconds, with a sign of life on the screen."""
    with loading(console):
        from rlobj_cli.train import running

    return running


def _problems(data: str | None, task: str | None) -> tuple[str, str, str | None]:
    """The option that names the training problems.

    Raises:
        ConfigError: --task and --data, or a task that does not exist.
    """
    from rlobj.base.errors import ConfigError, nearest
    from rlobj.data.tasks import TASKS

    if task is None:
        return "--data", "data.source", data
    if data is not None:
        raise ConfigError(f"--task {task} and --data {data} both name the problems: give one")
    if task not in TASKS:
        raise ConfigError(
            f"--task {task}: there is no such task.{nearest(task, TASKS, spell_out=False)} "
            f"The tasks are {', '.join(TASKS)}; a file or a hub id is given with --data"
        )
    return "--task", "data.source", task


def _overrides(
    config: Path | None, options: Sequence[tuple[str, str, Any]], settings: Sequence[str]
) -> list[Layer]:
    """The layers above the preset, lowest first; options are (name, dotted path, value)."""
    from rlobj.base.errors import ConfigError
    from rlobj.config.layers import file_layer, nested, parse_setting

    if config is not None and not config.expanduser().is_file():
        what = "is a folder, not a YAML file" if config.is_dir() else "is not there"
        raise ConfigError(f"--config {config} {what}")
    overrides: list[Layer] = [file_layer(config)] if config is not None else []
    overrides += [(name, nested(path, value)) for name, path, value in options if value is not None]
    return [*overrides, *(("--set", parse_setting(text)) for text in settings)]


def _layers(preset: str | None, overrides: list[Layer]) -> list[Layer]:
    """All layers of the command line, lowest first."""
    from rlobj.base.errors import ConfigError
    from rlobj.config.layers import layers_of

    layers = layers_of(preset, overrides)
    if not any("objective" in layer for _, layer in layers):
        raise ConfigError(
            "no objective: name a preset, or give a --config file with a preset or an objective:\n"
            "  rlobj train --preset stapo\n  rlobj presets list    shows all presets"
        )
    return layers
