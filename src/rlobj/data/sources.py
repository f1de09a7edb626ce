"""Load problems from a task, a named data set, a file, a folder or the Hugging Face hub.

name -> source -> rows -> problems -> problems with unique questions
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator
from pydantic.dataclasses import dataclass

from rlobj.base.errors import ConfigError, DataError, Setting, nearest, reported
from rlobj.base.paths import path_of
from rlobj.base.validation import InvalidFields, Model
from rlobj.base.yaml import packaged_table
from rlobj.data import prompts
from rlobj.data.benchmarks import BENCHMARKS, load_benchmark
from rlobj.data.files import SUFFIXES, read_file, split_files
from rlobj.data.gym import PREFIX, gym_problems, is_gym
from rlobj.data.hub import HubSource, hub_rows, no_test_split, published_rows
from rlobj.data.layouts import Columns, RowReader
from rlobj.data.problems import Problem, Row, UniqueProblems, digest
from rlobj.data.tasks import TASKS
from rlobj.data.verifiers import is_verifiers, load_environment, verifiers_problems

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedSource:
    """A published data set.

    Attributes:
        name: its name in `data.source`.
        hub: split (train, test) -> data set on the hub.
        template: the default of `data.template`; `{prompt}` if the questions contain instructions.
    """

    name: str
    hub: Mapping[str, HubSource]
    template: str = prompts.MATH_TEMPLATE


NAMED_SOURCES: dict[str, NamedSource] = {
    name: NamedSource(name, **keys)
    for name, keys in packaged_table("rlobj.data", "named_sources.yaml").items()
}
"""Name -> training set."""


def template_of(source: str, otherwise: str) -> str:
    """The template of a named data set, a benchmark, a dataset or a task; else the other one."""
    if source in NAMED_SOURCES:
        return NAMED_SOURCES[source].template
    if source in BENCHMARKS:
        return prompts.MATH_TEMPLATE
    if is_gym(source):
        return prompts.ANSWER_TEMPLATE
    return prompts.PLAIN_TEMPLATE if source in TASKS or is_verifiers(source) else otherwise


def _with_placeholder(template: str) -> str:
    if not prompts.placeholders(template):
        raise ConfigError(f"the template {template!r} does not contain {{prompt}}, the question")
    return template


Template = Annotated[str, AfterValidator(_with_placeholder)]


class Source(Model):
    """One of several sources; what it does not set is as in `data`."""

    source: Annotated[
        str, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)
    ]
    """training problems"""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """share of the prompts is this over the sum of all weights"""
    label: str = Field(default=None, validate_default=True, pattern=r"^[\w.+-]+$")
    """its name in metrics, sample tables and ids. Default: the last part of `source`"""
    name: str | None = None
    """configuration of a hub data set"""
    split: str | None = None
    """training split"""
    columns: Columns | None = None
    """column names"""
    gym: dict[str, Any] | None = None
    """settings of a reasoning-gym dataset"""
    template: Template | None = None
    """text around the question. Default: that of a task or a named data set, else
    `data.template`"""
    limit: int | None = Field(default=None, ge=1)
    """largest number of problems, from the first"""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {
            "anyOf": [{"type": "string"}, super().__get_pydantic_json_schema__(schema, handler)]
        }

    @field_validator("label", mode="before")
    @classmethod
    def _default_label(cls, label: Any, info: Any) -> Any:
        last = re.split("[/:]", info.data.get("source", "").rstrip("/"))[-1]
        stem = Path(last).stem if Path(last).suffix in SUFFIXES else last
        return re.sub(r"[^\w.+-]", "-", stem) or "source" if label is None else label


def source_names(source: Any) -> list[str]:
    """The names in `data.source`: of one source, of several, or of none."""
    if not isinstance(source, list | tuple):
        return [] if source is None else [str(source)]
    plain = [entry.get("source") if isinstance(entry, Mapping) else entry for entry in source]
    return [str(getattr(entry, "source", entry)) for entry in plain]


def _read_sources(value: Any) -> Any:
    """Read a list of names and mappings; any other value stays as it is."""
    if not isinstance(value, list | tuple):
        return value
    sources: dict[str, Source] = {}
    for i, entry in enumerate(value):
        try:
            source = Source(**(entry if isinstance(entry, Mapping) else {"source": entry}))
        except InvalidFields as error:
            raise InvalidFields([(f"{i}.{path}", text) for path, text in error.problems]) from None
        if source.label in sources:
            raise InvalidFields([(f"{i}.label", f"{source.label} is taken; each needs its own")])
        sources[source.label] = source
    if not sources:
        raise InvalidFields([("", "expected at least one source in the list")])
    return tuple(sources.values())


class DataConfig(Model):
    """The source of the problems, and the text around a question.

    A source is, in this order: a built-in task; a named data set (dapo-math-17k, deepscaler,
    gsm8k); a benchmark (aime24, ...), for testing only; a dataset of reasoning-gym
    (`reasoning-gym:countdown`); a JSONL, JSON, Parquet, CSV or TSV file; a folder of such files; a
    data set on the Hugging Face hub (`owner/name`).
    """

    source: Annotated[str | tuple[Source, ...] | None, BeforeValidator(_read_sources)] = None
    """training problems; or a list of several sources, such as `[{source: a.jsonl, weight: 2},
    b.jsonl]`"""
    name: str | None = None
    """configuration of a hub data set, such as `main` of openai/gsm8k"""
    split: str = "train"
    """training split of `source`: of a hub data set, a folder (by file name) or a task"""
    columns: Columns = Columns()
    """column names of `source`, and of `test` if it has them"""
    gym: dict[str, Any] = Field(default={})
    """settings of a reasoning-gym dataset: `size`, the number of problems of each split (1000),
    `seed` (0), and the dataset's own, such as `max_numbers`"""
    template: Template = Field(default=None, validate_default=True)
    """text around the question: `{prompt}`, and other columns by name. Default: the question alone
    for a built-in task, the template of a named data set, else the question and the request to
    answer in `\\boxed{}`. If the questions contain instructions, use `"{prompt}"`"""
    system: str | None = Field(default=None, min_length=1)
    """system message before each prompt, in training and evaluation; needs a chat template"""
    test: str | None = None
    """source of the test problems"""
    test_template: Template | None = None
    """text around a test question. Default: the template of the `test` source if it is a task, a
    named data set or a benchmark, else `template`"""
    test_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] | Literal["auto"] = "auto"
    """share of `source` that is held out for testing if `test` is not set. A hash of the question
    selects it, so that it does not depend on the order of the rows (auto: 5%, at most 256 problems,
    if a run that is evaluated has a model of its own and `source` no test part; else 0)"""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """leave out problems with longer prompts; never more than the model's context minus
    `sampling.max_tokens`, the default"""
    limit: int | None = Field(default=None, ge=1)
    """largest number of problems of each split, from the first"""

    @field_validator("template", mode="before")
    @classmethod
    def _default_template(cls, template: Any, info: Any) -> Any:
        if template is not None:
            return template
        source = info.data.get("source")
        if source is None:
            return prompts.PLAIN_TEMPLATE
        several = not isinstance(source, str)
        return prompts.MATH_TEMPLATE if several else template_of(source, prompts.MATH_TEMPLATE)

    @property
    def weights(self) -> dict[str, float]:
        """The weights of several sources, by label."""
        several = self.source if isinstance(self.source, tuple) else ()
        return {source.label: source.weight for source in several}

    @property
    def template_for_tests(self) -> str:
        """The template of the test problems."""
        return self.test_template or template_of(self.test or "", self.template)


