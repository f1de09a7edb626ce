r"""Load published benchmarks by name, from a folder of files or from the Hugging Face hub.

Surrounding blanks of questions are removed. Gold answers stay as published, without their
wrapping: `\boxed{204}` and `[204]` give `204`, `027` and 27.0 give `27`. Known problems of a
benchmark are in its notes.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic.dataclasses import dataclass

from rlobj.base.errors import DataError, nearest
from rlobj.base.yaml import packaged_table
from rlobj.data.files import letters_and_digits
from rlobj.data.hub import HubSource, published_rows
from rlobj.data.layouts import RowReader, Several
from rlobj.data.problems import Problem, UniqueProblems


@dataclass(frozen=True)
class Benchmark:
    """A published set of problems.

    Attributes:
        name: its name in `--on`.
        problems: number of problems.
        hub: its data set on the hub.
        several: the meaning of a list of answers.
        notes: known problems of its gold answers.
    """

    name: str
    problems: int
    hub: HubSource
    several: Several = "alternatives"
    notes: tuple[str, ...] = ()


class LoadedBenchmark(NamedTuple):
    """The problems of a benchmark.

    Attributes:
        problems: its problems. If several answers are right, the first is `answer`, and
            `extra["alternatives"]` lists all of them.
        source: the file, folder or hub id from which they were loaded.
        notes: messages for the user.
    """

    problems: list[Problem]
    source: str
    notes: tuple[str, ...]


def load_benchmark(
    name: str, *, data_dir: Path | None = None, limit: int | None = None
) -> LoadedBenchmark:
    """Load the unique problems of a benchmark.

    Args:
        name: one of `BENCHMARKS`.
        data_dir: a folder with `aime24.jsonl` (or .parquet, .json, .csv) or `AIME24/test.parquet`.
            Default: the folder RLOBJ_DATA_DIR, and then the hub.
        limit: use at most this many problems, from the first.

    Raises:
        DataError: no such benchmark, or it cannot be read; the message names the expected file.
        MissingExtra: there is no file, and `datasets` is not installed.
    """
    if name not in BENCHMARKS:
        raise DataError(f"unknown benchmark '{name}'.{nearest(name, BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    source, rows = published_rows(name, benchmark.hub, "test", fallback=True, data_dir=data_dir)
    reader, unique = RowReader(several=benchmark.several), UniqueProblems()
    for problem in reader.problems(rows):
        number = problem.id if reader.has_ids else str(len(unique.problems))
        changes = {"prompt": problem.prompt.strip(), "answer": _plain(problem.answer)}
        unique.add(replace(problem, id=_identifier(name, number), **changes))
    problems = unique.problems
    if not problems:
        raise DataError(f"{source}: no problem with an answer")
    notes = reader.notes(unique.repeated)
    if len(problems) != benchmark.problems:
        known = f"{name} has {benchmark.problems}: scores do not compare"
        notes.append(f"{source} has {len(problems)} problems; {known}")
    return LoadedBenchmark(problems[:limit], source, (*notes, *benchmark.notes))


def _identifier(name: str, published_id: str) -> str:
    """Return `aime24-7` for the ids 7 and AIME24-7; other ids do not change."""
    match = re.fullmatch(r"(.*?)-?(\d+)", published_id)
    if match and letters_and_digits(match[1]) in ("", letters_and_digits(name)):
        return f"{name}-{match[2]}"
    return published_id


def _plain(answer: str) -> str:
    """Remove the leading zeros of an integer."""
    return answer.lstrip("0") or "0" if re.fullmatch(r"0\d+", answer) else answer


BENCHMARKS = {
    name: Benchmark(name, **keys)
    for name, keys in packaged_table("rlobj.data", "benchmarks.yaml").items()
}
"""Name -> benchmark."""
_SIX = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(BENCHMARKS),
    "standard": _SIX,
    "stapo": _SIX,
    "aime": ("aime24", "aime25"),
}
"""Name of a group -> names of its benchmarks."""
