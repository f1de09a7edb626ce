"""Problems from a file, a folder, a built-in task or the Hugging Face hub."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator

from rlobj.data.columns import Columns, Reader
from rlobj.data.files import SUFFIXES, Row, arrow_rows, read_file, split_files
from rlobj.data.problems import Problem, digest
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE, placeholders
from rlobj.errors import DataError, MissingExtra, nearest
from rlobj.validation import Model

__all__ = ["DataConfig", "hub_rows", "load_problems"]

logger = logging.getLogger(__name__)


def _tasks() -> dict[str, Any]:
    from rlobj.data.tasks import TASKS

    return TASKS


class DataConfig(Model):
    """Where the problems come from and how they are put to the model.

    A source is the name of a built-in task, a JSONL, JSON, Parquet, CSV or TSV file, a folder of
    such files, or a data set on the Hugging Face hub (`owner/name`); in this order.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    source: str | None = None
    """Training problems."""
    name: str | None = None
    """Configuration of a hub data set, such as `main` of openai/gsm8k."""
    split: str = "train"
    """Split of `source` to train on: of a hub data set, a folder (by file name) or a task."""
    columns: Columns = Columns()
    """Column names of `source`; of `test` too, where it has them."""
    template: str = Field(default=None, validate_default=True)
    """Text around the question: `{prompt}`, and other columns by name. Default: the question alone
    for a built-in task, else the question and the request to answer in `\\boxed{}`. Data sets whose
    questions already carry their instructions, DAPO-Math-17k for one, want `"{prompt}"`."""
    test: str | None = None
    """Source of the test problems."""
    test_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of `source` kept out of training and tested on, where `test` is not given. Chosen by a
    hash of the question, so it does not depend on the order of the rows."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Leave out problems whose prompt is longer; default: what the model's context leaves beside
    `sampling.max_tokens`."""
    limit: int | None = Field(default=None, ge=1)
    """Use at most this many problems of each split: the first of the file."""

    @field_validator("template", mode="before")
    @classmethod
    def _default_template(cls, template: Any, info: Any) -> Any:
        if template is not None:
            return template
        source = info.data.get("source")
        return PLAIN_TEMPLATE if source is None or source in _tasks() else MATH_TEMPLATE

    @field_validator("template")
    @classmethod
    def _template_has_a_place(cls, template: str) -> str:
        if not placeholders(template):
            raise ValueError(f"the template {template!r} has no place for the question: {{prompt}}")
        return template


def load_problems(config: DataConfig, split: Literal["train", "test"]) -> list[Problem]:
    """The problems of one split, without duplicates.

    `train` is `source`, less the share of `test_fraction`. `test` is the `test` source if given;
    else the share of `test_fraction`; else the part of `source` that calls itself test. Of problems
    with the same question the first is kept; rows without an answer are left out; both are logged.

    Raises:
        DataError: nothing at the source, no such split, a column or a line that cannot be read, or
            no problem at all.
        MissingExtra: a hub source without the package `datasets`.
    """
    if config.source is None and (split == "train" or config.test is None):
        raise DataError(
            "data.source is not set. Give a JSONL, JSON, Parquet or CSV file, a folder, a hub id "
            f"(owner/name) or a built-in task: {', '.join(sorted(_tasks()))}."
        )
    source, part, own = str(config.source), config.split, True
    held_out = None
    if split == "test" and config.test is not None:
        source, part = config.test, "test"
    elif config.test is None and config.test_fraction > 0:
        held_out = split == "test"
    elif split == "test":
        part, own = "test", False
    problems = _read(source, part, config, fallback=own)
    if held_out is not None:
        cut = config.test_fraction
        problems = (item for item in problems if (_share(item.prompt) < cut) == held_out)
    kept = list(_unique(problems, source, config.limit))
    if not kept:
        raise DataError(f"{source}: no problem with an answer in its {split} part.")
    logger.info("%s: %d %s problems", source, len(kept), split)
    return kept


def _share(prompt: str) -> float:
    """A number in [0, 1) that belongs to the question alone."""
    return int(digest(prompt)[:12], 16) / 16**12


def _unique(problems: Iterable[Problem], source: str, limit: int | None) -> Iterator[Problem]:
    """Problems with a new question, at most `limit`, ids made unique."""
    answers: dict[str, str] = {}
    ids: set[str] = set()
    repeated = disagreeing = 0
    for problem in problems:
        if problem.prompt in answers:
            repeated += 1
            disagreeing += answers[problem.prompt] != problem.answer
            continue
        if len(answers) == limit:
            break
        answers[problem.prompt] = problem.answer
        if problem.id in ids:
            name = f"{problem.id}-{digest(problem.prompt)[:16]}"
            problem = Problem(name, problem.prompt, problem.answer, problem.extra)
        ids.add(problem.id)
        yield problem
    if repeated:
        logger.info("%s: dropped %d rows that repeat a question", source, repeated)
    if disagreeing:
        logger.warning(
            "%s: %d of the repeated questions come with another answer; the first was kept",
            source,
            disagreeing,
        )


def _read(source: str, part: str, config: DataConfig, *, fallback: bool) -> Iterator[Problem]:
    """Problems of a source as they come. `fallback`: a source that knows no such part gives all."""
    if source in _tasks():
        if part not in ("train", "test"):
            raise DataError(f"The task {source} has the splits train and test, not '{part}'.")
        yield from _tasks()[source].problems(part)
        return
    path = Path(source).expanduser()
    if path.is_dir():
        for file in split_files(path, part, fallback=fallback):
            yield from _problems(read_file(file), config, source)
        return
    if path.is_file():
        if not fallback:
            raise DataError(
                f"{source} is one file and has no test part. Set data.test=FILE, or keep a share "
                "of it out of training: data.test_fraction=0.1"
            )
        rows = read_file(path)
    elif path.suffix in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise _nothing_there(source, path)
    else:
        name = config.name if source == config.source else None
        rows = hub_rows(source, name, part, fallback=fallback)
    yield from _problems(rows, config, source)


def _problems(rows: Iterator[Row], config: DataConfig, source: str) -> Iterator[Problem]:
    """Problems of rows that share their columns; rows without an answer are counted and skipped."""
    reader: Reader | None = None
    unanswered = 0
    for where, row in rows:
        if reader is None:
            reader = Reader(config.columns, where, row, strict=source == config.source)
        problem = reader.problem(where, row)
        if problem is None:
            unanswered += 1
        else:
            yield problem
    if unanswered:
        logger.warning("%s: left out %d rows without an answer", source, unanswered)


def _nothing_there(source: str, path: Path) -> DataError:
    names = list(_tasks())
    if path.parent.is_dir():
        names += [
            str(path.parent / item.name)
            for item in path.parent.iterdir()
            if item.suffix in SUFFIXES or item.is_dir()
        ]
    return DataError(
        f"There is no file, folder or built-in task '{source}', and a hub id reads owner/name."
        f"{nearest(source, names, spell_out=False)} Built-in tasks: {', '.join(_tasks())}."
    )


def hub_rows(identifier: str, name: str | None, split: str, *, fallback: bool) -> Iterator[Row]:
    """Rows of one split of a data set on the Hugging Face hub, or of a local copy of one.

    With `fallback`, a data set that has a single split gives it, whatever its name.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: the data set cannot be had, or has no such split.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hub", f"Loading '{identifier}' from the hub") from None
    try:
        parts: Any = datasets.load_dataset(identifier, name)
    except Exception as error:
        stem = identifier.rpartition("/")[2]
        raise DataError(
            f"Could not load '{identifier}' from the Hugging Face hub: "
            f"{type(error).__name__}: {error}\nWithout the hub, give a local copy: the folder of "
            f"the data set, or a file such as {stem}.jsonl, {stem}.parquet or {stem}.csv with the "
            "columns problem and answer."
        ) from error
    if split not in parts:
        if not (fallback and len(parts) == 1):
            raise DataError(
                f"'{identifier}' has no split '{split}'. It has: {', '.join(parts)}. Set "
                "data.split, data.test or data.test_fraction accordingly."
            )
        (split,) = parts
    tables = parts[split].with_format("arrow").iter(batch_size=1024)
    yield from arrow_rows(f"{identifier}[{split}]", tables)
