"""What an evaluation came to: the table on screen, results.json, results.md and report.html."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.evaluation import BenchmarkSummary, EvaluationDirectory, macro_average, summarise
from rlobj.evaluation.report import Entry, results_json, results_markdown, write_page
from rlobj.evaluation.report.entries import estimated, percent, percent_range
from rlobj.rewards import MathVerifier
from rlobj_cli.screen.console import number

__all__ = ["entries_of", "publish"]

VOTE_SECONDS = 1.0
"""For telling whether two wrong answers are the same; then they count as two."""
ALL_VOTE_SECONDS = 60.0
"""For all of them."""
MOST_ACROSS = 3
"""Benchmarks that stand side by side on 80 columns."""

logger = logging.getLogger("rlobj.evaluation")


def publish(console: Console, directory: EvaluationDirectory) -> None:
    """Summarise what is graded, show it, and write results and page into the folder.

    Raises:
        ConfigError: nothing is graded yet.
        RunError: the disk refused.
    """
    settings = directory.settings()
    with console.status("summarising") if console.is_interactive else contextlib.nullcontext():
        entries = entries_of(directory, settings)
    about = _about(settings)
    unfinished = "" if "files" in settings["engine"] else _unfinished(entries)
    if unfinished:
        about["unfinished"] = unfinished
    _show_table(console, entries, unfinished)
    text = json.dumps(results_json(entries, about), indent=2, ensure_ascii=False)
    directory.write("results.json", text + "\n")
    directory.write("results.md", results_markdown(entries, about))
    write_page(directory.path / "report.html", entries, about)
    written = f"wrote results.json, results.md and report.html to {directory.path}"
    console.print(Text(written), soft_wrap=True)


def _unfinished(entries: Sequence[Entry]) -> str:
    """Which benchmarks lack responses, and how many."""
    missing = []
    for entry in entries:
        expected = entry.settings["problems"] * entry.settings["samples"]
        if entry.summary.responses < expected:
            so_far = f"{entry.summary.responses:,} of {expected:,} responses"
            missing.append(f"{entry.summary.benchmark}: {so_far}")
    return "; ".join(missing)


def _about(settings: dict[str, Any]) -> dict[str, Any]:
    """The model, and what it was sampled on; if it was graded again, on what."""
    model = dict(settings["model"])
    about = {"model": model.pop("name"), **_said(model), "engine": _said(settings["engine"])}
    sessions = settings.get("sessions", [])
    sampled = [dict(session) for session in sessions if "started" in session]
    started = [session.pop("started") for session in sampled]
    if sampled:
        about |= {"started": started[0], **sampled[-1]}
        others = [session for session in sampled if session != sampled[-1]]
        about |= {"other sessions": others} if others else {}
    regraded = [dict(session) for session in sessions if "regraded" in session]
    return about | ({"graded again": regraded[-1]} if regraded else {})


def _said(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that say something."""
    return {name: value for name, value in settings.items() if value not in (None, [], {}, "")}


def entries_of(directory: EvaluationDirectory, settings: dict[str, Any]) -> list[Entry]:
    """One entry for each benchmark with graded responses.

    Raises:
        ConfigError: there is none.
    """
    problems = directory.problems()
    benchmarks = settings.get("benchmarks", {})
    entries = []
    with _equality(benchmarks) as equal:
        for name, own in benchmarks.items():
            evaluation = directory.evaluation(name, problems.get(name, ()))
            if evaluation.problems:
                summary = summarise(evaluation, equal=equal if _math(own) else None)
                entries.append(Entry(evaluation, summary, _said(own)))
    if not entries:
        raise ConfigError(
            f"{directory.path} has no graded responses yet; drawn are {len(directory.responses):,}"
        )
    return entries


def _math(settings: dict[str, Any]) -> bool:
    return settings["reward"]["kind"] == "math"


@contextlib.contextmanager
def _equality(benchmarks: dict[str, Any]) -> Iterator[Callable[[str, str], bool] | None]:
    """Whether two answers are the same vote: as the verifier says, where mathematics is graded."""
    if not any(_math(own) for own in benchmarks.values()):
        yield None
        return
    left = ALL_VOTE_SECONDS
    with MathVerifier(VOTE_SECONDS) as verifier:

        def equal(a: str, b: str) -> bool:
            nonlocal left
            if left <= 0:
                return False
            verdict = verifier.compare(a, b)
            left -= verdict.seconds
            return verdict.correct is True

        yield equal
    if left <= 0:
        logger.warning(
            "telling wrong answers apart took over %d s: the rest of them vote by their text",
            ALL_VOTE_SECONDS,
        )


