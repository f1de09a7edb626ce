"""`rlobj explain`: an objective in words."""

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
            help="Mini-batches per rollout (training.updates_per_step). Default: as in the preset.",
        ),
    ] = None,
) -> None:
    """Explain an objective: its formula, the tokens it selects, and settings without effect.

    [bold]Examples[/bold]

    \b  rlobj explain stapo
      rlobj explain stapo --updates 1      on-policy: settings without effect
      rlobj explain my.yaml
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.presets.command import build, read
    from rlobj_cli.screen.console import show_explanation

    title, layers = read(preset)
    config = build(layers)
    objective = config.resolved_objective()
    updates, phases = updates or config.training.updates_per_step, len(objective.phases)
    counted = (
        f"{updates * phases} optimizer update{'s' if updates * phases > 1 else ''} per rollout"
    )
    if phases > 1:
        counted += f": {phases} phases of {updates}"
    console = Console()
    console.print(Text.assemble((preset, "bold"), f"  {title}".rstrip()))
    console.print(Text(f"{counted}\n", style="dim"))
    show_explanation(console, objective.explain(updates))
