"""`rlobj presets`: list, show, compare, check and copy presets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlobj.config.layers import Layer
    from rlobj.config.run_config import RunConfig

__all__ = ["build", "presets", "read"]

presets = typer.Typer(
    name="presets",
    help="List, show, compare, check and copy presets.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PresetArgument = Annotated[
    str,
    typer.Argument(metavar="PRESET_OR_FILE", help="Name of a preset, or a YAML file."),
]


def read(name: str) -> tuple[str, list[Layer]]:
    """Return the title and the settings of a preset, a preset file or a configuration file.

    The embedded profile is left out: these are the paper's settings over the library's defaults.
    This does not import torch, so that an unknown name is an error at once.
    """
    from rlobj.config.layers import layers_of
    from rlobj.config.presets import load_preset

    preset = load_preset(name)
    title = ": ".join(text for text in (preset.paper, preset.summary) if text)
    origin = str(preset.path) if preset.path.name in name else name
    return title, layers_of(None, [(origin, dict(preset.config))], profile=False)


def build(layers: list[Layer]) -> RunConfig:
    """Build the whole configuration; `data.source` may be missing, since --data can give it."""
    from rlobj.config.layers import origins
    from rlobj.config.run_config import build_config

    if "data.source" in origins(layers):
        return build_config(layers)
    config = build_config([("any task", {"data": {"source": "addition"}}), *layers])
    return config.model_copy(update={"data": config.data.model_copy(update={"source": None})})


@presets.command("list")
def list_presets() -> None:
    """List all presets with their papers.

    [bold]Examples[/bold]

    \b  rlobj presets list
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rlobj.config.presets import load_preset, preset_names

    console = Console()
    wide = console.width >= 132
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("preset", style="bold cyan", no_wrap=True)
    table.add_column("what it does")
    if wide:
        table.add_column("paper", style="dim")
    for name in preset_names():
        preset = load_preset(name)
        summary, paper = Text(preset.summary), Text(preset.paper, style="dim")
        if wide:
            table.add_row(name, summary, paper)
        else:
            table.add_row(name, Text("\n").join([summary, paper]))
    console.print(table)
    console.print("Next: rlobj presets show NAME, rlobj explain NAME, rlobj train --preset NAME")


@presets.command("show")
def show(preset: PresetArgument) -> None:
    """Show a preset's YAML and its formula.

    [bold]Examples[/bold]

    \b  rlobj presets show stapo
      rlobj presets show stapo > my.yaml     the formula becomes a comment
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj.config.presets import load_preset
    from rlobj_cli.screen.console import show_explanation, show_yaml

    found = load_preset(preset)
    explanation = build(read(preset)[1]).resolved_objective().explain()
    console = Console()
    show_yaml(console, found.text)
    if not console.is_terminal:
        lines = ["", *(f"# {line}" for line in explanation.formula)]
        console.print(Text("\n".join(lines)), soft_wrap=True)
        return
    console.rule(style="dim")
    if found.bases:
        console.print(Text(f"builds on {', '.join(found.bases)}\n", style="dim"))
    show_explanation(console, explanation)


@presets.command("diff")
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="Preset or YAML file.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Preset or YAML file.")],
) -> None:
    """Compare all settings of two presets or files.

    [bold]Examples[/bold]

    \b  rlobj presets diff dapo stapo
      rlobj presets diff stapo my.yaml
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rlobj.config.presets import difference

    settings = [read(name)[1] for name in (left, right)]
    rows = difference(*map(_dump, settings))
    console = Console()
    if not rows:
        console.print(Text(f"{left} and {right} have the same settings"))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", style="bold cyan", no_wrap=True)
    table.add_column(Text(left), overflow="fold")
    table.add_column(Text(right), overflow="fold")
    for path, a, b in rows:
        table.add_row(path, _setting(a), _setting(b))
    console.print(table)


def _dump(layers: list[Layer]) -> dict[str, Any]:
    config = build(layers).model_dump(mode="json", by_alias=True)
    return {key: value for key, value in config.items() if key != "preset"}


def _setting(value: Any) -> Any:
    from rich.text import Text

    from rlobj_cli.screen.console import plain_value

    return Text("–", style="dim") if value is None else Text(plain_value(value))


@presets.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A preset or configuration file.")],
) -> None:
    """Check a preset or configuration file and report all errors at once.

    [bold]Examples[/bold]

    \b  rlobj presets check my.yaml
    """
    from rich.console import Console
    from rich.text import Text

    from rlobj_cli.screen.console import show_explanation

    title, layers = read(file)
    config = build(layers)
    console = Console()
    valid = Text.assemble((f"{file} is valid", "bold green"), f"  {title}".rstrip())
    console.print(valid, soft_wrap=True)
    show_explanation(console, config.resolved_objective().explain(config.training.updates_per_step))


@presets.command("copy")
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a preset.")],
    destination: Annotated[
        Path | None,
        typer.Argument(metavar="DEST", help="File or folder to write. Default: ./NAME.yaml"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Copy a preset to a file that you can edit.

    [bold]Examples[/bold]

    \b  rlobj presets copy stapo my.yaml
      rlobj train --preset ./my.yaml
    """
    from rlobj.base.errors import ConfigError
    from rlobj.config.presets import load_preset

    preset = load_preset(name)
    target = destination or Path(f"{preset.name}.yaml")
    if target.is_dir():
        target = target / f"{preset.name}.yaml"
    if target.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{target}: a preset file ends in .yaml, as in {target}.yaml")
    if target.exists() and not force:
        raise ConfigError(f"{target} exists. Overwrite it with --force, or name another file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(preset.text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error}") from error
    typer.echo(f"wrote {target}. Edit it, then:")
    typer.echo(f"  rlobj presets check {target}")
    typer.echo(f"  rlobj train --preset {target}")
