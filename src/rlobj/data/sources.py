"""Problems from a task, a named data set, a file, a folder or the Hugging Face hub.

names -> where they lie -> rows -> problems, each question once
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from rlobj.base.errors import DataError, nearest
from rlobj.base.validation import Model
from rlobj.data.benchmarks import BENCHMARKS, load_benchmark
from rlobj.data.catalogue import NAMED_SOURCES
from rlobj.data.files import SUFFIXES, Row, read_file, split_files
from rlobj.data.hub import hub_rows
from rlobj.data.layouts import Columns, Reader
from rlobj.data.problems import Distinct, Problem, digest
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE, placeholders
from rlobj.data.repeats import Repeats

__all__ = ["DataConfig", "default_template", "load_problems"]

logger = logging.getLogger(__name__)


def _tasks() -> dict[str, Any]:
    from rlobj.data.tasks import TASKS

    return TASKS


def default_template(source: str | None) -> str:
    """The template of a source where nobody says another."""
    if source in NAMED_SOURCES:
        return NAMED_SOURCES[source].template
    return PLAIN_TEMPLATE if source is None or source in _tasks() else MATH_TEMPLATE


class DataConfig(Model):
    """The source of the problems, and the text around a question.

    A source is, in this order: a built-in task; a named data set (dapo-math-17k, deepscaler, gsm8k,
    knights-and-knaves); a benchmark (aime24, ...), for testing only; a JSONL, JSON, Parquet, CSV or
    TSV file; a folder of such files; a data set on the Hugging Face hub (`owner/name`).
    """

    source: str | None = Field(default=None, description="training problems")
    name: str | None = Field(
        default=None, description="configuration of a hub data set, such as `main` of openai/gsm8k"
    )
    split: str = Field(
        default="train",
        description="training split of `source`: of a hub data set, a folder (by file name) or a "
        "task",
    )
    columns: Columns = Field(
        default=Columns(), description="column names of `source`, and of `test` if it has them"
    )
    template: str = Field(
        default=None,
        validate_default=True,
        description="text around the question: `{prompt}`, and other columns by name. Default: the "
        "question alone for a built-in task, the template of a named data set, else the question "
        "and the request to answer in `\\boxed{}`. If the questions contain instructions, use "
        '`"{prompt}"`',
    )
    test: str | None = Field(default=None, description="source of the test problems")
    test_template: str | None = Field(
        default=None,
        description="text around a test question. Default: the template of the `test` source if it "
        "is a task, a named data set or a benchmark, else `template`",
    )
    test_fraction: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="share of `source` that is held out for testing if `test` is not set. A hash "
        "of the question selects it, so that it does not depend on the order of the rows",
    )
    max_prompt_tokens: int | None = Field(
        default=None,
        ge=1,
        description="leave out problems with longer prompts; default: the model's context minus "
        "`sampling.max_tokens`",
    )
    limit: int | None = Field(
        default=None, ge=1, description="largest number of problems of each split, from the first"
    )

    @field_validator("template", mode="before")
    @classmethod
    def _default_template(cls, template: Any, info: Any) -> Any:
        return default_template(info.data.get("source")) if template is None else template

    @field_validator("template", "test_template")
    @classmethod
    def _template_has_a_place(cls, template: str | None) -> str | None:
        if template is not None and not placeholders(template):
            raise ValueError(f"the template {template!r} does not contain {{prompt}}, the question")
        return template

    @property
    def asked_in_tests(self) -> str:
        """The text around a test question."""
        if self.test_template is not None:
            return self.test_template
        published = self.test in NAMED_SOURCES or self.test in BENCHMARKS or self.test in _tasks()
        return default_template(self.test) if published else self.template


def load_problems(
    config: DataConfig,
    split: Literal["train", "test"],
    rows: Iterable[Mapping[str, Any]] | None = None,
) -> list[Problem]:
    """The problems of one split, without duplicates.

    `train` is `source`, less the share of `test_fraction`. `test` is the `test` source if given;
    else the share of `test_fraction`; else the part of `source` that calls itself test. Of problems
    with the same question the first is kept; rows without an answer are left out; both are logged.

    Args:
        config: the sources.
        split: which problems.
        rows: rows given in Python, which are read in place of the source's.

    Raises:
        DataError: nothing at the source, no such split, a column or a line that cannot be read, or
            no problem at all.
        MissingExtra: a hub source without the package `datasets`.
    """
    if config.source is None and (split == "train" or config.test is None):
        raise DataError(
            "data.source is not set. Set it to a JSONL, JSON, Parquet or CSV file, a folder, a hub "
            f"id (owner/name), a named data set ({', '.join(NAMED_SOURCES)}) or a built-in task "
            f"({', '.join(_tasks())})."
        )
    source, part, own = str(config.source), config.split, True
    held_out = None
    if split == "test" and config.test is not None:
        source, part = config.test, "test"
    elif config.test is None and config.test_fraction > 0:
        held_out = split == "test"
    elif split == "test":
        part, own = "test", False

    def wanted(problem: Problem) -> bool:
        share = _share(problem.prompt)
        return held_out is None or (share < config.test_fraction) == held_out

    checked = None if rows is None else _checked(rows)
    kept = _kept(source, part, config, wanted, fallback=own, rows=checked)
    if not kept:
        raise DataError(f"{source}: no problem with an answer in the {split} split.")
    logger.info("%s: %d %s problems", source, len(kept), split)
    return kept


def _checked(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number}: expected a mapping such as {{'problem': '2+2?', 'answer': '4'}}, "
                f"got {type(row).__name__}"
            )
        yield f"row {number}", dict(row)


def _share(prompt: str) -> float:
    """A number in [0, 1) that belongs to the question alone."""
    return int(digest(prompt)[:12], 16) / 16**12


def _kept(
    source: str,
    part: str,
    config: DataConfig,
    wanted: Callable[[Problem], bool],
    *,
    fallback: bool,
    rows: Iterator[Row] | None,
) -> list[Problem]:
    """The wanted problems of a source, each question once, `config.limit` of them at most."""
    columns, strict = _columns(source, config)
    repeats, distinct = Repeats(columns), Distinct()
    kept: list[Problem] = []
    if rows is not None:
        found: Iterable[Problem] = _problems(rows, columns, source, strict=strict)
    elif source in _tasks():
        found = _task(source, part)
    elif source in BENCHMARKS:
        found = _benchmark(source, part)
    else:
        rows = _rows(source, part, config, repeats, fallback=fallback)
        found = _problems(rows, columns, source, strict=strict)
    for problem in filter(wanted, found):
        new = distinct.add(problem)
        if new is not None:
            kept.append(new)
        if len(kept) == config.limit:
            break
    if repeated := distinct.repeated + repeats.dropped:
        logger.warning("%s: left out %d rows with repeated questions", source, repeated)
    if distinct.disagreeing:
        logger.warning(
            "%s: %d repeated questions have different answers; the first row was kept",
            source,
            distinct.disagreeing,
        )
    return kept


def _columns(source: str, config: DataConfig) -> tuple[Columns, bool]:
    """What the columns are called, and whether those that were named must be there."""
    own = source == config.source and config.columns != Columns()
    if source in NAMED_SOURCES and not own:
        return NAMED_SOURCES[source].columns, False
    return config.columns, own


def _task(source: str, part: str) -> list[Problem]:
    if part not in ("train", "test"):
        raise DataError(f"The task {source} has the splits train and test, not '{part}'.")
    return _tasks()[source].problems(part)


def _benchmark(source: str, part: str) -> list[Problem]:
    if part != "test":
        raise DataError(f"{source} is a benchmark, for testing only: set data.test={source}")
    loaded = load_benchmark(source)
    for note in loaded.notes:
        logger.info("%s: %s", source, note)
    return loaded.problems


def _rows(
    source: str, part: str, config: DataConfig, repeats: Repeats, *, fallback: bool
) -> Iterator[Row]:
    """Rows of a source as they come. `fallback`: a source that knows no such part gives all."""
    path = Path(source).expanduser()
    if source in NAMED_SOURCES:
        yield from NAMED_SOURCES[source].rows(part, repeats, fallback=fallback)
    elif path.is_dir():
        for file in split_files(path, part, fallback=fallback):
            yield from read_file(file, repeats)
    elif path.is_file():
        if not fallback:
            raise DataError(
                f"{source} is one file and has no test split. Set data.test=FILE, or hold out a "
                "share of it: data.test_fraction=0.1"
            )
        yield from read_file(path, repeats)
    elif path.suffix in SUFFIXES or not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise _nothing_there(source, path)
    else:
        name = config.name if source == config.source else None
        yield from hub_rows(source, name, part, fallback=fallback, repeats=repeats)


def _problems(
    rows: Iterator[Row], columns: Columns, source: str, *, strict: bool
) -> Iterator[Problem]:
    """Problems of rows; those without an answer are counted and left out."""
    reader: Reader | None = None
    unanswered = 0
    for where, row in rows:
        if reader is None:
            reader = Reader(columns, where, row, strict=strict)
        problem = reader.problem(where, row)
        if problem is None:
            unanswered += 1
        else:
            yield problem
    if unanswered:
        logger.warning("%s: left out %d rows without an answer", source, unanswered)


def _nothing_there(source: str, path: Path) -> DataError:
    names = [*_tasks(), *NAMED_SOURCES, *BENCHMARKS]
    if path.parent.is_dir():
        names += [
            str(path.parent / item.name)
            for item in path.parent.iterdir()
            if item.suffix in SUFFIXES or item.is_dir()
        ]
    return DataError(
        f"'{source}' is not a file, folder, named data set or built-in task, and a hub id has the "
        f"form owner/name.{nearest(source, names, spell_out=False)} Named data sets: "
        f"{', '.join(NAMED_SOURCES)}. Built-in tasks: {', '.join(_tasks())}."
    )
