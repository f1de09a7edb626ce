"""The end of a run in a picture: tokens that the objective touched.

What is printed before and after a run.

Start or resume a run from the command line, and show it. Importing this takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
import yaml
from pyarrow import parquet
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import BatchError, ConfigError, RlobjError, RunError, counted
from rlobj.base.files import step_of
from rlobj.config.layers import EMBEDDED_LAYER, PROFILES, Layer, flattened, merged, origins
from rlobj.config.presets import difference, load_preset, read_yaml
from rlobj.config.resuming import trust_option
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.config.run_folder import MEASURES, RunFolder, dump_config, held_out, read_settings
from rlobj.config.starting import doubts
from rlobj.conversations.environment import ENDS, NoRoom
from rlobj.data.sources import source_names
from rlobj.insight import Inspection, diagnose, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.inspecting import about
from rlobj.insight.numbers import Line, percent, share_in_metrics
from rlobj.insight.outcomes import Outcome
from rlobj.objectives.objective import Objective
from rlobj.objectives.planning import flat
from rlobj.objectives.rules import Rule
from rlobj.objectives.rules.nodes import Logic
from rlobj.training import Callback, CallerInputs, TrainingResult, run_training
from rlobj.training.choosing import choose_settings, held_out_share, settled
from rlobj.training.memory import require_memory
from rlobj.training.parallel.launcher import launch, without
from rlobj.training.run import Resumed, check_functions, go_on
from rlobj.training.sizes import Cards, Size, card_bytes
from rlobj_cli.screen.console import (
    beginning,
    calm_libraries,
    facts_grid,
    in_context,
    looks,
    number,
    plain_value,
    say,
    show_explanation,
    show_next,
    show_yaml,
    table,
    working,
)
from rlobj_cli.screen.estimating import here, short, show_choices, show_tables
from rlobj_cli.screen.options import as_typed, exit_code, report
from rlobj_cli.screen.progress import clock, open_screen

SHOWN = 6
"""Tokens in context."""
MOST = 8
"""Texts of tokens that are counted."""


def show_touched(console: Console, objective: Objective, run: Path) -> None:
    """Print what the objective did to tokens, from the record of a finished run.

    An objective without rules prints nothing.
    """
    if not _rules(objective):
        return
    try:
        with working(console, "reading the record"):
            found = inspect(run, examples=1)
    except RlobjError as error:
        console.print(Text(str(error), style="yellow"), soft_wrap=True)
        return
    if found.unknown:
        console.print(Text(f"{found.total}\n", style="yellow"), soft_wrap=True)
        return
    if not found.groups:
        _show_untouched(console, objective, found)
        return
    for line in (found.total, *found.lines()[:3]):
        console.print(Text(line))
    _show_examples(console, found)
    most = [
        f"[{beginning(row['text'], 12)}] {about(row, '≥ ')}{row['tokens']:,.0f}"
        for row in found.groups.slice(0, MOST).to_pylist()
    ]
    console.print(Text.assemble(("most often  ", "dim"), "  ".join(most)))
    console.print()


def _rules(objective: Objective) -> dict[str, tuple[Any, list[str]]]:
    """What touches tokens, by its text: a rule or a number, and its fields."""
    mismatch = objective.mismatch and objective.mismatch.kind
    return deciding(objective) | ({mismatch: (mismatch, ["mismatch"])} if mismatch else {})


def _show_examples(console: Console, found: Inspection) -> None:
    """A token of each of the largest groups of each effect, in its response, the newest first."""
    tokens = sorted(found.examples(SHOWN, mixed=True), key=lambda row: -row["step"])
    names = ["prob", "entropy"] + ["factor"] * any(row["effect"] == "reweighted" for row in tokens)
    shown = table("step", "prompt │ response, the token in [ ]", right=names)
    lines = in_context(tokens, console.width - 9 - 10 * len(names))
    for row, line in zip(tokens, lines, strict=True):
        shown.add_row(str(row["step"]), line, *(number(row[name], 4) for name in names))
    console.print(shown)


def _show_untouched(console: Console, objective: Objective, found: Inspection) -> None:
    """That no token was touched, and how often the parts of a rule held by themselves."""
    for text, (rule, fields) in _rules(objective).items():
        names = " and ".join(fields).replace("switch", "surrogate")
        line = f"{names} touched none of {found.population:,.0f} tokens:  {text}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
        for part in flat(rule, Logic, "&") if isinstance(rule, Rule) else ():
            if held := _held(found.run, part):
                console.print(Text(f"  {part} {held}"), soft_wrap=True)
    console.print(Text("So the run equals one without it.\n", style="yellow"))


def _held(run: Path, part: Rule) -> str:
    """How often a part of a rule held by itself; "" if nothing tells it."""
    selected = share_in_metrics(Outcome.read(run).steps, f"selected/{part}")
    if selected is not None:
        return f"selected {percent(selected)} of its population, the mean of the updates"
    try:
        held = inspect(run, where=part, examples=0)
    except ConfigError:  # it needs all tokens of an update, or a column without a record
        return ""
    if held.estimated and held.known_share is not None:
        return f"held for {percent(held.known_share)} of the tokens, the mean of the updates"
    error, whole = held.standard_error, max(held.population, 1)
    count = "an unknown share" if held.unknown else percent(held.count / whole)
    if error:
        count = f"≈ {count} ± {percent(error / whole)}"
    elif held.estimated:
        count = count if held.unknown else f"at least {count}"
        most = f", at most about {percent((held.at_most or 0.0) / whole)}" if held.bounded else ""
        recorded = f"{held.recorded:,} of {whole:,.0f} were recorded"
        return f"held for {count} of the tokens{most}: {recorded}"
    unknown = f", unknown for {percent(held.undecided / whole)}" if held.undecided else ""
    return f"held for {count} of the tokens{unknown}"


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
    below = (EMBEDDED_LAYER, preset, f"data {', '.join(source_names(config.data.source))}")
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
    ranks = processes or int(os.environ.get("WORLD_SIZE", "1"))
    card = card_bytes()  # what a GPU run chooses depends on the hub's config.json
    size = Size.named(config.model, local=card is None)
    cards = None if card is None else Cards(ranks, card)
    choices = choose_settings(config, size, cards, os.environ)
    local = all(Path(name).exists() for name in source_names(config.data.source))
    if config.model.name is None or local:  # not from the hub
        choices += held_out_share(config)
    config = settled(config, choices)
    known |= {each.setting: "auto" for each in choices if each.reason}
    order = " < ".join(["library defaults", *dict.fromkeys(name for name, _ in layers)])
    say(console, Text(f"\n# layers: {order}", style="dim"))
    show_yaml(console, annotated_yaml(dump_config(config), known))
    console.print()
    show_explanation(console, config.resolved_objective().explain(config.training.updates))
    show_choices(console, choices)
    _show_memory(console, config, size, ranks)
    for doubt in doubts(config):
        say(console, Text(f"\nwarning: {doubt}", style="yellow"))
    console.print(Text("\ndry run: nothing was written", style="dim"))


def _show_memory(console: Console, config: RunConfig, size: Size | None, ranks: int) -> None:
    """Print the memory that a process needs on its GPU."""
    if size is None:
        name = config.model.name
        why = f"the config.json of {name} is not on this machine, or transformers cannot read it"
        say(
            console,
            Text(f"\nmemory: unknown, because {why}. Get it with: hf download {name} config.json"),
        )
        return
    found = here(config, ranks, size)
    show_tables(console, found)
    require_memory(config, size, found.strategy, ranks, found.memory.card)


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
    task = str(config.data.source) in PROFILES  # which has many problems, held-out ones among them
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
        show_conversations(console, run)
        show_touched(console, config.objective, run)


def show_conversations(console: Console, run: Path) -> None:
    """Print two conversations of the newest samples, a right and a wrong one if there are."""
    files = sorted((run / "samples").glob("step-*.parquet"))
    if not files or "conversation" not in parquet.read_schema(files[-1]).names:
        return
    rows = parquet.read_table(files[-1])
    firsts = [_firsts(rows[name].to_pylist()) for name in ("correct", "problem")]
    chosen = sorted(range(rows.num_rows), key=lambda i: [i not in first for first in firsts])[:2]
    console.print(Text(f"conversations of step {step_of(files[-1])}", style="dim"))
    most = 3 * console.width
    for row in rows.take(chosen).to_pylist():
        verdict = {True: "right", False: "wrong", None: "not judged"}[row["correct"]]
        grid = facts_grid({})
        grid.add_row("  prompt", Text(beginning(row["prompt"], most), style="bold"))
        for turn in json.loads(row["conversation"]):
            grid.add_row("  policy", Text(beginning(turn["text"], most)))
            if turn["observation"]:
                style = "red" if turn["errors"] else "cyan"
                grid.add_row("  answered", Text(beginning(turn["observation"], most), style=style))
            if turn["end"] in ENDS:
                grid.add_row("  end", ENDS[turn["end"]])
        grid.add_row("  reward", f"{number(row['reward'])}, {verdict}")
        console.print(grid, "")


def _firsts(values: Sequence[Any]) -> set[int]:
    """The positions at which a value that is not None is there for the first time."""
    return {values.index(value) for value in {*values} - {None}}


def train_on(run: Path, config: RunConfig) -> str:
    """The command that doubles the steps of a finished run."""
    steps, trust = max(2 * config.training.steps, 1), trust_option(settings_of(config))
    return f"rlobj train --resume {run} --set training.steps={steps}{trust}"


def start(
    console: Console,
    config: RunConfig,
    layers: list[Layer],
    folder: Path,
    dry_run: bool,
    processes: int | None,
) -> None:
    """Start a new run, or with `dry_run` show the layers of its configuration."""
    if dry_run:
        check_functions(config)
        show_dry_run(console, config, layers, processes)
        return
    if processes not in (None, 1):
        words = [*without(sys.argv[1:], "--out"), "--out", str(folder)]
        if config.origin is not None and "--from" in str(words):  # all take the same checkpoint
            words = [*without(words, "--from"), "--from", config.origin]
        raise typer.Exit(launch(words, processes))

    def header() -> None:
        show_header(console, config, layers)
        if line := short(config, int(os.environ.get("WORLD_SIZE", "1"))):
            console.print(facts_grid({"estimate": line}))

    with _shown(console, config, folder, 0, header) as screens:
        result = run_training(config, folder, CallerInputs(callbacks=screens))
    _show_end(console, config, result)


def resume(
    console: Console,
    found: Resumed,
    changes: Sequence[Layer] = (),
    processes: int | None = None,
    reward: str | None = None,
) -> None:
    """Continue a run, of which only settings that do not change results may change.

    Args:
        console: the screen.
        found: what `open_resumed` returned.
        changes: the settings to change.
        processes: as asked for.
        reward: as the run was started with.
    """
    path, run, config, done, _ = found
    steps = config.training.steps
    if done == steps:
        advice = train_on(path, config)
        console.print(Text(f"All steps are done. To train on:\n  {advice}"), soft_wrap=True)
        return
    if processes not in (None, 1):
        raise typer.Exit(launch(sys.argv[1:], processes))
    title = Text.assemble(("rlobj train", "bold"), f"  {path} from step {done} of {steps}")
    if changes:
        title.append("\n  yours     " + yours(config, changes).replace("\n", "\n            "))
    with _shown(console, config, run.path, done, lambda: console.print(title)) as screens:
        result = go_on(found, CallerInputs(reward=reward, callbacks=screens))
    _show_end(console, config, result)


@contextmanager
def _shown(
    console: Console, config: RunConfig, out: Path, done: int, header: Callable[[], None]
) -> Iterator[list[Callback]]:
    """The screen of a run as its callback; an error says how to continue the run.

    Args:
        console: the screen.
        config: the run.
        out: the run directory.
        done: steps before this session.
        header: prints the header.
    """
    calm_libraries(console)
    try:
        if console.quiet:  # another process prints
            yield []
            return
        history = [line for line in RunFolder(out).lines() if line["step"] <= done]
        with open_screen(
            console, config.training.steps, done, history if done else [], header
        ) as screen:
            for handler in logging.getLogger("rlobj").handlers:  # warnings appear below the header
                handler.addFilter(lambda _: screen.begin() or True)
            yield [screen]
    except (KeyboardInterrupt, RunError) as error:
        if not (out / "config.resolved.yaml").exists():
            raise
        if isinstance(error, RunError) and error.finding in config.training.stop_on:
            if not console.quiet:
                show_history(console, config, out, RunFolder(out).lines())
            raise
        if isinstance(error.__cause__, BatchError | NoRoom):  # the same step would fail again
            raise
        if isinstance(error, RunError):
            raise RunError(f"{error}\n{_advice(out, str(error))}") from error
        report("Interrupted", _advice(out))
        raise typer.Exit(exit_code(error)) from None


def _show_end(console: Console, config: RunConfig, result: TrainingResult) -> None:
    """The results of a finished run; how to continue an interrupted one."""
    if result.steps < config.training.steps:
        console.print(Text(_advice(result.path), style="yellow"), soft_wrap=True)
    else:
        show_results(console, config, result)


def _advice(path: Path, error: str = "") -> str:
    """How to continue a run that has stopped, with each setting that the error names."""
    done = RunFolder(path).steps_saved()
    saved = f"the newest checkpoint at step {done}" if done else "no checkpoint yet"
    size = os.environ.get("WORLD_SIZE", "1")
    processes = f" --processes {size}" if size != "1" else ""
    trust = trust_option(read_settings(path))
    command = f"\n  rlobj train --resume {path}{trust}{processes}"
    lines = [
        f"{command} {each}" for each in re.findall(r"--set \S+\w", as_typed(error, "train"))
    ] or [command]
    one_of = " one of" * (len(lines) > 1)
    return f"Stopped with {saved}. Continue with{one_of}:{''.join(lines)}"
