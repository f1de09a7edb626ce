"""What is shown after a run: numbers, touched tokens, and the next commands."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import counted
from rlobj.evaluation.engines import evaluated_settings
from rlobj.insight import diagnose, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.numbers import Line
from rlobj.insight.outcomes import Outcome
from rlobj.reporting.terminal import facts_grid, say
from rlobj.runs.checkpoints import held_out
from rlobj.runs.layout import step_files
from rlobj.runs.metrics import MEASURES
from rlobj.runs.reading import Record
from rlobj.settings.profiles import PROFILES
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import trust_option
from rlobj.training import TrainingResult
from rlobj.training.progress import clock
from rlobj_cli.inspect import show

GROUPS = 3
"""Token texts that are shown after a run."""


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
