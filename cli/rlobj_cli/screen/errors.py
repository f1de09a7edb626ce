"""Errors on screen: one message, no traceback, and the exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed |
| 2 | the input was wrong |
| 130 | interrupted by Ctrl-C |
| 143 | ended by SIGTERM |

`RLOBJ_TRACEBACK=1` in the environment shows where an error came from.
"""

import os
import shlex
import signal
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from rlobj.base.errors import Argument, Message, RlobjError, RunError, Setting
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


def exit_code(error: KeyboardInterrupt) -> int:
    """128 and the number of the signal, which the error may have; Ctrl-C is SIGINT."""
    [number] = error.args or [signal.SIGINT]
    return 128 + number


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
            raise typer.Exit(exit_code(error)) from None
        except (RlobjError, RuntimeError) as error:
            lost = not isinstance(error, RlobjError)
            if os.environ.get("RLOBJ_TRACEBACK") == "1" or (lost and not _lost_a_peer(error)):
                raise
            note = "another process has ended, and this one with it: " if lost else ""
            failed = lost or isinstance(error, RunError)
            command = self.commands[ctx.invoked_subcommand]
            text = typed(Message(note, error), options_of(command))
            report("Failed" if failed else "Wrong input", text)
            raise typer.Exit(FAILED if failed else WRONG_INPUT) from None
