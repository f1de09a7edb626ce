"""`rlobj doctor`: what is installed, what this machine has, and which engines can run on it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from rlobj.installation import Engine, Installation, engines, fits, read_installation
from rlobj.reporting.terminal import Screen, facts_grid, importing, table
from rlobj_cli.screen.options import Json


def doctor(as_json: Json = False) -> None:
    """Show what is installed, what this machine has, and which engines can run here.

    For an engine that cannot run, the reason and the command that changes it are shown. The exit
    code is 1 if not even the core works: training in one process, sampling with transformers.

    [bold]Examples[/bold]

    \b  rlobj doctor
      rlobj doctor --json
    """
    console = Screen()
    with importing("torch"):
        installation = read_installation()
    all_engines = engines(installation)
    if as_json:
        facts = {**asdict(installation), "engines": [asdict(engine) for engine in all_engines]}
        typer.echo(json.dumps(facts, indent=1))
    else:
        _show(console, installation, all_engines)
    if not all_engines[0].runs:
        raise typer.Exit(1)


def _show(console: Console, installation: Installation, all_engines: list[Engine]) -> None:
    console.print(Text.assemble(("rlobj doctor", "bold"), f"  {sys.executable}\n"), soft_wrap=True)
    packages = table("package", "installed", "supported")
    for name, version in installation.versions.items():
        wanted = installation.supported.get(name, "")
        style = "dim" if version is None else "" if fits(version, wanted) else "red"
        packages.add_row(name, Text(version or "–", style), Text(wanted, "dim"))
    devices = installation.devices
    facts = {
        "CPU": f"{devices['cpu_cores']} cores, {devices['memory_bytes'] / 2**30:.1f} GiB",
        "/dev/shm": f"{devices['shared_memory_bytes'] / 2**30:.1f} GiB",
        "GPU": "\n".join(installation.torch.get("gpus", ())) or "none that torch can use",
    }
    console.print(packages, facts_grid(facts), "", sep="\n")
    listed, fixes = table("engine", "runs", ""), dict[str, list[str]]()
    for engine in all_engines:
        mark = Text("yes", "green") if engine.runs else Text("no", "red")
        listed.add_row(Text(engine.name), mark, Text(engine.why))
        fixes.setdefault(engine.fix, []).append(engine.name)
    console.print(listed)
    for fix, names in fixes.items():  # whole lines, to be copied
        if fix:
            console.print(Text(f"\n{', '.join(names)}\n  {fix}"), soft_wrap=True)
