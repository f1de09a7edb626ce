"""What is shown after a run: numbers, conversations, and the next commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import counted
from rlobj.base.paths import step_of
from rlobj.conversations.environment import ENDS
from rlobj.evaluation.engines import evaluated_settings
from rlobj.insight import diagnose, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.numbers import Line
from rlobj.insight.outcomes import Outcome
from rlobj.reporting.terminal import facts_grid, number, say
from rlobj.runs.checkpoints import held_out
from rlobj.runs.layout import step_files
from rlobj.runs.metrics import MEASURES
from rlobj.runs.reading import Record
from rlobj.runs.samples import read_samples
from rlobj.settings.profiles import PROFILES
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import trust_option
from rlobj.training import TrainingResult
from rlobj.training.progress import clock
from rlobj_cli.inspect import show
from rlobj_cli.screen.context import beginning

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
        show_conversations(console, run)
        decides = config.objective.mismatch or deciding(config.objective)
        if decides and Record(run).updates:
            show(console, inspect(run, examples=1), GROUPS)
            console.print()


def show_conversations(console: Console, run: Path) -> None:
    """Print two conversations of the newest samples, a right and a wrong one if there are."""
    files = step_files(run, "samples")
    if not files or "conversation" not in (rows := read_samples(files[-1])).column_names:
        return
    verdicts = _firsts(rows["correct"].to_pylist())
    problems = _firsts(rows["problem"].to_pylist())
    order = sorted(range(rows.num_rows), key=lambda i: (i not in verdicts, i not in problems))
    console.print(Text(f"conversations of step {step_of(files[-1])}", style="dim"))
    most = 3 * console.width
    for row in rows.take(order[:2]).to_pylist():
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
    steps = max(2 * config.training.steps, 1)
    trust = trust_option(settings_of(config))
    return f"rlobj resume {run} --set training.steps={steps}{trust}"
