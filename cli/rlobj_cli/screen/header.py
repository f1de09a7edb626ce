"""What is shown before a run: its settings, where they come from, and a dry run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode

from rlobj.data.sources import is_here, source_names
from rlobj.reporting.terminal import facts_grid, say
from rlobj.runs.configuration import dump_config
from rlobj.settings.layers import EMBEDDED_LAYER, Layer, flattened, merged, origins
from rlobj.settings.presets import difference, load_preset, read_yaml
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.starting import doubts
from rlobj.settings.trust import imports
from rlobj.sizing.fitting import require_memory, with_settings
from rlobj.training.resolving import ResolvedRun
from rlobj_cli.screen.console import plain_value, show_explanation, show_yaml
from rlobj_cli.screen.errors import typed
from rlobj_cli.screen.estimating import estimated, show


def show_header(console: Console, config: RunConfig, layers: Sequence[Layer]) -> None:
    """Print the preset, its paper, what the embedded profile replaces, and the user's settings."""
    facts, origin_of = {}, origins(layers)
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
            if a is not None and origin_of.get(path, EMBEDDED_LAYER) == EMBEDDED_LAYER
        ]
        about = "settings for the embedded policy"
        facts["scale"] = "\n  ".join([about + (" instead of the paper's" if lines else ""), *lines])
    facts["from"] = config.origin or ""
    facts["yours"] = yours(config, layers)
    facts["code"] = imports(settings_of(config))
    console.print(Text.assemble(("rlobj train", "bold"), "  ", (config.preset or "", "bold cyan")))
    console.print(facts_grid({name: text for name, text in facts.items() if text}))


def show_resumed(console: Console, run: ResolvedRun) -> None:
    """Print which run goes on from where, the changed settings, and the code that is imported."""
    title = f"  {run.path} from step {run.done} of {run.config.training.steps}"
    console.print(Text.assemble(("rlobj resume", "bold"), title))
    facts = {"yours": yours(run.config, run.layers), "code": imports(settings_of(run.config))}
    console.print(facts_grid({name: text for name, text in facts.items() if text}))


def yours(config: RunConfig, layers: Sequence[Layer]) -> str:
    """The settings that the user gave, each with where: options, files, a preset file."""
    preset, file = f"preset {config.preset}", Path(config.preset or "")
    settings = flattened(merged(layers))
    of_file = flattened(read_yaml(file)) if file.is_file() else {}
    below = (EMBEDDED_LAYER, preset, f"data {', '.join(source_names(config.data.source))}")
    return "\n".join(
        f"{path}: {plain_value(settings[path])} ({file.name if name == preset else name})"
        for path, name in origins(layers).items()
        if not (name in below or name.startswith("run ")) or (name == preset and path in of_file)
    )


def show_dry_run(console: Console, run: ResolvedRun) -> None:
    """Print every setting with its origin, the memory that the run needs, and its objective.

    Raises:
        ConfigError: the run cannot fit the GPU, or the hub has no such model.
    """
    config, layers = run.config, run.layers
    show_header(console, config, layers)
    origin_of = {path: name for path, name in origins(layers).items() if path != "preset"}
    if is_here(config.data.source):
        run.problems  # noqa: B018 -- read, as the run will read them
    origin_of |= {
        choice.setting: f"auto: {choice.reason}" for choice in run.choices if choice.reason
    }
    order = " < ".join(["library defaults", *dict.fromkeys(name for name, _ in layers)])
    say(console, Text(f"\n# layers: {order}", style="dim"))
    written = with_settings(config, {choice.setting: choice.written() for choice in run.choices})
    show_yaml(console, annotated_yaml(dump_config(written), origin_of))
    console.print()
    show_explanation(console, config.explanation())
    if run.size is None:
        name = config.model.name
        text = f"\nmemory: unknown, because the config.json of {name} is not on this machine, or "
        text += f"transformers cannot read it. Get it with: hf download {name} config.json"
        say(console, Text(text))
    else:
        estimate = estimated(config, run.size, run.processes, run.cards)
        show(console, estimate)
        card = None if run.cards is None else run.cards.bytes
        require_memory(config, run.size, estimate.strategy, run.processes, card)
    for doubt in doubts(config):
        say(console, Text(f"\nwarning: {typed(doubt)}", style="yellow"))
    console.print(Text("\ndry run: nothing was written", style="dim"))


def annotated_yaml(text: str, origins: Mapping[str, str]) -> str:
    """Add a comment to each setting that a layer gave.

    Args:
        text: a YAML mapping in block style.
        origins: layer by dotted path; a `kind` may be known by its parent's path.
    """
    lines = text.splitlines()

    def walk(node: MappingNode, prefix: str) -> None:
        for key, value in node.value:
            path = f"{prefix}{key.value}"
            origin = origins.get(path) or origins.get(path.removesuffix(".kind"))
            if isinstance(value, MappingNode) and value.value:
                walk(value, f"{path}.")
            elif origin:
                scalar = isinstance(value, ScalarNode)
                line = (value.end_mark if scalar else key.end_mark).line
                lines[line] = f"{lines[line]:<36}  # {origin}"

    root = YAML(typ="safe", pure=True).compose(text)
    if isinstance(root, MappingNode):
        walk(root, "")
    return "\n".join(lines) + "\n"
