"""Errors on screen: one message, no traceback, and the exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the work failed |
| 2 | the input was wrong |
| 130 | interrupted |
| 141 | nobody reads the output any more, as after `head -3` in a pipe |

`RLOBJ_TRACEBACK=1` in the environment shows where an error came from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "WRONG_INPUT",
    "DefaultGroup",
    "GuardedGroup",
    "NamelessCommand",
    "report",
]

FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 130


def report(title: str, message: str) -> None:
    """A message on stderr: a panel on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(stderr=True)
    if console.is_terminal:
        panel = Panel(Text(message), title=title, title_align="left", border_style="red")
        console.print(panel)
    else:
        console.print(Text(f"{title}: {message}"), soft_wrap=True)


@contextmanager
def _guarded() -> Iterator[None]:
    """Errors that rlobj raises on purpose, and Ctrl-C, as messages and exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        report("Interrupted", "stopped; nothing is left half written")
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if "rlobj.base.errors" not in sys.modules:  # then it cannot be one of them
            raise
        from rlobj.base.errors import RlobjError, RunError

        if not isinstance(error, RlobjError) or os.environ.get("RLOBJ_TRACEBACK") == "1":
            raise
        failed = isinstance(error, RunError)
        report("Failed" if failed else "Wrong input", str(error))
        raise typer.Exit(FAILED if failed else WRONG_INPUT) from None


class GuardedGroup(TyperGroup):
    """Commands whose errors are messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command under guard."""
        with _guarded():
            return super().invoke(ctx)


class DefaultGroup(TyperGroup):
    """Commands of which one needs no name: `rlobj eval MODEL` beside `rlobj eval compare A B`."""

    DEFAULT = "<model>"
    """What the nameless one is registered as: no folder is called so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Anything but a command's name begins the arguments of the nameless one."""
        if not args:
            args = [self.DEFAULT, "--help"]
        elif args[0] not in self.commands:
            args = [self.DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Usage lines leave the name out, as the user does."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == self.DEFAULT else name, command, rest


class _NamelessContext(typer.Context):
    """A context whose path ends with the group: no second blank where a name would be."""

    @property
    def command_path(self) -> str:
        """As the user types it."""
        return super().command_path.rstrip()


class NamelessCommand(TyperCommand):
    """What `DefaultGroup.DEFAULT` is registered with."""

    context_class = _NamelessContext
