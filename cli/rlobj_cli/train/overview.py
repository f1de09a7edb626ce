"""What is printed before and after a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import counted
from rlobj.config.embedded_profile import PROFILES
from rlobj.config.layers import EMBEDDED_LAYER, Layer, flattened, merged, origins
from rlobj.config.presets import difference, load_preset, read_yaml
from rlobj.config.resuming import trust_option
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.config.run_folder import MEASURES, dump_config, held_out
from rlobj.config.starting import doubts
from rlobj.insight import diagnose
from rlobj.insight.outcomes import Line, Outcome
from rlobj.training import TrainingResult
from rlobj.training.memory import GIB, Size, card_bytes, estimate, require_memory
from rlobj.training.parallel.environment import resolve_strategy
from rlobj_cli.screen.console import (
    facts_grid,
    looks,
    number,
    plain_value,
    say,
    show_explanation,
    show_next,
    show_yaml,
    table,
)
from rlobj_cli.train.progress import clock
from rlobj_cli.train.touched import show_touched


def show_header(console: Console, config: RunConfig, layers: Sequence[Layer]) -> None:
    """Print the preset, its paper, what the embedded profile replaces, and the user's settings."""
    facts, known = {}, origins(layers)
    if config.preset is not None:
        preset = load_preset(config.preset)
        facts = {"about": preset.summary, "paper": preset.paper}
    names = [name for name, _ in layers]
    if EMBEDDED_LAYER in names:
        position = names.index(EMBEDDED_LAYER)
        changes = difference(merged(layers[:position]), merged(layers[: position + 1]))
        lines = [
            f"{path}: {plain_value(a)} → {plain_value(b)}"
            for path, a, b in changes
            if a is not None and known.get(path, EMBEDDED_LAYER) == EMBEDDED_LAYER
        ]
        about = "settings for the embedded policy"
        facts["scale"] = "\n  ".join([about + (" instead of the paper's" if lines else ""), *lines])
    facts["from"] = config.origin or ""
    facts["yours"] = yours(config, layers)
    console.print(Text.assemble(("rlobj train", "bold"), "  ", (config.preset or "", "bold cyan")))
    console.print(facts_grid({name: text for name, text in facts.items() if text}))


def yours(config: RunConfig, layers: Sequence[Layer]) -> str:
    """The settings that the user gave, each with where: options, files, a preset file."""
    preset, settings = f"preset {config.preset}", flattened(merged(layers))
    file = Path(config.preset or "")
    own = flattened(read_yaml(file)) if file.is_file() else {}
    below = (EMBEDDED_LAYER, preset, f"data {config.data.source}")
    return "\n".join(
        f"{path}: {plain_value(settings[path])} ({file.name if name == preset else name})"
        for path, name in origins(layers).items()
        if not (name in below or name.startswith("run ")) or (name == preset and path in own)
    )


def show_dry_run(
    console: Console, config: RunConfig, layers: Sequence[Layer], processes: int | None = None
) -> None:
    """Print every setting with its origin, the memory that the run needs, and its objective.

    Raises:
        ConfigError: the run cannot fit the GPU.
    """
    show_header(console, config, layers)
    known = {path: name for path, name in origins(layers).items() if path != "preset"}
    order = " < ".join(["library defaults", *dict.fromkeys(name for name, _ in layers)])
    say(console, Text(f"\n# layers: {order}", style="dim"))
    show_yaml(console, annotated_yaml(dump_config(config), known))
    console.print()
    show_explanation(console, config.resolved_objective().explain(config.training.updates))
    _show_memory(console, config, processes or int(os.environ.get("WORLD_SIZE", "1")))
    for doubt in doubts(config):
        say(console, Text(f"\nwarning: {doubt}", style="yellow"))
    console.print(Text("\ndry run: nothing was written", style="dim"))


