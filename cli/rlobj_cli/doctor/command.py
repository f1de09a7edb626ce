"""`rlobj doctor`: what is installed, what this machine has, and which engines can run on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from rlobj.installation import VISION, Engine, Installation, engines, fits, read_installation
from rlobj_cli.screen.console import facts_grid, table, working


def doctor(as_json: bool = False) -> None:
    """Show what is installed, what this machine has, and which engines can run here.

    For an engine that cannot run, the reason and the command that changes it are shown. The exit
    code is 1 if not even the core works: training in one process, sampling with transformers.

    [bold]Examples[/bold]

    \b  rlobj doctor
      rlobj doctor --json
    """
    console = Console()
    found = read_installation()
    if not as_json:
        _show_packages(console, found)
    with working(Console(stderr=True), "importing what is installed"):
        found.try_imports()
    every = engines(found)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "engines": [asdict(e) for e in every]}, indent=1))
    else:
        _show_devices(console, found)
        _show_engines(console, every)
    if not every[0].runs:
        raise typer.Exit(1)


def _show_packages(console: Console, found: Installation) -> None:
    console.print(Text.assemble(("rlobj doctor", "bold"), f"  {sys.executable}\n"), soft_wrap=True)
    packages = table("package", "installed", "supported")
    for name, version in found.versions.items():
        if name not in VISION or version is not None:
            wanted = found.supported.get(name, "")
            style = "dim" if version is None else "" if fits(version, wanted) else "red"
            packages.add_row(name, Text(version or "–", style), Text(wanted, "dim"))
    console.print(packages)


def _show_devices(console: Console, found: Installation) -> None:
    def gigabytes(count: int | None) -> str:
        return f"{count / 2**30:.1f} GiB" if count else "none"

    devices, torch = found.devices, found.imports.get("torch", {})
    built = f"CUDA {torch['built_for']}" if torch.get("built_for") else "the CPU"
    error = found.error("torch").partition("\n")[0][:160]
    facts = {
        "torch": f"broken: {error}" if error else f"built for {built}",
        "CPU": f"{devices['cpu_cores']} cores, {gigabytes(devices['memory_bytes'])} of memory",
        "/dev/shm": gigabytes(devices["shared_memory_bytes"]),
    }
    for number, gpu in enumerate(found.gpus):
        facts[f"GPU {number}"] = f"{gpu['name']}, {gigabytes(gpu['memory_bytes'])} of memory"
    if not found.gpus:
        seen = ", ".join(devices["driver_gpus"])
        facts["GPU"] = f"none that torch can use; the driver has {seen}" if seen else "none"
    console.print("", facts_grid(facts), "", sep="\n")


def _show_engines(console: Console, every: Sequence[Engine]) -> None:
    listed = table("engine", "runs", "")
    fixes: dict[str, list[str]] = {}
    for engine in every:
        mark = Text("yes", "green") if engine.runs else Text("no", "red")
        listed.add_row(Text(engine.name), mark, Text(engine.why))
        if engine.fix:
            fixes.setdefault(engine.fix, []).append(engine.name)
    console.print(listed)
    for fix, names in fixes.items():  # whole lines, to be copied
        console.print(Text(f"\n{', '.join(names)}", "bold"), soft_wrap=True)
        console.print(Text(f"  {fix}"), soft_wrap=True)
