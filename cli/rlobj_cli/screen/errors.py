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

from __future__ import annotations

import os
import signal
from typing import Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from rlobj.base.errors import RlobjError, RunError
from rlobj_cli.screen.options import as_typed, meant

_UsageError: Any = typer.BadParameter.__base__
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 128 + signal.SIGINT


def exit_code(error: KeyboardInterrupt) -> int:
    """128 and the number of the signal, which the error may have; Ctrl-C is SIGINT."""
    [number] = error.args or [signal.SIGINT]
    return 128 + number


def report(title: str, message: str) -> None:
    """Print a message on stderr: a panel on a terminal, otherwise plain lines."""

    from rlobj.reporting import visible

    message = "\n".join(visible(line) for line in message.split("\n"))
    console = Console(stderr=True)
    if console.is_terminal:
        panel = Panel(Text(message), title=title, title_align="left", border_style="red")
        console.print(panel)
    else:
        console.print(Text(f"{title}: {message}"), soft_wrap=True)


def _lost_a_peer(error: Exception) -> bool:
    """Whether a process of several failed only because its connection to another one ended."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return False
    from rlobj.training.parallel.launcher import LOST_A_PEER

    return LOST_A_PEER.search(str(error)) is not None


class GuardedGroup(TyperGroup):
    """A group that turns rlobj's own errors and Ctrl-C into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            option = getattr(error, "option_name", "")
            in_train = error.ctx is not None and error.ctx.info_name == "train"
            if option and in_train and (setting := meant(option)):
                error.possibilities = None
                error.message += f". Did you mean '--set {setting}=VALUE'?"
            raise
        except KeyboardInterrupt as error:
            report("Interrupted", "stopped; no file is incomplete")
            raise typer.Exit(exit_code(error)) from None
        except (RlobjError, RuntimeError) as error:
            lost = not isinstance(error, RlobjError)
            if os.environ.get("RLOBJ_TRACEBACK") == "1" or (lost and not _lost_a_peer(error)):
                raise
            note = "another process has ended, and this one with it: " if lost else ""
            failed = lost or isinstance(error, RunError)
            text = note + as_typed(str(error), str(ctx.invoked_subcommand))
            report("Failed" if failed else "Wrong input", text)
            raise typer.Exit(FAILED if failed else WRONG_INPUT) from None


class DefaultGroup(TyperGroup):
    """A group with one command without a name: `rlobj eval MODEL` and `rlobj eval compare A B`."""

    DEFAULT = "<model>"
    """The internal name of the command without a name; it cannot be a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass arguments that do not begin with a command's name to the command without one."""
        if not args:
            args = [self.DEFAULT, "--help"]
        elif args[0] not in self.commands:
            args = [self.DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Leave the internal name out of usage lines."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == self.DEFAULT else name, command, rest


class _NamelessContext(typer.Context):
    """The context of a command without a name."""

    @property
    def command_path(self) -> str:
        """The path as the user types it, without a blank at the end."""
        return super().command_path.rstrip()


class NamelessCommand(TyperCommand):
    """The class of the command without a name."""

    context_class = _NamelessContext