def load_problems(
    config: DataConfig,
    split: Literal["train", "test"],
    rows: Iterable[Mapping[str, Any]] | None = None,
    *,
    answers: bool = True,
) -> list[Problem]:
    """Load the problems of one split, with unique questions in each source.

    `train` is `source` without the share `test_fraction`. `test` is the source `test` if it is set,
    else the share `test_fraction`, else the split `test` of `source`, if that is one source. Of
    rows with the same question, the first is kept. Rows without a question or an answer are left
    out. A warning has the number of rows that are left out for each reason. Of several sources, ids
    are LABEL/ID, and test problems are in the order of a hash, so that the first are of all.

    Args:
        config: the sources.
        split: train or test.
        rows: rows given in Python, which replace those of the source.
        answers: rows without an answer are left out; else their answer is "".

    Raises:
        DataError: the source or the split does not exist, a column or a line cannot be read, or
            there is no problem.
        MissingExtra: the source is on the hub, and the package `datasets` is not installed.
    """
    own_test = split == "test" and config.test is not None
    if isinstance(config.source, tuple) and not own_test:
        return _mixed(config, config.source, split, answers)
    if config.source is None and (split == "train" or config.test is None):
        raise DataError(f"data.source is not given. Expected {_EXPECTED}")
    source, part, fallback = str(config.source), config.split, True
    held_out = None
    if split == "test" and config.test is not None:
        source, part = config.test, "test"
    elif config.test is None and config.test_fraction not in ("auto", 0):
        held_out = split == "test"
    elif split == "test":
        part, fallback = "test", False
    strict = source == config.source
    reader, unique = RowReader(config.columns, strict=strict, answers=answers), UniqueProblems()
    if rows is not None:
        problems = reader.problems(_checked(rows))
    else:
        problems = _problems(source, part, config, reader, fallback=fallback)
    kept: list[Problem] = []
    for problem in problems:
        new = unique.add(problem)
        if new and (held_out is None or (place_of(new) < config.test_fraction) == held_out):
            kept.append(new)
        if len(kept) == config.limit:
            break
    for note in reader.notes(unique.repeated):
        logger.warning("%s: %s", source, note)
    if not kept:
        what = "a question and an answer" if answers else "a question"
        raise DataError(f"{source}: no problem with {what} in the {split} split")
    logger.info("%s: %d %s problems", source, len(kept), split)
    return kept


