"""A session of training: a run from its first step, or the rest of one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.composition import Layer
    from rlobj.config import RunConfig
    from rlobj.training import RunDirectory, Summary

__all__ = ["resume", "start"]


def start(console: Console, layers: list[Layer], out: Path | None, dry_run: bool) -> None:
    """A new run from the layers of its configuration, or with `dry_run` a look at them."""
    from rlobj.config import build_config
    from rlobj_cli.report import show_dry_run, show_header

    config = _located(build_config(layers))
    if dry_run:
        show_dry_run(console, config, layers)
        return
    if out is None:
        name = Path(config.preset).stem if config.preset else "run"
        out = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    show_header(console, config, layers)
    _run(console, config, out, resume=False)


def resume(console: Console, path: Path, settings: Sequence[str], given: Sequence[str]) -> None:
    """Continue a run under its own configuration, of which only the number of steps may change.

    Raises:
        ConfigError: no run there, or options that would make another run of it.
    """
    from rich.text import Text

    from rlobj.config import TrainingConfig, build_config, parse_setting
    from rlobj.errors import ConfigError
    from rlobj.training import RunDirectory
    from rlobj.training.run_directory import dump_config

    wrong = [*given, *(f"--set {s}" for s in settings if s.partition("=")[0] != "training.steps")]
    if wrong:
        raise ConfigError(
            f"--resume continues {path} with the settings it was started with; only "
            f"--set training.steps=N may go with it. Leave out: {', '.join(wrong)}"
        )
    run, config = RunDirectory.open(path)
    done = _steps_done(run)
    if settings:
        stored = config.model_dump(mode="json", by_alias=True)
        longer = [("--set", parse_setting(text)) for text in settings]
        config = build_config([("run", stored), *longer])
    steps = config.training.steps
    if settings and config.training.schedule != "constant" and steps > done:
        stretched = (
            f"training.schedule is {config.training.schedule}: it is stretched over {steps} steps, "
            "so the learning rate jumps up here and falls anew"
        )
        console.print(Text(stretched, style="yellow"), soft_wrap=True)
    if steps < done:
        raise ConfigError(f"training.steps={steps}: {path} has {done} steps done already")
    console.print(Text.assemble(("rlobj train", "bold"), f"  {path} from step {done} of {steps}"))
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
    with run.atomic("config.resolved.yaml") as place:
        place.write_text(dump_config(config), encoding="utf-8")
    _run(console, config, path, resume=True)


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


def _run(console: Console, config: RunConfig, out: Path, *, resume: bool) -> None:
    """Train, show it, and say how to go on: at the end, or where it was cut off."""
    from rlobj.errors import RunError
    from rlobj.training import RunDirectory
    from rlobj_cli.report import show_results

    run = RunDirectory(out)
    try:
        summary = _watched(console, config, run, resume)
    except (KeyboardInterrupt, RunError) as error:
        if not (out / "config.resolved.yaml").exists():
            raise
        newest = _steps_done(run)
        saved = f"the newest checkpoint is at step {newest}" if newest else "no checkpoint yet"
        verb = "Continue" if newest else "Start over (checkpoint.every=N saves more often)"
        advice = f"Stopped with {saved}. {verb} with:\n  rlobj train --resume {out}"
        if isinstance(error, RunError):
            raise RunError(f"{error}\n{advice}") from error
        from rlobj_cli.errors import INTERRUPTED, report

        report("Interrupted", advice)
        raise typer.Exit(INTERRUPTED) from None
    show_results(console, config, summary)


def _watched(console: Console, config: RunConfig, run: RunDirectory, resume: bool) -> Summary:
    from rlobj.training import train as run_training
    from rlobj_cli.progress import watch
    from rlobj_cli.screen import calm_libraries

    calm_libraries(console)
    done = _steps_done(run) if resume else 0
    history = [line for line in run.lines() if line["step"] <= done] if done else []
    with watch(console, config.training.steps, done, history) as screen:
        return run_training(config, run.path, resume=resume, observer=screen)


def _steps_done(run: RunDirectory) -> int:
    """Steps up to the newest checkpoint."""
    newest = run.latest()
    return int(newest.name.removeprefix("step-")) if newest is not None else 0
