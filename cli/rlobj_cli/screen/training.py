"""Start or resume a run from the command line, and show it. Importing this takes seconds."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import BatchError, Message, RunError, Setting
from rlobj.base.launched import PROGRESS
from rlobj.conversations.environment import NoRoom
from rlobj.reporting.terminal import facts_grid
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.layers import Layer
from rlobj.settings.resuming import may_change
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import imports, trust_option
from rlobj.training import Callback, CallerInputs, TrainingResult, run_training
from rlobj.training.new_run import NewRun
from rlobj.training.parallel.launcher import launch, without
from rlobj.training.preparing import check_functions
from rlobj.training.progress import screen_of
from rlobj.training.resumed_run import Resumed
from rlobj.training.run import go_on
from rlobj_cli.screen.console import calm_libraries
from rlobj_cli.screen.errors import exit_code, report, typed
from rlobj_cli.screen.estimating import short
from rlobj_cli.screen.header import show_dry_run, show_header, yours
from rlobj_cli.screen.results import show_history, show_results, train_on


def start(console: Console, new: NewRun, dry_run: bool, processes: int | None) -> None:
    """Start a new run, or with `dry_run` show the layers of its configuration."""
    folder, config, layers = new
    if dry_run:
        check_functions(config)
        show_dry_run(console, config, layers, processes)
        return
    if processes not in (None, 1):
        words = [*without(sys.argv[1:], "--out"), "--out", str(folder)]
        if config.origin is not None and "--from" in str(words):  # all take the same checkpoint
            words = [*without(words, "--from"), "--from", config.origin]
        raise typer.Exit(launch(words, processes))

    def header() -> None:
        if PROGRESS in os.environ:  # rlobj.train has started this process
            return
        show_header(console, config, layers)
        if line := short(config, int(os.environ.get("WORLD_SIZE", "1"))):
            console.print(facts_grid({"estimate": line}))

    with _shown(console, config, folder, 0, header) as screens:
        result = run_training(config, folder, CallerInputs(callbacks=screens))
    _show_end(console, config, result)


def resume(
    console: Console,
    resumed: Resumed,
    changes: Sequence[Layer] = (),
    processes: int | None = None,
    reward: str | None = None,
) -> None:
    """Continue a run, of which only settings that do not change results may change.

    Args:
        console: the screen.
        resumed: what `open_resumed` returned.
        changes: the settings to change.
        processes: as asked for.
        reward: as the run was started with.
    """
    config, done = resumed.config, resumed.done
    steps = config.training.steps
    if done == steps:
        advice = train_on(resumed.path, config)
        console.print(Text(f"All steps are done. To train on:\n  {advice}"), soft_wrap=True)
        return
    if processes not in (None, 1):
        raise typer.Exit(launch(sys.argv[1:], processes))
    title = Text.assemble(("rlobj train", "bold"), f"  {resumed.path} from step {done} of {steps}")
    if changes:
        title.append("\n  yours     " + yours(config, changes).replace("\n", "\n            "))
    if line := imports(settings_of(config)):
        title.append(f"\n  {line}")
    with _shown(console, config, resumed.run.path, done, lambda: console.print(title)) as screens:
        result = go_on(resumed, CallerInputs(reward=reward, callbacks=screens))
    _show_end(console, config, result)


@contextmanager
def _shown(
    console: Console, config: RunConfig, out: Path, done: int, header: Callable[[], None]
) -> Iterator[list[Callback]]:
    """The screen of a run as its callback; an error says how to continue the run.

    Args:
        console: the screen.
        config: the run.
        out: the run directory.
        done: steps before this session.
        header: prints the header.
    """
    calm_libraries(console)
    try:
        if console.quiet:  # another process prints
            yield []
            return
        lines = RunFolder(out).lines() if done else []
        history = [line for line in lines if line["step"] <= done]
        steps = config.training.steps
        with screen_of(console)(console, steps, done, history, header) as screen:
            for handler in logging.getLogger("rlobj").handlers:  # warnings appear below the header
                handler.addFilter(lambda _: screen.begin() or True)
            yield [screen]
    except (KeyboardInterrupt, RunError) as error:
        if not is_run(out):
            raise
        if isinstance(error, RunError) and error.finding in config.training.stop_on:
            if not console.quiet:
                show_history(console, config, out, RunFolder(out).lines())
            raise
        if isinstance(error.__cause__, BatchError | NoRoom):  # the same step would fail again
            raise
        if isinstance(error, RunError):
            raise RunError(error, "\n", _advice(out, error.message.settings)) from error
        report("Interrupted", _advice(out))
        raise typer.Exit(exit_code(error)) from None


def _show_end(console: Console, config: RunConfig, result: TrainingResult) -> None:
    """The results of a finished run; how to continue an interrupted one."""
    if PROGRESS in os.environ:  # rlobj.train returns them
        return
    if result.steps < config.training.steps:
        console.print(Text(_advice(result.path), style="yellow"), soft_wrap=True)
    else:
        show_results(console, config, result)


def _advice(path: Path, settings: Sequence[Setting] = ()) -> str:
    """How to continue a run that has stopped, with each of some settings that may change."""
    done = RunFolder(path).steps_saved()
    saved = f"the newest checkpoint at step {done}" if done else "no checkpoint yet"
    size = os.environ.get("WORLD_SIZE", "1")
    processes = f" --processes {size}" if size != "1" else ""
    trust = trust_option(read_settings(path))
    command = f"\n  rlobj train --resume {path}{trust}{processes}"
    changes = [typed(Message(each)) for each in settings if may_change(each.path)]
    commands = [f"{command} {change}" for change in changes] or [command]
    one_of = " one of" if len(commands) > 1 else ""
    return f"Stopped with {saved}. Continue with{one_of}:{''.join(commands)}"
