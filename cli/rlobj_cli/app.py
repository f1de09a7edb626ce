"""The `rlobj` program: its commands and its version.

The library is imported inside the commands, so that `--help` is fast.
"""

import io
import os
import sys
import threading
import time
from typing import Annotated

import typer

from rlobj_cli.diagnose import diagnose
from rlobj_cli.doctor import doctor
from rlobj_cli.estimate import estimate
from rlobj_cli.evaluate import evaluation
from rlobj_cli.inspect import inspect
from rlobj_cli.presets import presets
from rlobj_cli.replay import replay
from rlobj_cli.report import report
from rlobj_cli.screen.console import GuardedGroup
from rlobj_cli.serve import serve
from rlobj_cli.train import resume, train

SECONDS_LEFT, SECONDS_LEFT_INTERRUPTED = 60.0, 5.0
"""Python waits at its end for some threads, and for what libraries still do; at most so long."""

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
app.add_typer(evaluation)
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
    try:
        app(prog_name="rlobj")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        left = SECONDS_LEFT if code in (0, 1, 2) else SECONDS_LEFT_INTERRUPTED
        threading.Thread(target=_end, args=(left, code), daemon=True).start()
        raise


def _end(seconds: float, code: int) -> None:
    """End the process, which may wait for threads of the user's code that never end."""
    time.sleep(seconds)
    os._exit(code)
