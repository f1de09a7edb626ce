"""`rlobj explain`: what an objective does, in words."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["explain"]


def explain(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET_OR_FILE", help="Name of a preset, or a YAML file.")
    ],
    updates: Annotated[
        int | None,
        typer.Option(
            "--updates",
            min=1,
            metavar="N",
            help="Optimizer updates per rollout. Default: the preset's own number.",
        ),
    ] = None,
) -> None:
    """Say what an objective does: formula, selected tokens, and settings that cannot act.

    [bold]Examples[/bold]

    \b  rlobj explain stapo
      rlobj explain stapo --updates 1      what becomes of the clip on-policy
      rlobj explain my.yaml
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.presets.command import read
    from rlobj_cli.screen.console import show_explanation

    summary, config = read(preset)
    updates = updates or config.training.updates_per_step
    console = Console()
    console.print(Text.assemble((preset, "bold"), f"  {summary}".rstrip()))
    console.print(Text(f"{updates} optimizer update(s) per rollout\n", style="dim"))
    show_explanation(console, config.resolved_objective().explain(updates))