def _show_memory(console: Console, config: RunConfig, ranks: int) -> None:
    """Print the memory that a process needs on its GPU."""
    size = Size.named(config.model, local=True)
    if size is None:
        name = config.model.name
        why = f"the config.json of {name} is not on this machine, or transformers cannot read it"
        say(
            console,
            Text(f"\nmemory: unknown, because {why}. Get it with: hf download {name} config.json"),
        )
        return
    strategy, card = resolve_strategy(config.training.strategy, os.environ), card_bytes()
    memory = estimate(config, size, strategy, ranks, card)
    unit, name = (GIB, "GiB") if max(memory.needed) >= GIB else (2**20, "MiB")
    title = f"memory of a process, {name} ({strategy}, processes: {ranks})"
    shown = table(title, right=("sampling", "update"))
    for name, part in memory.parts.items():
        shown.add_row(name, *(f"{each / unit:.2f}" for each in part))
    shown.add_section()
    shown.add_row("together, without activations", *(f"{x / unit:.2f}" for x in memory.needed))
    if card is not None:
        shown.add_row("the GPU has", *[f"{card / unit:.2f}"] * 2)
    console.print()
    console.print(shown)
    require_memory(config, size, strategy, ranks, card)


def annotated_yaml(text: str, origins: Mapping[str, str]) -> str:
    """Add a comment to each setting that a layer gave.

    Args:
        text: a YAML mapping in block style.
        origins: layer by dotted path; a `kind` may be known by its parent's path.
    """
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, prefix: str) -> None:
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            known = origins.get(path) or origins.get(path.removesuffix(".kind"))
            if isinstance(value, yaml.MappingNode) and value.value:
                walk(value, f"{path}.")
            elif known:
                scalar = isinstance(value, yaml.ScalarNode)
                line = (value.end_mark if scalar else key.end_mark).line
                lines[line] = f"{lines[line]:<36}  # {known}"

    root = yaml.compose(text)
    if isinstance(root, yaml.MappingNode):
        walk(root, "")
    return "\n".join(lines) + "\n"


def show_results(console: Console, config: RunConfig, result: TrainingResult) -> None:
    """Print the numbers before and after, the touched tokens, and the next commands."""
    show_history(console, config, result.path, result.history)
    done = f"{counted(result.steps, 'step')} done, this session took {clock(result.seconds)}. Run:"
    say(console, Text.assemble(done, " ", (str(result.path), "bold")))
    if best := result.best_checkpoint:
        measure, known = held_out(result.path)
        text = f"Best {measure.name} of a checkpoint: {number(known[best])}\n  {best}"
        console.print(Text(text), soft_wrap=True)
    task = config.data.source in PROFILES  # which has many problems, held-out ones among them
    evaluated = any(each.key in line for line in result.history for each in MEASURES)
    on, samples = "" if task or evaluated else " --on FILE", 4 if task else 32
    found = diagnose(result.path, trust=True).findings if result.steps else ()
    trust = trust_option(settings_of(config))
    if found:
        names = ", ".join(f"{finding.name}, {finding.when}" for finding in found)
        say(
            console,
            Text(f"Found: {names}. See: rlobj diagnose {result.path}{trust}", style="yellow"),
        )
    ill = any(finding.holds for finding in found)
    chosen = " --checkpoint best" if ill and best else ""
    resumed = train_on(result.path, config).removeprefix("rlobj ")
    commands = [
        *looks(result.path, str(result.path), trust),
        f"eval {result.path}{on} -n {samples}{chosen}{trust}",
        f"diagnose {result.path}{trust}" if ill else resumed,
    ]
    show_next(console, commands)


def show_history(console: Console, config: RunConfig, run: Path, history: Sequence[Line]) -> None:
    """Print the numbers before and after, and the touched tokens."""
    outcome = Outcome(history)
    if outcome.steps:
        console.print("", facts_grid(outcome.measures()), "", sep="\n")
        show_touched(console, config.objective, run)


def train_on(run: Path, config: RunConfig) -> str:
    """The command that doubles the steps of a finished run."""
    steps, trust = max(2 * config.training.steps, 1), trust_option(settings_of(config))
    return f"rlobj train --resume {run} --set training.steps={steps}{trust}"
