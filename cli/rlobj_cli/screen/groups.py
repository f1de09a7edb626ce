"""A group of commands of which one has no name."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


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
