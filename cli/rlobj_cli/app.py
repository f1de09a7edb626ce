"""The `rlobj` program: its commands and its version.

The library is imported inside the commands, so that `--help` is fast.
"""

import io
import sys
from typing import Annotated

import typer

from rlobj_cli.diagnose import diagnose
from rlobj_cli.doctor import doctor
from rlobj_cli.estimate import estimate
from rlobj_cli.evaluate import evaluation
from rlobj_cli.inspect import inspect
from rlobj_cli.presets import presets, show
from rlobj_cli.replay import replay
from rlobj_cli.report import report
from rlobj_cli.screen.console import GuardedGroup
from rlobj_cli.serve import serve
from rlobj_cli.train import resume, train

app = typer.Typer(
    name="rlobj",
    cls=GuardedGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (train, resume, estimate, inspect, replay, diagnose, report, serve, doctor):
    app.command()(command)
app.command("explain", hidden=True)(show)
app.add_typer(evaluation)
app.add_typer(evaluation, name="evaluate", hidden=True)
app.add_typer(presets)


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
      rlobj presets show stapo           explain that objective
    """


def main() -> None:
    """Run the program and end the process; `screen.console` lists the exit codes."""
    for stream in (sys.stdout, sys.stderr):  # '?' for a character that a terminal cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="rlobj")
