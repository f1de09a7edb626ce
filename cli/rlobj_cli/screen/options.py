"""The options and arguments of commands: options.toml has their names and their help.

Errors on screen: one message, no traceback, and the exit code.

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
import re
import signal
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from rlobj.base.errors import RlobjError, RunError

if TYPE_CHECKING:
    from rlobj.config.layers import Layer


VARIABLE = "RLOBJ_DATA_DIR"


@cache
def read_toml(name: str) -> Any:
    """A TOML file of this package.

    options: command -> parameter -> usage and help, and what typer takes besides.
    """
    return tomllib.loads((files("rlobj_cli") / f"{name}.toml").read_text(encoding="utf-8"))


def described(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """The function of a command, with the options and arguments that options.toml has for it."""
    hints = get_type_hints(function)
    for name, settings in read_toml("options")[command].items():
        hints[name] = Annotated[hints[name], _parameter(name, **settings)]
    function.__annotations__ = hints
    return function


def settings_given(ctx: typer.Context, command: str) -> list[Layer]:
    """The options that set something, as layers that have the names of their options."""
    from rlobj.config.layers import nested, reward_settings
    from rlobj.conversations.settings import named_tools

    read: dict[str, Any] = {"environment.tools": named_tools, "rewards": reward_settings}
    layers = []
    for name, option in read_toml("options")[command].items():
        value, path = ctx.params[name], option.get("setting")
        if path is not None and value not in (None, (), []):
            value = read[path](value) if path in read else value
            layers.append((option["usage"].split()[0], nested(path, value)))
    return layers


def refused_on_resume(ctx: typer.Context) -> list[str]:
    """The options of `rlobj train` that are given, and that a resumed run does not accept."""
    return [
        option["usage"].split()[0]
        for name, option in read_toml("options")["train"].items()
        if not (option.get("resume") or ctx.params[name] is None or ctx.params[name] is False)
    ]


def as_typed(message: str, command: str) -> str:
    """A message of the library with options in place of the arguments that it names.

    Example:
        >>> as_typed("use data=FILE, trust=True, or set training.steps=3", "train")
        'use --data FILE, --trust, or --set training.steps=3'
    """
    tables = [table for name, table in read_toml("options").items() if name.split()[0] == command]
    names = {name: each["usage"].split()[0] for table in tables for name, each in table.items()}
    options = "|".join(name for name, option in names.items() if option.startswith("-"))
    message = re.sub(r"(?<![\w-])set (\w+(\.\w+)+=)", r"--set \1", message)
    return re.sub(
        rf"(?<![\w.-])({options or '-'})=(True\b)?",
        lambda x: names[x[1]] + " " * (not x[2]),
        message,
    )


def _parameter(
    name: str,
    usage: str,
    panel: str | None = None,
    setting: str | None = None,
    resume: bool = False,
    **more: Any,
) -> Any:
    """An argument, or an option with its names and its value: `--model -m FOLDER|ID`."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    if not names:
        return typer.Argument(metavar=usage, **more)
    if name == "data_dir":
        more |= {"envvar": VARIABLE, "callback": _named, "exists": True, "file_okay": False}
    if panel is not None and name == "settings":  # of a run; those of `serve` are vLLM's
        more["autocompletion"] = completed
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, **more)


def completed(incomplete: str) -> list[tuple[str, str]]:
    """The settings whose dotted names begin so, ready for a value, each with its meaning."""
    from rlobj.config.run_config import setting_meanings

    known = setting_meanings().items()
    return [(f"{name}=", text) for name, text in known if name.startswith(incomplete)]


def meant(option: str) -> str:
    """The setting that an unknown option names, in full or by its initials; "" = none."""
    from rlobj.config.run_config import setting_meanings

    name = option.lstrip("-").replace("-", "_")
    for path in setting_meanings():
        setting = path.partition(".")[2]
        initials = "".join(word[0] for word in setting.split("_") if word)
        if name == setting or (name == initials and len(name) > 1):
            return path
    return ""


def _named(ctx: typer.Context, folder: Path | None) -> Path | None:
    """Name the folder in the environment while the command runs, for it and what it starts."""
    if folder is not None:
        before = dict(os.environ)
        os.environ[VARIABLE] = str(folder.absolute())
        ctx.call_on_close(lambda: (os.environ.clear(), os.environ.update(before)))
    return folder


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