def _show_table(console: Console, entries: Sequence[Entry], unfinished: str) -> None:
    """Measures down, benchmarks across."""
    summaries = [entry.summary for entry in entries]
    if len(summaries) > MOST_ACROSS:
        console.print(_down(summaries))
        _show_average(console, summaries, unfinished)
        _show_notes(console, entries)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column(Text(summary.benchmark), justify="right", overflow="fold")

    def row(name: str, value: Callable[[BenchmarkSummary], str], style: str | None = None) -> None:
        table.add_row(name, *map(value, summaries), style=style)

    row("problems", lambda s: f"{s.problems:,}")
    row("responses per problem, n", lambda s: f"{s.samples_per_problem:,}")
    row("avg@n, %", lambda s: percent(s.accuracy), "bold")
    row("  95% interval", lambda s: percent_range(*s.interval[:2]))
    row("  ± standard error, problems", lambda s: _error(s.standard_errors.problems), "dim")
    row("  ± standard error, sampling", lambda s: _error(s.standard_errors.sampling), "dim")
    for k in sorted({k for summary in summaries for k in summary.pass_at if k > 1}):
        row(f"pass@{k}", lambda s, k=k: estimated(s.pass_at.get(k), s.problems))
    if any(summary.maj_at for summary in summaries):
        row("maj@n", lambda s: estimated(s.maj_at.get(s.samples_per_problem), s.problems))
    table.add_section()
    row("mean length, tokens", lambda s: number(s.lengths.mean, 1))
    row("truncated, %", lambda s: percent(s.truncated))
    row("without an answer, %", lambda s: percent(s.no_answer))
    row("undecided responses", lambda s: f"{s.undecided:,}")
    console.print(table)
    _show_average(console, summaries, unfinished)
    _show_notes(console, entries)


def _down(summaries: Sequence[BenchmarkSummary]) -> Table:
    """Benchmarks down, the first measures across: for many benchmarks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for title in ("n", "avg@n", "95% interval", "± SE", "pass@n", "maj@n", "cut", "undecided"):
        table.add_column(title, justify="right")
    for s in summaries:
        n = s.samples_per_problem
        table.add_row(
            Text(s.benchmark),
            f"{s.problems:,}×{n}",
            Text(percent(s.accuracy), style="bold"),
            percent_range(*s.interval[:2]).replace(" to ", "–"),
            _error(s.standard_errors.problems),
            estimated(s.pass_at.get(n), s.problems),
            estimated(s.maj_at.get(n), s.problems),
            percent(s.truncated),
            f"{s.undecided:,}",
        )
    return table


def _error(value: float) -> str:
    """A standard error; where no problem differs from another there is nothing to tell it by."""
    return percent(value or math.nan)


def _show_average(console: Console, summaries: Sequence[BenchmarkSummary], unfinished: str) -> None:
    if unfinished:
        console.print(Text(f"Not finished: {unfinished}", style="yellow"))
    if len(summaries) > 1:
        average = macro_average(summaries)
        text = (
            f"average of {len(summaries)} benchmarks: {percent(average.accuracy)} %, "
            f"95% interval {percent_range(*average.interval[:2])}"
        )
        console.print(Text(text, style="bold"))


def _show_notes(console: Console, entries: Sequence[Entry]) -> None:
    notes = [
        "shares in percent; interval, and error over problems: this model on problems like these; "
        "sampling: on these very problems, asked again"
    ]
    for entry in entries:
        name, own = entry.summary.benchmark, entry.settings
        if "temperature" in own:
            notes.append(
                f"{name}: temperature {own['temperature']}, top-p {own['top_p']}, at most "
                f"{own['max_tokens']} tokens, seed {own['seed']}"
            )
        notes += [f"{name}: {note}" for note in own.get("notes", ())]
        for reason, count in entry.summary.undecided_reasons.items():
            notes.append(f"{name}: {count} undecided, {reason}")
    for note in notes:
        console.print(Text(note, style="dim"))
