"""What all commands show in the same way: pages, YAML and errors.

An error is one message without a traceback, and the exit code:

| code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed |
| 2 | the input was wrong |
| 130 | interrupted by Ctrl-C |
| 143 | ended by SIGTERM |

`RLOBJ_TRACEBACK=1` in the environment shows where an error came from.
"""

import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from subprocess import CalledProcessError
from types import MappingProxyType
from typing import Any

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text
from typer.core import TyperGroup

from rlobj.base.errors import Argument, ConfigError, Message, RlobjError, RunError, Setting
from rlobj.reporting.terminal import Screen, say

FAILED = 1
WRONG_INPUT = 2
COLLECTIVES = "torch.distributed.distributed_c10d"
"""The module whose functions talk to the other processes."""


def typed(message: str, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """A message with what a person types: the options of a command, and --set for a setting.

    Args:
        message: a `Message` names arguments of Python and settings.
        options: option by argument; another argument stays as in Python.

    Example:
        >>> message = Message("use ", Argument("trust"), " or ", Setting("training.steps", 3))
        >>> typed(message, {"trust": "--trust"})
        'use --trust or --set training.steps=3'
        >>> typed(Message(Setting("objective.mismatch", "{kind: truncate}")))
        "--set 'objective.mismatch={kind: truncate}'"
    """

    def write(part: Setting | Argument) -> str:
        if isinstance(part, Setting):
            return f"--set {shlex.quote(str(part))}"
        if part.name not in options:
            return str(part)
        value = "" if part.value is True else f" {shlex.quote(str(part.value))}"
        return options[part.name] + value

    return Message(message).written(write)


def options_of(command: Any) -> dict[str, str]:
    """The options of a command, and of the commands below it, by their parameters."""
    options = {
        parameter.name: parameter.opts[0]
        for parameter in command.params
        if parameter.opts[0].startswith("-")
    }
    for below in getattr(command, "commands", {}).values():
        options |= options_of(below)
    return options


def report(title: str, message: str) -> None:
    """Print a message on stderr."""
    text = Text.assemble((f"{title}: ", "bold red"), message)
    say(Screen(stderr=True), text)


def _lost_a_peer(error: RuntimeError) -> bool:
    """Whether a collective of torch.distributed failed, as it does if another process has ended."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__") == COLLECTIVES for frame, _ in frames)


class GuardedGroup(TyperGroup):
    """A group that turns rlobj's own errors and Ctrl-C into a message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Show flags without a value in the help of all commands."""
        commands: list[Any] = [self]
        for command in commands:  # which grows
            commands += getattr(command, "commands", {}).values()
            shown = command.get_help_option(typer.Context(command, parent=ctx))
            for option in (*command.params, shown):
                if getattr(option, "is_flag", False):
                    option.metavar = ""  # in place of <bool>
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            advice = "\n".join(getattr(error, "__notes__", ()))
            report("Interrupted", advice or "stopped; no file is incomplete")
            [number] = error.args or [signal.SIGINT]
            raise typer.Exit(128 + number) from None
        except (RlobjError, RuntimeError) as error:
            if isinstance(error.__cause__, CalledProcessError):  # which has shown its own error
                raise typer.Exit(error.__cause__.returncode) from None
            lost = not isinstance(error, RlobjError)
            if os.environ.get("RLOBJ_TRACEBACK") == "1" or (lost and not _lost_a_peer(error)):
                raise
            note = "another process has ended, and this one with it: " if lost else ""
            failed = lost or isinstance(error, RunError)
            command = self.commands[ctx.invoked_subcommand]
            text = typed(Message(note, error), options_of(command))
            report("Failed" if failed else "Wrong input", text)
            raise typer.Exit(FAILED if failed else WRONG_INPUT) from None


def calm_libraries(console: Console) -> None:
    """Hide progress bars and notices of other libraries, and show rlobj's own warnings."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if "transformers" in sys.modules:  # otherwise it reads the variables
        from transformers.utils import logging as notices

        notices.disable_progress_bar()
        notices.set_verbosity_error()
    warnings.filterwarnings("ignore", module=r"(torch|transformers|accelerate|datasets)\b.*")
    handler = RichHandler(
        console=console, level=logging.WARNING, show_time=False, show_path=False, markup=False
    )
    handler.addFilter(_as_typed)
    logger = logging.getLogger("rlobj")
    logger.handlers, logger.propagate = [handler], False


def _as_typed(record: logging.LogRecord) -> bool:
    """Write a warning as the program's messages are."""
    if isinstance(record.msg, Message):
        record.msg = typed(record.msg)
    return True


def require_folder(page: Path | None) -> None:
    """Refuse a page that has no folder to be in, before anything is read."""
    if page and not page.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {page.parent} for {page.name}")


def show_page(console: Console, path: Path) -> None:
    """Print where a page was written."""
    size = path.stat().st_size / 1e6
    console.print(Text(f"{path}  {size:.1f} MB, opens in a browser"), soft_wrap=True)


def plain_value(value: Any) -> str:
    """Format a setting on one line, as in YAML."""
    from rlobj.base.yaml import dump_yaml

    text = dump_yaml(value, flow=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()
