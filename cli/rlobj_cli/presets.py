"""`rlobj presets`: list, show, compare and check presets, their schema; `rlobj explain`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, say, table
from rlobj.settings.presets import difference, load_preset, preset_names
from rlobj_cli.screen.console import plain_value, show_explanation, show_yaml
from rlobj_cli.screen.options import PresetOrFile

if TYPE_CHECKING:
    from rlobj.settings.layers import Layer
    from rlobj.settings.run_config import RunConfig


presets = typer.Typer(
    name="presets",
    help="List, show, compare and check presets; print their schema.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _read(name: str) -> tuple[str, list[Layer]]:
    """Return the title and the settings of a preset, a preset file or a configuration file.

    The embedded profile is left out: these are the paper's settings over the library's defaults.
    This does not import torch, so that an unknown name is an error at once.
    """
    from rlobj.settings.layers import layers_of

    preset = load_preset(name)
    title = visible(": ".join(text.strip() for text in (preset.paper, preset.summary) if text))
    origin = str(preset.path) if preset.path.name in name else name
    return title, layers_of(None, [(origin, dict(preset.config))], profile=False)


def _build(layers: list[Layer]) -> RunConfig:
    """Build the whole configuration; `data.source` may be missing, since --data can give it."""
    from rlobj.settings.building import build_config
    from rlobj.settings.layers import origins

    if "data.source" in origins(layers):
        return build_config(layers)
    source = {"data": {"source": "addition"}}
    config = build_config([("any task", source), *layers])
    return config.model_copy(update={"data": config.data.model_copy(update={"source": None})})


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
    console.print("Next: rlobj presets show NAME, rlobj explain NAME, rlobj train --preset NAME")


@presets.command()
@without_imports()
def show(preset: PresetOrFile) -> None:
    """Show a preset's YAML and its formula.

    [bold]Examples[/bold]

    \b  rlobj presets show stapo
      rlobj presets show stapo > my.yaml     the formula becomes a comment
    """
    loaded = load_preset(preset)
    explanation = _build(_read(preset)[1]).resolved_objective().explain()
    console = Screen()
    show_yaml(console, loaded.text)
    if not console.is_terminal:
        lines = ["", *(f"# {line}" for line in explanation.formula)]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    console.rule(style="dim")
    if loaded.bases:
        console.print(Text(f"builds on {', '.join(loaded.bases)}\n", style="dim"))
    show_explanation(console, explanation)


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

    settings = [settings_of(_build(_read(name)[1])) for name in (left, right)]
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
@without_imports()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A preset or configuration file.")],
) -> None:
    """Check a preset or configuration file and report all errors at once.

    The objective is tried on small tables, such as one with equal rewards or lengths.

    [bold]Examples[/bold]

    \b  rlobj presets check my.yaml
    """
    title, layers = _read(file)
    config = _build(layers)
    from rlobj.models.score_sources import check_prompts
    from rlobj.objectives.trials import problems  # which imports torch
    from rlobj.settings.run_config import settings_of
    from rlobj.settings.trust import imports

    check_prompts(config)

    if failures := list(problems(config.resolved_objective())):
        raise ConfigError(
            "\n  ".join([f"{file}: training fails at a table with", *failures])
            + "\nGuard what divides or takes a logarithm: when(x > 0, 1 / x, 0), maximum(x, 1e-6)"
        )
    console = Screen()
    valid = Text.assemble((f"{file} is valid", "bold green"), f"  {title}".rstrip())
    console.print(valid, soft_wrap=True)
    if line := imports(settings_of(config)):
        say(console, Text(line, "yellow"))
    show_explanation(console, config.explanation())


@without_imports()
def explain(
    preset: PresetOrFile,
    updates: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Updates per rollout (training.updates_per_step × training.passes). Default: as "
            "in the preset.",
        ),
    ] = None,
) -> None:
    """Explain an objective: its formula, the tokens it selects, and settings without effect.

    [bold]Examples[/bold]

    \b  rlobj explain stapo
      rlobj explain stapo --updates 1      on-policy: settings without effect
      rlobj explain my.yaml
    """
    title, layers = _read(preset)
    config = _build(layers)
    objective = config.resolved_objective()
    updates, phases = updates or config.training.updates, len(objective.phases)
    counted = (
        f"{updates * phases} optimizer update{'s' if updates * phases > 1 else ''} per rollout"
    )
    if phases > 1:
        counted += f": {phases} phases of {updates}"
    console = Screen()
    console.print(Text.assemble((preset, "bold"), f"  {title}".rstrip()))
    console.print(Text(f"{counted}\n", style="dim"))
    show_explanation(console, objective.explain(updates, config.training.old_logprobs))


@presets.command()
def schema() -> None:
    """Print the JSON schema of preset files, with which editors complete and check them.

    [bold]Examples[/bold]

    \b  rlobj presets schema > preset.schema.json
      # yaml-language-server: $schema=preset.schema.json     first line of a preset
    """
    from rlobj.settings.schema import preset_schema

    typer.echo(json.dumps(preset_schema(), indent=1))
