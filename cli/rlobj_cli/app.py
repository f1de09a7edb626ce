"""The `rlobj` program: its commands and its version.

The library is imported inside the commands, so that `--help` is fast.

torch, imported at the first use of a name in it: mistakes and explanations do without.
"""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Annotated, Any

import typer

from rlobj_cli.diagnose import diagnose
from rlobj_cli.doctor import doctor
from rlobj_cli.estimate import estimate
from rlobj_cli.evaluate import evaluation
from rlobj_cli.inspect import inspect
from rlobj_cli.presets import explain, presets
from rlobj_cli.replay import replay
from rlobj_cli.report import report
from rlobj_cli.screen.options import GuardedGroup, described
from rlobj_cli.serve import serve
from rlobj_cli.train import train
from rlobj_cli.watch import watch


class _Deferred(ModuleType):
    """A module that runs its own code when a name in it is used; then it is an ordinary one."""

    def __getattribute__(self, name: str) -> Any:
        spec = ModuleType.__getattribute__(self, "__spec__")
        if name == "__spec__":  # all that `import torch` asks of a module that is known
            return spec
        object.__setattr__(self, "__class__", ModuleType)
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(name: str) -> None:
    """Let `import` of a package only note its name until it is used."""
    if name in sys.modules or (spec := find_spec(name)) is None:
        return
    module = module_from_spec(spec)
    module.__class__ = _Deferred
    sys.modules[name] = module


app = typer.Typer(
    name="rlobj",
    cls=GuardedGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("train")(described("train", train))
app.add_typer(evaluation)
for each in (estimate, watch, inspect, replay, diagnose, report, serve):
    app.command(each.__name__)(described(each.__name__, each))
app.add_typer(presets)
app.command("explain")(described("explain", explain))
app.command("doctor")(described("doctor", doctor))


def _version(wanted: bool) -> None:
    if wanted:
        from rlobj import __version__

        typer.echo(f"rlobj {__version__}")
        raise typer.Exit


@app.callback()
def _rlobj(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Policy-optimization objectives for RL of language models.

    [bold]First steps[/bold] (on a CPU, without downloads):

    \b  rlobj presets list                 list published objectives
      rlobj train --preset stapo         train a tiny policy
      rlobj explain stapo                explain that objective
    """


def main() -> None:
    """Run the program and end the process; `screen.errors` lists the exit codes."""
    for stream in (sys.stdout, sys.stderr):  # '?' for a character that a terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    defer("torch")
    app(prog_name="rlobj")