def is_here(source: Any) -> bool:
    """Whether no part of a source is fetched from the hub: tasks, files and folders."""
    return all(name in TASKS or path_of(name).exists() for name in source_names(source))


def check_columns(config: DataConfig, *, answers: bool = True) -> None:
    """Check the first problem of a local source: its columns, and what the template reads of it.

    Args:
        config: the source; several sources are not read.
        answers: as in `load_problems`.

    Raises:
        DataError: the file cannot be read, or lacks a column.
        ConfigError: the template reads another column.
    """
    source = config.source
    if isinstance(source, str) and source not in TASKS and path_of(source).exists():
        reader = RowReader(config.columns, answers=answers)
        for problem in _problems(source, config.split, config, reader, fallback=True):
            prompts.format_prompt(config.template, problem)
            return


def _mixed(
    config: DataConfig, sources: Sequence[Source], split: Literal["train", "test"], answers: bool
) -> list[Problem]:
    """The problems of several sources."""
    if split == "test" and config.test_fraction in ("auto", 0):
        raise no_test_split("several sources have no test split together")
    problems: list[Problem] = []
    options = set(config.keys())
    for source in sources:
        settings = {key: value for key, value in source if value is not None and key in options}
        data = config.model_copy(update=settings)
        with reported(DataError, f"the source {source.label}", DataError):
            part = load_problems(data, split, answers=answers)
        text = source.template or template_of(source.source, config.template)
        if split == "test" and config.test_template is not None:
            text = config.test_template
        shared = {"source": source.label, "template": text}
        problems += [
            replace(problem, id=f"{source.label}/{problem.id}", **shared) for problem in part
        ]
        prompts.format_prompt(text, problems[-1])
    if split == "test":
        problems.sort(key=lambda problem: digest(problem.prompt))
    return problems


def _checked(rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {number}: expected a mapping, got {type(row).__name__}")
        yield f"row {number}", dict(row)


def place_of(problem: Problem) -> Any:
    """A number in [0, 1) that depends on the question only."""
    return int(digest(problem.prompt)[:12], 16) / 16**12


def _problems(
    source: str, part: str, config: DataConfig, reader: RowReader, *, fallback: bool
) -> Iterable[Problem]:
    """The problems of a source; with `fallback`, all of a source without splits."""
    path = path_of(source)
    if (source in TASKS or is_gym(source)) and part not in ("train", "test"):
        raise DataError(f"{source} has the splits train and test, not '{part}'")
    if source in TASKS:
        return TASKS[source].problems(part)
    if source in BENCHMARKS:
        if part != "test":
            raise DataError(f"{source} is a benchmark: use ", Setting("data.test", source))
        loaded = load_benchmark(source)
        for note in loaded.notes:
            logger.info("%s: %s", source, note)
        return loaded.problems
    if is_gym(source):
        return gym_problems(source, part, config.gym)
    if is_verifiers(source):
        if not fallback:
            raise no_test_split(f"{source} has no test split")
        return verifiers_problems(load_environment(source))
    if source in NAMED_SOURCES:
        published = NAMED_SOURCES[source].hub.get(part)
        _, rows = published_rows(source, published, part, fallback=fallback)
    elif path.is_file() and not fallback:
        raise no_test_split(f"{source} is one file and has no test split")
    elif path.exists():
        files = split_files(path, part, fallback=fallback)
        rows = (row for file in files for row in read_file(file))
    else:
        require_source(source)
        name = config.name if source == config.source else None
        rows = hub_rows(source, name, part, fallback=fallback)
    return reader.problems(rows)


def require_source(source: str) -> None:
    """Check that a name can be a source, without loading it.

    Raises:
        ConfigError: it can be no path.
        DataError: it is neither known, nor there, nor of the form of a hub id.
    """
    path, names = path_of(source), [*TASKS, *NAMED_SOURCES, *BENCHMARKS]
    readable = source in names or is_gym(source) or is_verifiers(source) or path.exists()
    if readable or (path.suffix not in SUFFIXES and re.fullmatch(r"[\w.-]+/[\w.-]+", source)):
        return
    if path.suffix in SUFFIXES:
        files = [str(file) for file in path.parent.glob("*") if file.suffix in SUFFIXES]
        advice = nearest(str(path), files, spell_out=False)
        raise DataError(f"there is no file '{source}'.{advice}")
    what = f"'{source}' is no file and no other source.{nearest(source, names, spell_out=False)}"
    raise DataError(f"{what} Expected {_EXPECTED}")


_EXPECTED = (
    "a JSONL, JSON, Parquet or CSV file, a folder, a hub id (owner/name), "
    f"a dataset of reasoning-gym ({PREFIX}NAME), a named data set ({', '.join(NAMED_SOURCES)}), "
    f"a built-in task ({', '.join(TASKS)}), or for testing a benchmark ({', '.join(BENCHMARKS)})"
)
"""What a source can be."""
