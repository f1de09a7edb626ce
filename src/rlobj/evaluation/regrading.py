"""Grading without a model: stored responses again, or responses made elsewhere.

Responses made elsewhere: what a row holds, and to which problem it belongs.

A row has columns for the problem's id or question, its gold answer and the responses: `id`,
`prompt`, `answer` and `response`, or others that are named; a dot reaches into a nested column.
Rows of the same problem are its samples, in the order of the files. Nothing is guessed: a row that
may belong to two problems is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, DataError, nearest
from rlobj.base.files import files_digest
from rlobj.data import Problem
from rlobj.data.benchmarks import load_benchmark
from rlobj.data.files import read_file
from rlobj.data.layouts import answer_text, column_names, prompt_text, value_of
from rlobj.data.problems import decoded, digest
from rlobj.evaluation.evaluating import AUTO, blocks_of, grade_stored, open_keys
from rlobj.evaluation.result import EvaluationCallback, EvaluationResult, GradeChange, publish
from rlobj.evaluation.samples import FORMAT, SETTINGS, Key, ResponseRecord, Samples
from rlobj.installation import session
from rlobj.rewards import Reward

PARTS = ("id", "prompt", "answer", "response")
"""The parts of a row: each is in the column of its name, or in one that is named for it."""


@dataclass
class _Row:
    """A row: its place for errors, its columns, and those named for its parts."""

    where: str
    columns: Mapping[str, Any]
    named: Mapping[str, str]

    def _value(self, part: str) -> Any:
        """The value of a part; None if there is none."""
        named = self.named.get(part)
        found = value_of(self.columns, named or part)
        if named and found is None:
            advice = nearest(named, column_names(self.columns))
            raise DataError(f"{self.where}: there is no column '{named}'.{advice}")
        return found

    @cached_property
    def id(self) -> str | None:
        """The id of the problem."""
        found = self._value("id")
        return None if found is None else str(decoded(found, f"{self.where}, the id"))

    @cached_property
    def prompt(self) -> str:
        """The question, perhaps inside a template; "" if it is not there."""
        return prompt_text(self._value("prompt"), self.where)

    def answers(self) -> list[str]:
        """The gold answers, each of them right."""
        value, where = self._value("answer"), f"{self.where}, the answer"
        texts = (answer_text(each, where) for each in (value if _all(str, value) else [value]))
        return list(dict.fromkeys(filter(None, texts)))

    def responses(self) -> list[str]:
        """The responses; several in a list, or in the list of lists of lm-eval."""
        found = self._value("response")
        if found is None:
            names = ", ".join(column_names(self.columns))
            raise DataError(
                f"{self.where}: no response. Looked for response; the columns are {names}. Name it "
                'with columns={"response": "COLUMN"}.'
            )
        if self.named.get("response") == "resps" and _all(list, found):
            found = [text for each in found for text in each]
        texts = found if isinstance(found, list) and not _all(dict, found) else [found]
        return [_text(text, self.where) for text in texts]


def read_responses(
    files: Sequence[Path],
    benchmark: str,
    *,
    known: Sequence[Problem] | None = None,
    columns: Mapping[str, str] | None = None,
) -> tuple[list[Problem], dict[Key, ResponseRecord]]:
    """Problems and responses of files.

    Args:
        files: JSONL, JSON, Parquet, CSV or TSV.
        benchmark: the name of their problems together.
        known: the benchmark's problems, whose gold answers are used; a row belongs to the one with
            its id, else to the one whose question its prompt ends with, in any template. None = the
            files' own.
        columns: part (one of `PARTS`) -> column, if its name is not that of the part.

    Returns:
        The problems that have a row, and the responses. A row may hold no response.

    Raises:
        ConfigError: a column for another part.
        DataError: no response, no gold answer, a part that cannot be read, or a row that belongs to
            no problem or may belong to several.
    """
    columns = columns or {}
    for part, column in columns.items():
        if part not in PARTS or not column:
            raise ConfigError(
                f'columns={{"{part}": "{column}"}}: expected PART=COLUMN with one of '
                f"{', '.join(PARTS)}, such as response=completion"
            )
    problems: dict[str, Problem] = {}
    responses: dict[Key, ResponseRecord] = {}
    counts: Counter[str] = Counter()
    find = None if known is None else _finder(known)
    for row in (row for file in files for row in _rows(file, columns)):
        own = row.responses()
        problem = find(row) if find else _own(row, problems)
        problems[problem.id] = problem
        for text in own:
            sample = counts[problem.id]
            counts[problem.id] += 1
            responses[benchmark, problem.id, sample] = ResponseRecord(sample, 0, text, None, None)
    if not responses:
        raise DataError(f"{', '.join(map(str, files))}: no response in it.")
    return list(problems.values()), responses


def _rows(file: Path, columns: Mapping[str, str]) -> Iterator[_Row]:
    """The rows of a file. lm-eval writes a row for each filter; those of the first are taken."""
    first: dict[str, Any] = {}
    for where, row in read_file(file):
        if row.get("filter") == first.setdefault("filter", row.get("filter")):
            yield _Row(where, row, columns)


def _own(row: _Row, problems: Mapping[str, Problem]) -> Problem:
    """The problem that a row itself describes."""
    answers, prompt, name = row.answers(), row.prompt, row.id
    if not answers:
        raise DataError(
            f"{row.where}: no gold answer. Name its column with "
            'columns={"answer": "COLUMN"}, or the benchmark with on=NAME.'
        )
    if name is None and not prompt.strip():
        raise DataError(
            f"{row.where}: neither an id nor a question says which problem it belongs to. Name a "
            'column: columns={"id": "COLUMN"} or columns={"prompt": "COLUMN"}.'
        )
    extra = {"alternatives": answers} if len(answers) > 1 else {}
    own = Problem(name or digest(prompt)[:16], prompt, answers[0], extra)
    there = problems.get(own.id, own)
    for what, here, before in (
        ("gold answer", " or ".join(own.golds), " or ".join(there.golds)),
        ("question", _squeezed(own.prompt)[:80], _squeezed(there.prompt)[:80]),
    ):
        if here and before and here != before:
            raise DataError(
                f"{row.where}: problem '{own.id}' has the {what} {here!r} here and {before!r} "
                'before. Name the column that identifies problems: columns={"id": "COLUMN"}.'
            )
    return there


def _finder(known: Sequence[Problem]) -> Callable[[_Row], Problem]:
    """A function from a row to its problem among those of a benchmark."""
    by_id = {problem.id: problem for problem in known}
    by_question: dict[str, list[Problem]] = {}
    for problem in known:
        by_question.setdefault(_squeezed(problem.prompt), []).append(problem)
    by_question.pop("", None)

    def find(row: _Row) -> Problem:
        name, prompt = row.id, _squeezed(row.prompt)
        # Few-shot examples come before the question. Of two questions that end at the same
        # position, one is a part of the other; the longer one is taken.
        ends = {each: prompt.rfind(each) + len(each) for each in by_question if each in prompt}
        last = max(ends, key=lambda question: (ends[question], len(question)), default="")
        asked = by_question.get(last, [])
        if named := by_id.get(name or ""):
            if prompt and named.prompt.strip() and named not in asked:
                other = f"asks '{asked[0].id}'" if asked else "does not hold its question"
                raise DataError(
                    f"{row.where}: the id is that of problem '{named.id}', and the prompt {other}. "
                    'Name the right columns: columns={"id": "COLUMN"} or '
                    'columns={"prompt": "COLUMN"}.'
                )
            return named
        if not asked:
            raise DataError(
                f"{row.where}: neither its id {name!r} nor its question is one of the "
                f"{len(known)} problems of the benchmark."
            )
        if len(asked) > 1:
            names = ", ".join(problem.id for problem in asked)
            raise DataError(
                f"{row.where}: its question is that of {names}. Name a column with their ids: "
                'columns={"id": "COLUMN"}.'
            )
        return asked[0]

    return find


def _text(value: Any, where: str) -> str:
    """A text, or the last message of a chat, by the assistant."""
    value = decoded(value, where)
    if isinstance(value, str):
        return value
    last = value[-1] if _all(dict, value) else value
    message = last if isinstance(last, dict) else {}
    if message.get("role") == "assistant" and isinstance(message.get("content"), str):
        return message["content"]
    raise DataError(
        f"{where}: expected the response as text, as a chat [{{role, content}}, ...] with an "
        f"answer of the assistant at its end, or as a list of such; found {str(value)[:80]!r}. "
        "Only generated text can be graded, log-likelihoods cannot. Another column: "
        'columns={"response": "COLUMN"}.'
    )


def _all(kind: type, value: Any) -> bool:
    """Whether a value is a list with items of one kind."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, kind) for x in value)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


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
    Samples.open(path)  # an error, before the folder is locked
    callback, samples = callback or EvaluationCallback(), Samples(path)
    given = {"kind": reward, "deadline": deadline}
    change = {name: value for name, value in given.items() if value is not None}
    with samples.locked():
        samples.read(repair=True)  # files of killed processes would bring old grades back
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
                "format": FORMAT,
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
        for keys in blocks_of(open_keys(samples, name, problems, 0), 256):
            grade_stored(grader, by_id, name, samples, total, callback, keys)
