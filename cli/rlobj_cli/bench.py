"""`rlobj bench`: measure rlobj and its peers on the machine at hand."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.benchmarking.folder import Folder

__all__ = ["bench"]


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES",
            help="heads, step, plan, scaling, trainer. Default: all of them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick/--full",
            help="A few small sizes, some minutes; or every size, an hour or more.",
        ),
    ] = True,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            "-r",
            min=1,
            metavar="K",
            help="How often each measurement is made; ratios are medians over the rounds. "
            "Default: 1, and 3 with --full.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Folder for the results, or one to go on with: what it holds is not measured "
            "again. Default: bench/TIME",
        ),
    ] = None,
) -> None:
    """Measure rlobj and its peers on this machine: tables, findings, pictures.

    \b
    heads    hidden states to log-probs and entropies, beside
             TRL's, verl's, Liger's and prime-rl's heads
    step     a training step, and what each saving is worth
    plan     selecting over the whole update, to 32M tokens
    scaling  time and memory against tokens, vocabulary, group
             size and processes
    trainer  whole training steps beside TRL's GRPOTrainer

    What is not installed is left out, with what to type.
    Times are CPU seconds of one thread, which other work on
    the machine changes least: read the ratios. Ctrl-C loses
    the process that is running; the same command with --out
    goes on behind the last one that ended.

    [bold]Examples[/bold]

    \b  rlobj bench                 everything, quick
      rlobj bench heads --full    one of them, every size
      rlobj bench heads plan -r 3 --out bench/mine

    Writes DIR/bench.json, DIR/bench.md to paste, and a
    picture of each table (pip install 'rlobj\\[bench]').
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.screen.console import loading

    console = Console()
    with loading(console):
        import sys

        from rlobj.base.errors import ConfigError, nearest
        from rlobj.benchmarking import BENCHMARKS
        from rlobj.benchmarking.folder import Folder

    if sys.platform != "linux":
        raise ConfigError("rlobj bench reads peak memory from /proc, so it runs on Linux only")
    chosen = list(dict.fromkeys(names or BENCHMARKS))
    for name in chosen:
        if name not in BENCHMARKS:
            raise ConfigError(f"no benchmark is called '{name}'.{nearest(name, BENCHMARKS)}")
    turns = rounds if rounds is not None else (1 if quick else 3)
    place = out or Path("bench") / time.strftime("%Y%m%d-%H%M%S")
    words = ["rlobj bench", *(names or []), *([] if quick else ["--full"]), f"--rounds {turns}"]
    folder = Folder(place, " ".join(words))
    _show_head(console, folder, chosen)
    try:
        for name in chosen:
            _measure(console, folder, name, quick, turns)
    except KeyboardInterrupt:
        told = f"Interrupted. What was measured is kept; to go on:\n  {_again(folder)}"
        console.print(Text(told), soft_wrap=True)
        raise
    _show_end(console, folder, chosen)
    if any(name in folder.failed for name in chosen):
        from rlobj_cli.screen.errors import FAILED

        raise typer.Exit(FAILED)


def _again(folder: Folder) -> str:
    """What to type to go on, as a shell reads it."""
    return f"{folder.command} --out {shlex.quote(str(folder.path))}"


def _show_head(console: Console, folder: Folder, chosen: list[str]) -> None:
    """What is about to be measured, on what, and where it goes."""
    from rich.text import Text

    from rlobj.benchmarking.machine import SOURCES
    from rlobj_cli.screen.console import facts_grid

    facts, found = dict(folder.machine), dict(folder.versions)
    own = {name: found.pop(name) for name in ("rlobj", SOURCES, "torch") if name in found}
    shown = {
        "machine": ", ".join(
            [facts["processor"], f"{facts['cores']} cores", facts["memory"], facts.get("gpu", "")]
        ).removesuffix(", "),
        "versions": ", ".join(f"{name} {version}" for name, version in own.items()),
        "packages": ", ".join(f"{name} {version}" for name, version in found.items()),
        "measures": ", ".join(chosen),
        "writes": f"{folder.path}/",
    }
    console.print(Text(folder.command, style="bold"))
    console.print(facts_grid({name: text for name, text in shown.items() if text}))


def _measure(console: Console, folder: Folder, name: str, quick: bool, rounds: int) -> None:
    """One benchmark, on screen and in the folder; one that fails is told and passed over."""
    import importlib

    from rich.text import Text

    from rlobj.base.errors import MissingExtra, RlobjError
    from rlobj_cli.bench_screen import Watch, show_table
    from rlobj_cli.screen.errors import report

    console.print()
    try:
        module = importlib.import_module(f"rlobj.benchmarking.{name}")
        with Watch(console, name) as watch, folder.measuring(name):
            table = module.measure(quick=quick, rounds=rounds, progress=watch)
    except RlobjError as error:
        folder.fail(name, str(error))
        report(f"{name} failed", str(error))
        return
    folder.add(table)
    show_table(console, table)
    try:
        folder.draw(table)
    except MissingExtra as error:
        console.print(Text(f"No picture: {error}", style="dim"), soft_wrap=True)


def _show_end(console: Console, folder: Folder, chosen: list[str]) -> None:
    """What lies where, and what failed."""
    from rich.text import Text

    written = sorted(file.name for file in folder.path.iterdir() if file.name[0] != ".")
    told = f": {', '.join(written)}"
    console.print(Text.assemble("\nWritten to ", (f"{folder.path}/", "bold"), told), soft_wrap=True)
    failed = [name for name in chosen if name in folder.failed]
    if failed:
        text = f"Failed: {', '.join(failed)}. To measure what is missing: {_again(folder)}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
