"""`rlobj train`: a run from a preset, or the rest of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlobj_cli.screen.data_folder import data_dir_option
from rlobj_cli.train import running

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.config.layers import Layer

__all__ = ["train"]

WHAT = "What to train"
HOW = "Settings"
MANY = "Several processes"
RUN = "The run"


def train(
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            "-p",
            metavar="NAME|FILE",
            help="Published objective; see rlobj presets list.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER|ID",
            help="Causal language model: folder or hub id. Default: the embedded policy.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            metavar="FILE|ID|TASK",
            help="Problems: JSONL, Parquet or CSV file, folder, hub id, or built-in task.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    data_dir: Annotated[Path | None, data_dir_option(WHAT)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="YAML over the preset; may name preset, model and data itself.",
            rich_help_panel=HOW,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="One setting, over everything else; repeatable.",
            rich_help_panel=HOW,
        ),
    ] = None,
    eval_on: Annotated[
        str | None,
        typer.Option(
            "--eval-on",
            metavar="NAME|FILE",
            help="Held-out problems: a benchmark such as math500, a file, a folder or a hub id. "
            "Default: the test part of --data.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            "--eval-every",
            min=0,
            metavar="N",
            help="Steps between evaluations on the held-out problems; 0: none.",
            rich_help_panel=HOW,
        ),
    ] = None,
    sampler: Annotated[
        str | None,
        typer.Option(
            "--sampler",
            metavar="NAME",
            help="Engine that draws responses: transformers, vllm (in this process), or "
            "vllm-server (see rlobj serve).",
            rich_help_panel=HOW,
        ),
    ] = None,
    async_depth: Annotated[
        int | None,
        typer.Option(
            "--async-depth",
            min=0,
            metavar="K",
            help="Sample K rollouts ahead while training goes on: each exactly K steps old. "
            "0: sample, then train.",
            rich_help_panel=HOW,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            metavar="N",
            help="Of sampling, data order and policy.",
            rich_help_panel=HOW,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            metavar="K",
            help="Train in K processes on this machine, one a GPU where there are GPUs.",
            rich_help_panel=MANY,
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help="How processes share the policy: ddp, zero1, zero2, zero3, or fsdp2 (GPUs).",
            rich_help_panel=MANY,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="New folder for the run. Default: runs/PRESET-TIME",
            rich_help_panel=RUN,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue a run, on any number of processes; goes with more steps and with "
            "settings that change no result.",
            rich_help_panel=RUN,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show every setting, who set it, and the objective in words; write nothing.",
            rich_help_panel=RUN,
        ),
    ] = False,
) -> None:
    """Train a policy with a published objective, or one of yours.

    Without --model a tiny embedded policy learns to add on a CPU, in about a minute.

    [bold]Examples[/bold]

    \b  rlobj train --preset stapo
      rlobj train --preset stapo --set training.steps=50 --seed 1
      rlobj train --preset dapo --set "objective.drop=(prob < 0.01)"
      rlobj train --preset dapo --model Qwen/Qwen3-1.7B-Base --data problems.jsonl
      rlobj train --preset stapo --processes 2 --strategy zero2
      rlobj train --resume runs/stapo-20260101-120000 --set training.steps=300
    """
    from rlobj_cli.train import ranks

    console = ranks.console()
    placed = [("--strategy", "training.strategy", strategy)]
    if resume is not None:
        others = {
            "--preset": preset,
            "--model": model,
            "--data": data,
            "--eval-on": eval_on,
            "--eval-every": eval_every,
            "--config": config,
            "--sampler": sampler,
            "--async-depth": async_depth,
            "--seed": seed,
            "--out": out,
            "--dry-run": dry_run or None,
        }
        given = [name for name, value in others.items() if value is not None]
        overrides = _overrides(None, placed, settings or [])
        _import_library(console)
        running.resume(console, resume, overrides, given, processes)
        return
    options = [
        ("--model", "model.name", model),
        ("--data", "data.source", data),
        ("--eval-on", "data.test", eval_on),
        ("--eval-every", "evaluation.every", eval_every),
        ("--sampler", "sampling.engine", sampler),
        ("--async-depth", "sampling.async_depth", async_depth),
        ("--seed", "seed", seed),
        *placed,
    ]
    layers = _layers(preset, _overrides(config, options, settings or []))
    _import_library(console)
    running.start(console, layers, out, dry_run, processes)


def _import_library(console: Console) -> None:
    """Import torch and the trainer, which takes seconds, with a sign of life on the screen."""
    from rlobj_cli.screen.console import loading

    with loading(console):
        import rlobj.training  # noqa: F401


def _overrides(
    config: Path | None, options: Sequence[tuple[str, str, Any]], settings: Sequence[str]
) -> list[Layer]:
    """The layers over the preset, lowest first; options are (name, dotted path, value)."""
    from rlobj.base.errors import ConfigError
    from rlobj.config.layers import file_layer, parse_setting

    if config is not None and not config.expanduser().is_file():
        what = "is a folder, not a YAML file" if config.is_dir() else "is not there"
        raise ConfigError(f"--config {config} {what}")
    overrides: list[Layer] = [file_layer(config)] if config is not None else []
    for name, path, value in options:
        if value is not None:
            section, _, key = path.partition(".")
            overrides.append((name, {section: {key: value} if key else value}))
    return [*overrides, *(("--set", parse_setting(text)) for text in settings)]


def _layers(preset: str | None, overrides: list[Layer]) -> list[Layer]:
    """All layers of the command line, lowest first."""
    from rlobj.base.errors import ConfigError
    from rlobj.config.layers import layers_of

    layers = layers_of(preset, overrides)
    if not any("objective" in layer for _, layer in layers):
        raise ConfigError(
            "no objective: name a preset, such as --preset stapo (rlobj presets list shows all), "
            "or give a --config file with a preset or an objective"
        )
    return layers
