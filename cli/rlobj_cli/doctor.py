"""`rlobj doctor`: what is installed, what this machine has, and which engines can be imported."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import typer
from rich.text import Text

from rlobj.installation import read_installation
from rlobj.reporting.terminal import Screen, facts_grid, table, working
from rlobj_cli.screen.options import Json


def doctor(as_json: Json = False) -> None:
    """Show what is installed, what this machine has, and which engines can be imported.

    The exit code is 1 if torch or transformers cannot.

    [bold]Examples[/bold]

    \b  rlobj doctor
      rlobj doctor --json
    """
    with working(Screen(stderr=True), "importing the engines"):
        installation = read_installation()
    if as_json:
        typer.echo(json.dumps(installation, indent=1))
    else:
        _show(installation)
    if any(installation["imports"].get(name, "missing") for name in ("torch", "transformers")):
        raise typer.Exit(1)


def _show(installation: Mapping[str, Mapping[str, Any]]) -> None:
    console, devices = Screen(), installation["devices"]
    console.print(Text.assemble(("rlobj doctor", "bold"), f"  {sys.executable}\n"), soft_wrap=True)
    packages = table("package", "installed", "imports")
    for name, version in installation["versions"].items():
        why = installation["imports"].get(name)
        imports = Text("" if why is None else why or "yes", "red" if why else "green")
        packages.add_row(name, version or "–", imports)
    facts = {
        "CPU": f"{devices['cpu_cores']} cores, {devices['memory_bytes'] / 2**30:.1f} GiB",
        "/dev/shm": f"{devices['shared_memory_bytes'] / 2**30:.1f} GiB",
        "GPU": "\n".join(devices["gpus"]) or "none that torch can use",
    }
    console.print(packages, facts_grid(facts), sep="\n")
