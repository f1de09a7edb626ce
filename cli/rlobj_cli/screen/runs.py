"""What is shown of a run before and after it: its settings, a dry run, numbers, next commands."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import counted
from rlobj.data.sources import is_here, source_names
from rlobj.evaluation.engines import evaluated_settings
from rlobj.insight import diagnose, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.numbers import Line
from rlobj.insight.outcomes import Outcome
from rlobj.reporting.terminal import facts_grid, say, shown_lines, table
from rlobj.runs.checkpoints import held_out
from rlobj.runs.layout import step_files
from rlobj.runs.metrics import MEASURES
from rlobj.runs.reading import Record
from rlobj.settings.layers import EMBEDDED_LAYER, flattened, merged, origins
from rlobj.settings.presets import difference, load_preset
from rlobj.settings.profiles import PROFILES
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.starting import doubts
from rlobj.settings.trust import imports, trust_option
from rlobj.sizing.fitting import require_memory
from rlobj.training import TrainingResult
from rlobj.training.progress import clock
from rlobj.training.resolving import ResolvedRun
from rlobj_cli.inspect import show
from rlobj_cli.screen.console import plain_value, typed
from rlobj_cli.screen.estimating import estimated, show_estimate

GROUPS = 3
"""Token texts that are shown after a run."""


def show_header(console: Console, run: ResolvedRun) -> None:
    """Print what begins: its preset and paper, the user's settings, and the code that is imported.

    Of a run that goes on, from where; of a new one, also what the embedded profile replaces.
    """
    config, layers = run.config, run.layers
    facts, origin_of = {}, origins(layers)
    title = Text.assemble(("rlobj train", "bold"), "  ", (config.preset or "", "bold cyan"))
    if run.resumed:
        place = f"  {run.path} from step {run.done} of {config.training.steps}"
        title = Text.assemble(("rlobj resume", "bold"), place)
    elif config.preset is not None:
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
    facts["from"] = "" if run.resumed else config.origin or ""
    settings, data = flattened(merged(layers)), ", ".join(source_names(config.data.source))
    below = (EMBEDDED_LAYER, f"preset {config.preset}", f"data {data}")
    facts["yours"] = "\n".join(
        f"{path}: {plain_value(settings[path])} ({name})"
        for path, name in origin_of.items()
        if not (name in below or name.startswith("run "))
    )
    facts["code"] = imports(settings_of(config))
    console.print(title, facts_grid({k: text for k, text in facts.items() if text}), sep="\n")


def show_dry_run(console: Console, run: ResolvedRun) -> None:
    """Print the settings that differ from the defaults, the objective, and the memory.

    Raises:
        ConfigError: the run cannot fit the GPU, or the hub has no such model.
    """
    config, layers = run.config, run.layers
    show_header(console, run)
    if is_here(config.data.source):
        run.problems  # noqa: B018 -- read, as the run will read them
    settings, shown = flattened(merged(layers)), table("setting", "value", "from")
    rows = [(path, settings[path], name) for path, name in origins(layers).items()]
    rows += [
        (made.setting, made.written(), f"auto: {made.reason}".rstrip(": "))
        for made in run.choices
        if made.reason or made.written() != "auto"
    ]
    shown.columns[0].no_wrap = True
    for path, value, origin in rows:
        shown.add_row(*map(Text, (path, plain_value(value), origin)))
    console.print("", shown, sep="\n")
    say(console, Text(shown_lines(str(config.explanation()))))
    if run.size is None:
        name = config.model.name
        text = f"\nmemory: unknown without its config.json: hf download {name} config.json"
        say(console, Text(text))
    else:
        show_estimate(console, estimated(config, run.size, run.processes, run.cards))
        if run.cards is not None:
            require_memory(config, run.size, config.training.strategy, run.cards)
    for doubt in doubts(config):
        say(console, Text(f"\nwarning: {typed(doubt)}", style="yellow"))
    console.print(Text("\ndry run: nothing was written", style="dim"))


def show_results(console: Console, config: RunConfig, result: TrainingResult) -> None:
    """Print the numbers before and after, the touched tokens, and the next commands."""
    run = result.path
    show_history(console, config, run, result.history)
    done = f"{counted(result.steps, 'step')} done, this session took {clock(result.seconds)}"
    say(console, Text.assemble(done, " with loading. Run: ", (str(run), "bold")))
    if best := result.best_checkpoint:
        measure, held_out_values = held_out(run)
        value = measure.text(held_out_values[best])
        text = f"Best {measure.name} of a checkpoint: {value}\n  {best}"
        console.print(Text(text), soft_wrap=True)
    findings = diagnose(run).findings if result.steps else ()
    settings = settings_of(config)
    if findings:
        names = ", ".join(f"{finding.name}, {finding.when}" for finding in findings)
        text = f"Found: {names}. See: rlobj diagnose {run}"
        say(console, Text(text, style="yellow"))
    ill = any(finding.holds for finding in findings)
    task = str(config.data.source) in PROFILES  # which has many problems, held-out ones among them
    evaluated = any(measure.key in line for line in result.history for measure in MEASURES)
    on = "" if task or evaluated else " --on FILE"
    checkpoint = " --checkpoint best" if ill and best else ""
    commands = [f"rlobj report {run}"]
    if (run / "records").is_dir():
        commands += [f"rlobj inspect {run}", f"rlobj inspect {run} --html"]
    if step_files(run, "tables"):
        trust = trust_option({"objective": settings["objective"]})
        commands.append(f"rlobj replay {run} --preset grpo,stare{trust}")
    trust = trust_option(evaluated_settings(settings))
    commands.append(f"rlobj eval {run}{on} -n {4 if task else 32}{checkpoint}{trust}")
    commands.append(f"rlobj diagnose {run}" if ill else train_on(run, config))
    console.print("Next:")
    for command in commands:
        console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)


def show_history(console: Console, config: RunConfig, run: Path, history: Sequence[Line]) -> None:
    """Print the numbers before and after, and the touched tokens."""
    outcome = Outcome(history)
    if outcome.steps:
        console.print("", facts_grid(outcome.measures()), "", sep="\n")
        decides = config.objective.mismatch or deciding(config.objective)
        if decides and Record(run).updates:
            show(console, inspect(run, examples=1), GROUPS)
            console.print()


def train_on(run: Path, config: RunConfig) -> str:
    """The command that doubles the steps of a finished run."""
    steps = max(2 * config.training.steps, 1)
    trust = trust_option(settings_of(config))
    return f"rlobj resume {run} --set training.steps={steps}{trust}"
