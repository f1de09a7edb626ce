"""A session of training: a run from its first step, or the rest of one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rlobj_cli.train import ranks

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.config.layers import Layer
    from rlobj.config.run_config import RunConfig
    from rlobj.training import RunDirectory, Summary

__all__ = ["resume", "start"]


RESUMABLE_SETTINGS = (
    "training.steps",
    "training.strategy",
    "training.micro_batch_tokens",
    "training.packed",
    "training.skip_inactive",
    "training.balance",
    "training.gradient_checkpointing",
    "training.threads",
    "training.max_skipped",
    "sampling.batch_tokens",
    "sampling.vllm",
    "sampling.server",
    "sampling.max_logprob_gap",
    "checkpoint",
    "output",
)
"""Settings that a run may go on with other values of: they change how, not what."""


def start(
    console: Console,
    layers: list[Layer],
    out: Path | None,
    dry_run: bool,
    processes: int | None,
) -> None:
    """A new run from the layers of its configuration, or with `dry_run` a look at them."""
    from rlobj.config.run_config import build_config
    from rlobj.models.location import require_model
    from rlobj_cli.train.overview import show_dry_run, show_header

    config = build_config(layers)
    if config.model.name is not None:
        require_model(config.model.name)
    config = _located(config)
    if dry_run:
        show_dry_run(console, config, layers)
        return
    named = out is not None
    if out is None:
        name = Path(config.preset).stem if config.preset else "run"
        out = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    ranks.start_others(processes, [] if named else ["--out", str(out)])
    _run(console, config, out, lambda: show_header(console, config, layers), resume=False)


def resume(
    console: Console,
    path: Path,
    overrides: Sequence[Layer],
    given: Sequence[str],
    processes: int | None,
) -> None:
    """Continue a run under its own configuration, of which only what changes no result may change.

    Raises:
        ConfigError: no run there, or options that would make another run of it.
    """
    from rich.text import Text

    from rlobj.base.errors import ConfigError
    from rlobj.config.run_config import TrainingConfig, build_config
    from rlobj.training import RunDirectory

    paths = [_path(layer) for _, layer in overrides]
    others = [name for name in paths if not name.startswith(RESUMABLE_SETTINGS)]
    wrong = [*given, *(f"--set {name}" for name in others)]
    if wrong:
        raise ConfigError(
            f"--resume continues {path} with the settings it was started with; what may go with "
            f"it: --processes, --strategy, and --set of {', '.join(RESUMABLE_SETTINGS)}. Leave "
            f"out: {', '.join(wrong)}"
        )
    run, config = RunDirectory.open(path)
    done = _steps_done(run)
    if overrides:
        stored = config.model_dump(mode="json", by_alias=True)
        config = build_config([("run", stored), *overrides])
    steps = config.training.steps
    longer = "training.steps" in paths
    if longer and config.training.schedule != "constant" and steps > done:
        stretched = (
            f"training.schedule is {config.training.schedule}: it is stretched over {steps} steps, "
            "so the learning rate jumps up here and falls anew"
        )
        console.print(Text(stretched, style="yellow"), soft_wrap=True)
    if longer and config.sampling.async_depth and steps > done:
        ahead = config.sampling.async_depth
        console.print(
            Text(
                f"the first {ahead} rollouts from here on are of the newest weights, not {ahead} "
                "steps old: nothing was sampled beyond the steps of before",
                style="yellow",
            ),
            soft_wrap=True,
        )
    if steps < done:
        raise ConfigError(f"training.steps={steps}: {path} has {done} steps done already")
    if steps == done:
        more = 2 * max(done, TrainingConfig.model_fields["steps"].default)
        console.print(
            Text(
                "All steps are done. To train on:\n"
                f"  rlobj train --resume {path} --set training.steps={more}"
            ),
            soft_wrap=True,
        )
        return
    ranks.start_others(processes)
    title = Text.assemble(("rlobj train", "bold"), f"  {path} from step {done} of {steps}")
    _run(console, config, path, lambda: console.print(title), resume=True)


def _path(layer: Mapping[str, Any]) -> str:
    """The dotted name of a layer's one setting."""
    parts: list[str] = []
    value: Any = layer
    while isinstance(value, Mapping) and len(value) == 1:
        [(key, value)] = value.items()
        parts.append(str(key))
    return ".".join(parts)


def _located(config: RunConfig) -> RunConfig:
    """The configuration with files named from the root: a run is resumed from any folder."""

    def place(name: str | None) -> str | None:
        return str(Path(name).absolute()) if name and Path(name).exists() else name

    tasks = config.model.name is None
    data = {} if tasks else {key: place(getattr(config.data, key)) for key in ("source", "test")}
    model = config.model.model_copy(update={"name": place(config.model.name)})
    rewards = config.rewards
    file, colon, function = getattr(rewards, "target", "").rpartition(":")
    if colon:
        rewards = rewards.model_copy(update={"target": f"{place(file)}:{function}"})
    located = {"data": config.data.model_copy(update=data), "model": model, "rewards": rewards}
    return config.model_copy(update=located)


def _run(
    console: Console, config: RunConfig, out: Path, header: Callable[[], None], *, resume: bool
) -> None:
    """Train, show it, and say how to go on where it was cut off."""
    from rich.text import Text

    from rlobj.base.errors import RunError
    from rlobj.training import RunDirectory
    from rlobj_cli.train.overview import show_results

    run = RunDirectory(out)
    try:
        summary = _watched(console, config, run, header, resume)
    except (KeyboardInterrupt, RunError) as error:
        if not (out / "config.resolved.yaml").exists():
            raise
        advice = _advice(run)
        if isinstance(error, RunError):
            raise RunError(f"{error}\n{advice}") from error
        from rlobj_cli.screen.errors import INTERRUPTED, report

        report("Interrupted", advice)
        raise typer.Exit(INTERRUPTED) from None
    if summary.steps < config.training.steps:
        console.print(Text(_advice(RunDirectory(summary.path)), style="yellow"), soft_wrap=True)
        return
    show_results(console, config, summary)


def _advice(run: RunDirectory) -> str:
    """How to go on with a run that has stopped."""
    newest = _steps_done(run)
    saved = f"the newest checkpoint at step {newest}" if newest else "no checkpoint yet"
    size = os.environ.get("WORLD_SIZE", "1")
    processes = f" --processes {size}" if size != "1" else ""
    return f"Stopped with {saved}. Continue with:\n  rlobj train --resume {run.path}{processes}"


def _watched(
    console: Console,
    config: RunConfig,
    run: RunDirectory,
    header: Callable[[], None],
    resume: bool,
) -> Summary:
    from rlobj.training import run_training
    from rlobj_cli.screen.console import calm_libraries
    from rlobj_cli.train.progress import watch

    calm_libraries(console)
    if not ranks.first():
        return run_training(config, run.path, resume=resume)
    done = _steps_done(run) if resume else 0
    history = [line for line in run.lines() if line["step"] <= done] if done else []
    with watch(console, config.training.steps, done, history, header) as screen:
        for handler in logging.getLogger("rlobj").handlers:  # a warning stands below the header
            handler.addFilter(lambda _: screen.begin() or True)
        return run_training(config, run.path, resume=resume, callbacks=[screen])


def _steps_done(run: RunDirectory) -> int:
    """Steps up to the newest checkpoint."""
    newest = run.latest()
    return int(newest.name.removeprefix("step-")) if newest is not None else 0
