"""The options and arguments of commands: options.toml has their names and their help."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

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


def _named(ctx: typer.Context, folder: Path | None) -> Path | None:
    """Name the folder in the environment while the command runs, for it and what it starts."""
    if folder is not None:
        before = dict(os.environ)
        os.environ[VARIABLE] = str(folder.absolute())
        ctx.call_on_close(lambda: (os.environ.clear(), os.environ.update(before)))
    return folder
