"""Grading without a model: kept responses again, or responses made elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError, nearest
from rlobj.data import Problem
from rlobj.data.benchmarks import BENCHMARKS, load_benchmark
from rlobj.evaluation import EvaluationDirectory, Samples, grade_all
from rlobj.evaluation.imported import PARTS, read_responses, task_of
from rlobj.evaluation.provenance import environment
from rlobj.evaluation.records import ResponseRecord
from rlobj.evaluation.samples import Key
from rlobj.rewards import Graded, Reward
from rlobj_cli.evaluate.results import publish
from rlobj_cli.evaluate.run import Bar
from rlobj_cli.screen.console import facts_grid

__all__ = ["regrade_all", "score_files"]

SHOWN = 20
"""Changed grades that are listed."""
NAMED = 5
"""Problems without a response that are named."""
OWN = ("problems.jsonl", "samples.jsonl", "grades.jsonl", "settings.json", "results.json")
"""Files of an evaluation, of which a table of responses might have the name."""


def regrade_all(
    console: Console, directory: EvaluationDirectory, change: Mapping[str, Any]
) -> None:
    """Replace every grade of an evaluation, and say which changed.

    Args:
        console: the screen.
        directory: the evaluation.
        change: fields of the reward that are to be others.
    """
    with directory.locked():
        settings = directory.settings()
        fresh = Samples()
        fresh.responses = directory.responses
        problems_of = directory.problems()
        for name, own in settings["benchmarks"].items():
            problems = problems_of.get(name, [])
            reward = _changed(own["reward"], change)
            _grade(console, reward, name, problems, fresh)
            own["reward"] = reward.model_dump(mode="json", exclude={"workers"})
        before = directory.grades
        directory.rewrite_grades(fresh.grades)
        settings.setdefault("sessions", []).append({"regraded": _now(), **environment()})
        directory.write_settings(settings)
    _show_changes(console, directory, before)
    publish(console, directory)


def score_files(
    console: Console,
    files: Sequence[Path],
    on: str | None,
    data_dir: Path | None,
    reward: str,
    model: str | None,
    columns: Sequence[str],
    out: Path | None,
) -> None:
    """Grade responses made elsewhere into a new folder.

    Of the files in it settings.json comes last: a kill before leaves a folder that is still free,
    and one after, an evaluation that `regrade_all` completes.

    Raises:
        ConfigError: a folder that holds an evaluation, or options that cannot be.
        DataError: files that cannot be read.
    """
    name = on or task_of(files[0])
    out = out or Path("evals") / f"scored-{files[0].stem}"
    directory = EvaluationDirectory(out)
    known = None
    if on is not None:
        if on not in BENCHMARKS:
            raise ConfigError(f"--on {on}: no such benchmark.{nearest(on, BENCHMARKS)}")
        known = load_benchmark(on, data_dir=data_dir).problems
    problems, responses = read_responses(files, name, known=known, columns=_columns(columns))
    notes = _unanswered(problems if known is None else known, responses)
    grader = Reward.build(reward)
    _refuse_taken(directory, files)
    console.print(Text.assemble(("rlobj eval score", "bold"), "  ", (str(files[0]), "bold cyan")))
    facts = {"problems": f"{len(problems):,}", "responses": f"{len(responses):,}"}
    console.print(facts_grid({**facts, "folder": str(out)}))
    for note in notes:
        console.print(Text(f"  {name}: {note}", style="yellow"))
    with directory.locked():
        for file in ("samples.jsonl", "grades.jsonl"):  # of a killed one
            directory.write(file, "")
        directory.write_problems({name: problems})
        directory.add(responses)
        directory.write_settings(
            {
                "format": 1,
                "model": {"name": model or "made elsewhere"},
                "engine": {"name": "made elsewhere", "files": {str(f): _digest(f) for f in files}},
                "benchmarks": {
                    name: {
                        "problems": len(problems),
                        "samples": max(sample for _, _, sample in responses) + 1,
                        "reward": grader.model_dump(mode="json", exclude={"workers"}),
                        "notes": notes,
                    }
                },
                "sessions": [{"started": _now(), **environment()}],
            }
        )
        _grade(console, grader, name, problems, directory)
    publish(console, directory)


def _refuse_taken(directory: EvaluationDirectory, files: Sequence[Path]) -> None:
    """Refuse a folder that must not be written to.

    Raises:
        ConfigError: it holds an evaluation, or a file to be graded that would be overwritten.
    """
    out = directory.path
    if directory.settings_file.exists():
        raise ConfigError(
            f"{out} holds an evaluation already. If it was stopped before all was graded, or to "
            f"grade it again: rlobj eval regrade {out}\n"
            "Else choose another folder with --out DIR"
        )
    written = [(out / name).resolve() for name in OWN]
    if overwritten := [file for file in files if file.resolve() in written]:
        raise ConfigError(f"{overwritten[0]} would be overwritten; choose a folder with --out DIR")


def _unanswered(asked: Sequence[Problem], responses: Mapping[Key, ResponseRecord]) -> list[str]:
    """What to note of problems without a response."""
    answered = {problem for _, problem, _ in responses}
    missing = [problem.id for problem in asked if problem.id not in answered]
    if not missing:
        return []
    named = ", ".join(missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
    return [
        f"{len(missing):,} of {len(asked):,} problems have no response and count in no number: "
        f"{named}"
    ]


def _changed(reward: Mapping[str, Any], change: Mapping[str, Any]) -> Reward:
    """The reward with the fields that its kind has changed."""
    kind = change.get("kind", reward["kind"])
    fields = Reward.registry[kind].model_fields if kind in Reward.registry else change
    below = reward if kind == reward["kind"] else {}
    return Reward.build({**below, **{k: v for k, v in change.items() if k in ("kind", *fields)}})


def _grade(
    console: Console, reward: Reward, name: str, problems: Sequence[Problem], samples: Samples
) -> None:
    ids = {problem.id for problem in problems}
    total = sum(key[0] == name and key[1] in ids for key in samples.responses)
    done = 0
    with reward.open() as grader, Bar(console, f"grading {name}") as bar:
        bar.move(0, total)

        def told(grades: Mapping[Key, Graded]) -> None:
            nonlocal done
            done += len(grades)
            bar.move(done, total)

        grade_all(grader, problems, name, samples, block=256, progress=told)


def _show_changes(
    console: Console, directory: EvaluationDirectory, before: Mapping[Key, Graded]
) -> None:
    changed = [
        (key, old, directory.grades[key])
        for key, old in before.items()
        if key in directory.grades and directory.grades[key].correct != old.correct
    ]
    console.print(
        Text(f"{len(directory.grades):,} responses graded again, {len(changed):,} grades changed")
    )
    if not changed:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("benchmark", "problem", "sample", "answer", "was", "is", "reason"):
        table.add_column(title, overflow="fold")
    for (benchmark, problem, sample), old, new in changed[:SHOWN]:
        texts = (benchmark, problem, str(sample), (new.answer or "–")[:60])
        table.add_row(*map(Text, (*texts, _word(old.correct), _word(new.correct), new.reason[:60])))
    console.print(table)
    if len(changed) > SHOWN:
        console.print(Text(f"and {len(changed) - SHOWN:,} more", style="dim"))


def _word(correct: bool | None) -> str:
    return {True: "right", False: "wrong", None: "undecided"}[correct]


def _columns(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        part, equals, column = text.partition("=")
        if not equals or part not in PARTS:
            raise ConfigError(
                f"--column {text}: expected PART=COLUMN with one of {', '.join(PARTS)}, such as "
                "response=completion"
            )
        found[part] = column
    return found


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
