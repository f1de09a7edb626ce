"""Grading without a model: stored responses again, or responses made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.data.benchmarks import load_benchmark
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.evaluating import AUTO
from rlobj.evaluation.identity import files_digest
from rlobj.evaluation.imported import read_responses
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.result import EvaluationResult, GradeChange
from rlobj.evaluation.samples import SETTINGS, Key, ResponseRecord, Samples
from rlobj.evaluation.sampling import grade_stored
from rlobj.installation import session
from rlobj.rewards import Reward

NAMED = 5
"""Problems without a response that a note names."""


def regrade(
    path: Path | str,
    *,
    reward: str | None = None,
    deadline: float | None = None,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Grade the stored responses of an evaluation again; its grades and results are replaced.

    The result's `changes` are the responses whose verdict changed.

    Args:
        path: folder of the evaluation.
        reward: "math" or "exact"; None = as before.
        deadline: seconds that one answer may take (math); None = as before.
        callback: receives the events.

    Raises:
        ConfigError: no evaluation there, or settings that the reward does not have.
    """
    callback, samples = callback or EvaluationCallback(), Samples.open(path)
    given = {"kind": reward, "deadline": deadline}
    change = {name: value for name, value in given.items() if value is not None}
    with samples.locked():
        settings, problems = samples.settings(), samples.problems()
        again = Samples()
        again.responses, home = samples.responses, Path.cwd()
        for name, own in settings["benchmarks"].items():
            changed = _changed(own["reward"], change)
            _grade(changed.seen_from(home), name, problems.get(name, []), again, callback)
            own["reward"] = changed.recorded()
        before = samples.grades
        samples.rewrite_grades(again.grades)
        settings.setdefault("sessions", []).append(session("regraded"))
        samples.write_settings(settings)
    changes = tuple(
        GradeChange(key, old, samples.grades[key])
        for key, old in before.items()
        if key in samples.grades and samples.grades[key].verdict != old.verdict
    )
    return publish(samples, callback, changes)


def score(
    files: Path | str | Sequence[Path | str],
    on: str | None = None,
    *,
    data_dir: Path | str | None = None,
    reward: str = "math",
    model: str | None = None,
    columns: Mapping[str, str] | None = None,
    out: Path | str | None = None,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Grade responses made elsewhere, with the same grader and statistics.

    Args:
        files: JSONL, JSON, Parquet, CSV or TSV.
        on: benchmark whose gold answers are used, found by id or question. None = those in the
            files.
        data_dir: folder with files of benchmarks.
        reward: "math" or "exact".
        model: whose responses they are, for the record.
        columns: part (id, prompt, answer or response) -> column, if its name is not that of the
            part.
        out: folder to make; "auto" = evals/scored-FILE; None = in memory.
        callback: receives the events.

    Raises:
        ConfigError: the folder holds an evaluation, or settings that are not possible.
        DataError: files that cannot be read.
    """
    callback = callback or EvaluationCallback()
    paths = [Path(file) for file in ([files] if isinstance(files, str | Path) else files)]
    name, known = on or paths[0].stem, None
    if on is not None:
        folder = None if data_dir is None else Path(data_dir)
        known = load_benchmark(on, data_dir=folder).problems
    problems, responses = read_responses(paths, name, known=known, columns=columns)
    notes = _unanswered(problems if known is None else known, responses)
    grader = Reward.build(reward)
    if out == AUTO:
        out = Path("evals") / f"scored-{paths[0].stem}"
    samples = Samples(out)
    if samples.path is not None and (samples.path / SETTINGS).exists():
        raise ConfigError(
            f"{out} already contains an evaluation. To finish or repeat its grading: "
            f"rlobj eval regrade {out}\n"
            "Otherwise choose another folder with out=DIR"
        )
    samples.require_free()
    callback.started(str(paths[0]))
    facts = {"problems": f"{len(problems):,}", "responses": f"{len(responses):,}"}
    callback.ready({**facts, **({} if out is None else {"folder": str(out)})})
    for note in notes:
        callback.noted(f"{name}: {note}", warning=True)
    settings = {
        "problems": len(problems),
        "samples": max(sample for _, _, sample in responses) + 1,
        "reward": grader.recorded(),
        "notes": notes,
    }
    hashes = {str(path): files_digest([path]) for path in paths}
    with samples.locked():
        samples.write_problems({name: problems})
        samples.add(responses)
        samples.write_settings(
            {
                "format": 1,
                "model": {"name": model or "made elsewhere"},
                "engine": {"name": "made elsewhere", "files": hashes},
                "benchmarks": {name: settings},
                "sessions": [session("started")],
            }
        )
        _grade(grader, name, problems, samples, callback)
    return publish(samples, callback)


def _unanswered(asked: Sequence[Problem], responses: Mapping[Key, ResponseRecord]) -> list[str]:
    """A note on problems without a response, if there are any."""
    answered = {problem for _, problem, _ in responses}
    missing = [problem.id for problem in asked if problem.id not in answered]
    named = ", ".join(missing[:NAMED]) + ", ..." * (len(missing) > NAMED)
    count = f"{len(missing):,} of {len(asked):,} problems"
    note = f"{count} have no response and count in no number: {named}"
    return [note] if missing else []


def _changed(reward: Mapping[str, Any], change: Mapping[str, Any]) -> Reward:
    """The reward with those changes that its kind has."""
    kind = change.get("kind", reward["kind"])
    fields = Reward.registry[kind].model_fields if kind in Reward.registry else change
    below = reward if kind == reward["kind"] else {}
    return Reward.build({**below, **{k: v for k, v in change.items() if k in ("kind", *fields)}})


def _grade(
    reward: Reward,
    name: str,
    problems: Sequence[Problem],
    samples: Samples,
    callback: EvaluationCallback,
) -> None:
    by_id = {problem.id: problem for problem in problems}
    total = sum(key[0] == name and key[1] in by_id for key in samples.responses)
    with reward.open() as grader:
        grade_stored(grader, by_id, name, samples, total, 256, callback)
