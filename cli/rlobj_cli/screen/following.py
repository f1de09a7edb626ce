"""Follow the folder of a run until no process trains in it. Importing this takes seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlobj.base.files import is_locked, step_of, there
from rlobj.base.targets import importing
from rlobj.config import run_folder
from rlobj.config.resuming import trust_option
from rlobj.insight.diagnosis import Watch
from rlobj.insight.run_report.runs import rule_of
from rlobj.reporting import visible
from rlobj_cli.screen.console import looks, say, show_next
from rlobj_cli.screen.options import FAILED
from rlobj_cli.screen.progress import Screen, open_screen

logger = logging.getLogger(__name__)


POLL = 0.5
"""Seconds between two looks at the folder."""
PATIENCE = 60.0
"""Seconds to wait for the folder of a run that was just started."""


def follow(console: Console, run: Path, trust: bool = False) -> int:
    """Show a run until it ends, and then how to go on.

    Args:
        console: the screen.
        run: the folder of the run.
        trust: import the code that the settings of the run name by its path.

    Returns:
        The exit code: 1 if the run failed or was killed, otherwise 0.

    Raises:
        ConfigError: the folder has no run, or its settings name code without `trust`.
    """
    _wait_for(console, run)
    with importing(trust):
        config = run_folder.read_run_config(run)
        watch = Watch(config, run_folder.in_another_trainer(run))
    rule = visible(rule_of(config.model_dump(mode="json", by_alias=True)), 200)
    say(console, Text.assemble(("rlobj watch", "bold"), f"  {visible(str(run))}  ", (rule, "cyan")))
    with importing(trust), open_screen(console, config.training.steps, 0, []) as screen:
        seen, notes = -1, list[str]()
        for lines in _polled(run, notes):
            while notes:
                logger.warning(notes.pop(0))
            if lines or not screen.history:
                screen.wait_for("" if lines else "waiting for the first step")
            for line in lines:
                if line["step"] > screen.steps:  # resumed with more steps
                    screen.steps = run_folder.read_run_config(run).training.steps
                if seen < line["step"] <= screen.steps:  # a resumed run repeats some
                    seen = line["step"]
                    screen.add(line)
                    for finding in watch.add(line):
                        screen.found(finding)
                    screen.ended = (run / "metrics.jsonl").stat().st_mtime
    screen.close()
    return _tell(console, run, screen)


def _wait_for(console: Console, run: Path) -> None:
    """Wait a while for a run that is just starting: it needs seconds to make its folder."""
    there(run)
    end, told = time.monotonic() + PATIENCE, False
    while not (run.is_dir() and any(run.iterdir())) or (
        is_locked(run) and not (run / "config.resolved.yaml").exists()
    ):
        if time.monotonic() > end:
            return  # `read_run_config` says what is wrong
        if not told:
            say(console, Text(f"waiting for {visible(str(run))}, which does not exist yet", "dim"))
        told = True
        time.sleep(POLL)


def _polled(run: Path, notes: list[str]) -> Iterator[list[dict[str, Any]]]:
    """The new lines of metrics.jsonl, again and again until no process trains in the folder."""
    file, live = run_folder.MetricsFile(run, notes), True
    while live:
        live = is_locked(run)
        yield list(file.more(growing=True))
        if live:
            time.sleep(POLL)


def _tell(console: Console, run: Path, screen: Screen) -> int:
    """Print how the run has ended and how to go on; the exit code."""
    newest, done, steps = run_folder.newest_checkpoint(run), screen.done, screen.steps
    foreign = run_folder.in_another_trainer(run)
    saved = 0 if newest is None else step_of(newest)
    code, stop = FAILED, run_folder.read_stop(run)
    if stop is not None:
        text = f"Failed at step {stop[0]}: {stop[2]}"
    elif done == steps:
        code, text = 0, f"Finished: {steps} steps."
    elif 0 < saved == done:
        code, text = 0, f"Stopped at step {done} of {steps}, which is saved."
    else:
        checkpoint = (
            f"the newest checkpoint is of step {saved}" if saved else "it has no checkpoint"
        )
        text = (
            f"Ended at step {done} of {steps} without a message. No process trains in this folder: "
            "it was killed, or another error ended it"
        )
        text += f".\n{run_folder.how_to_continue(run)}." if foreign else f"; {checkpoint}."
    for line in text.split("\n"):
        say(console, Text(visible(line), "bold red" if code else "bold green"))
    name, trust = visible(str(run)), trust_option(run_folder.read_settings(run))
    commands = {
        f"train --resume {name}{trust}": not foreign and done < steps and "rlobj train" not in text,
        f"diagnose {name}{trust}": bool(screen.told),
        **dict.fromkeys(looks(run, name, trust), done > 0),
    }
    show_next(console, [command for command, useful in commands.items() if useful])
    return code
