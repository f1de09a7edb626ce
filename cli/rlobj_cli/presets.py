"""`rlobj presets`: list, show, compare and check presets, print their schema."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rlobj.base.errors import counted
from rlobj.base.targets import without_imports
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, importing, say, shown_lines, table
from rlobj.settings.presets import Preset, difference, load_preset, preset_names
from rlobj_cli.screen.console import plain_value
from rlobj_cli.screen.options import PresetOrFile, Trust

if TYPE_CHECKING:
    from rlobj.settings.run_config import RunConfig


presets = typer.Typer(
    name="presets",
    help="List, show, compare and check presets; print their schema.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _read(name: str) -> tuple[Preset, str, RunConfig]:
    """A preset, a preset file or a configuration file, its title and its whole configuration.

    The embedded profile is left out: these are the paper's settings over the library's defaults.
    `data.source` may be missing, since --data can give it.
    """
    from rlobj.settings.layers import layers_of, origins

    preset = load_preset(name)
    title = visible(": ".join(text.strip() for text in (preset.paper, preset.summary) if text))
    origin = str(preset.path) if preset.path.name in name else name
    layers = layers_of(None, [(origin, dict(preset.config))], profile=False)
    with importing("torch"):
        from rlobj.settings.building import build_config

    if "data.source" in origins(layers):
        return preset, title, build_config(layers)
    config = build_config([("any task", {"data": {"source": "addition"}}), *layers])
    data = config.data.model_copy(update={"source": None})
    return preset, title, config.model_copy(update={"data": data})


@presets.command("list")
def list_presets() -> None:
    """List all presets with their papers.

    [bold]Examples[/bold]

    \b  rlobj presets list
    """
    console = Screen()
    listed = table("preset", "what it does")
    for name in preset_names():
        preset = load_preset(name)
        summary, paper = (visible(text.strip()) for text in (preset.summary, preset.paper))
        about = Text.assemble(summary, "\n", (paper, "dim"))
        listed.add_row(Text(name, "bold cyan", no_wrap=True), about)
    console.print(listed)
    console.print("Next: rlobj presets show NAME, rlobj train --preset NAME")


@presets.command()
@without_imports()
def show(preset: PresetOrFile) -> None:
    """Show a preset: its file, its formula, the tokens it selects, settings without effect.

    The explanation is a comment below the file.

    [bold]Examples[/bold]

    \b  rlobj presets show stapo
      rlobj presets show stapo > my.yaml     a preset to edit
    """
    loaded, title, config = _read(preset)
    objective = config.resolved_objective()
    updates, phases = config.training.updates, len(objective.phases)
    facts = [f"{counted(updates * phases, 'optimizer update')} per rollout"]
    if loaded.bases:
        facts.append(f"builds on {', '.join(loaded.bases)}")
    lines = [f"{preset}  {title}".rstrip(), *facts, "", *str(config.explanation()).split("\n")]
    comment = "\n".join(f"# {shown_lines(line)}".rstrip() for line in lines)
    say(Screen(), Text(shown_lines(f"{loaded.text}\n{comment}".expandtabs())))


@presets.command()
@without_imports()
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="Preset or YAML file.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Preset or YAML file.")],
) -> None:
    """Compare all settings of two presets or files.

    [bold]Examples[/bold]

    \b  rlobj presets diff dapo stapo
      rlobj presets diff stapo my.yaml
    """
    from rlobj.settings.run_config import settings_of

    settings = [settings_of(_read(name)[2]) for name in (left, right)]
    rows = [row for row in difference(*settings) if row[0] != "preset"]
    console = Screen()
    if not rows:
        console.print(Text(f"{left} and {right} have the same settings"))
        return
    compared = table("setting", left, right)
    compared.columns[0].no_wrap = True
    for path, *values in rows:
        texts = [Text("–", "dim") if v is None else Text(visible(plain_value(v))) for v in values]
        compared.add_row(Text(visible(path), "bold cyan"), *texts)
    console.print(compared)


@presets.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A preset or configuration file.")],
    trust: Trust = False,
) -> None:
    """Check a preset or configuration file and report all errors at once.

    The objective is tried on small tables, such as one with equal rewards; with --trust also
    classes of your own, whose losses must add up over micro-batches.
    rlobj presets show FILE has its formula.

    [bold]Examples[/bold]

    \b  rlobj presets check my.yaml
      rlobj presets check my.yaml --trust
    """
    console = Screen()
    with nullcontext() if trust else without_imports():
        _, title, config = _read(file)
        from rlobj.objectives.trials import TABLES, require_trainable  # which imports torch
        from rlobj.settings.run_config import settings_of
        from rlobj.settings.trust import imports

        require_trainable(config.resolved_objective(), file)
        valid = Text.assemble((f"{file} is valid", "bold green"), f"  {title}".rstrip())
        console.print(valid, soft_wrap=True)
        tested = f"tested: settings, rules, and the loss on {len(TABLES)} small tables"
        line = "" if trust else imports(settings_of(config))  # code is not run
        say(console, Text(line, "yellow") if line else Text(tested, "dim"))
        for text in config.explanation().inert:
            say(console, Text(f"no effect: {text}", "yellow"))


@presets.command()
def schema() -> None:
    """Print the JSON schema of preset files, with which editors complete and check them.

    [bold]Examples[/bold]

    \b  rlobj presets schema > preset.schema.json
      # yaml-language-server: $schema=preset.schema.json     first line of a preset
    """
    from rlobj.settings.schema import preset_schema

    typer.echo(json.dumps(preset_schema(), indent=1))
