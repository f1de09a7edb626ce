"""`rlobj resume`: parses the command line."""

from pathlib import Path
from typing import Annotated

import typer

import rlobj
from rlobj.reporting.terminal import importing
from rlobj_cli.screen import options
from rlobj_cli.screen.options import setting_layers


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    settings: options.Settings = None,
    sampler: options.Sampler = None,
    processes: options.Processes = None,
    strategy: options.Strategy = None,
    stop_on: options.StopOn = None,
    trust: options.Trust = False,
    place: options.Place = None,
) -> None:
    """Continue a run from its newest checkpoint, on any number of processes.

    --set accepts training.steps, settings that do not change results, and the
    learning rate, max_grad_norm, old_logprobs and evaluation.*: the run records
    their changes.

    [bold]Examples[/bold]

    \b  rlobj resume runs/stapo-20260101-120000
      rlobj resume runs/stapo-20260101-120000 --set training.steps=300
      rlobj resume RUN --processes 4 --strategy zero3
    """
    with importing(*([] if place else ["torch"])):
        from rlobj_cli.screen.training import explained, screen_of

    typed = setting_layers(settings, sampler=sampler, strategy=strategy, stop_on=stop_on)
    screen = screen_of(place)
    with explained(screen):
        rlobj.resume(
            run,
            settings=typed,
            processes=processes,
            trust=trust,
            progress=screen,
        )
