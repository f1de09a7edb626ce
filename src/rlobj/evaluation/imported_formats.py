"""One row of a file made elsewhere: what it tells of its problem, and what the model wrote.

| made by | known by | responses | gold answer |
|---|---|---|---|
| lm-eval | `doc`, `resps` | all of `resps` | an answer column of `doc`, else `target` |
| lighteval | `__doc__`, `__model_response__` | `text` | `choices[gold_index]` |
| anything else | a column of `RESPONSE` | text, a chat, or a list of them | a column of `GOLD` |

lm-eval writes each document once for every filter: the rows of the first filter are read. A doc
with choices names the right one by letter or place, so `target` is taken there. To add a maker:
a reader `_Row -> Written`, and its marks in `read_rows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rlobj.base.errors import DataError, nearest
from rlobj.data.files import read_file
from rlobj.data.layouts import KNOWN, answer_text, prompt_text

__all__ = ["PARTS", "Written", "read_rows", "task_of"]

RESPONSE = (
    *("response", "responses", "completion", "completions", "generation", "generations"),
    *("output", "outputs", "generated_text", "model_output", "prediction"),
)
"""Columns that may hold what the model wrote, first found wins."""
IDENTITY = (*KNOWN["id"], "problem_id", "example_id", "doc_id", "index", "idx")
NUMBERS = ("extra_info.index", "index", "idx")
"""Those of them that may count rows, not problems."""
WORKED = "solution"
"""An answer column that often holds the way to the answer too: read where there is no other."""
GOLD = ("gold", "gold_answer", "target", *(name for name in KNOWN["answer"] if name != WORKED))
LENGTH = ("tokens", "num_tokens", "response_tokens", "completion_tokens")
FINISH = ("finish", "finish_reason", "stop_reason")
PARTS = ("id", "prompt", "answer", "response")
"""What a column can be named for."""
_ABSENT = object()


@dataclass(frozen=True)
class Written:
    """A problem as far as a row tells it, and what the model wrote."""

    where: str
    """Names the row in errors."""
    id: str | None
    prompt: str
    answers: tuple[str, ...]
    """Each of them is right; empty where none is told."""
    texts: list[str]
    tokens: list[int | None]
    """Of each text."""
    finish: list[Literal["stop", "length"] | None]
    """Of each text."""
    seed: int = 0
    task: str | None = None
    """Where the id is counted from 0 in each task: the task."""
    numbered: bool = False
    """Whether the id may be the number of the row, not of the problem."""


@dataclass(frozen=True)
class _Row:
    """A row, from the outermost object inwards, and the columns that the user named."""

    file: Path
    where: str
    layers: tuple[Mapping[str, Any], ...]
    columns: Mapping[str, str]

    def part(self, name: str, usual: Callable[[], Any]) -> Any:
        """The column named for a part, else what is usual.

        Raises:
            DataError: there is no such column.
        """
        chosen = self.columns.get(name)
        if chosen is None:
            return usual()
        for layer in self.layers:
            value = _reach(layer, chosen)
            if value is not _ABSENT:
                return value
        there = [key for layer in self.layers for key in layer]
        raise DataError(f"{self.where}: there is no column '{chosen}'.{nearest(chosen, there)}")

    def id(self, usual: Callable[[], Any]) -> str | None:
        name = self.part("id", usual)
        return None if name in (None, "") else str(name)

    def prompt(self, usual: Callable[[], Any]) -> str:
        return prompt_text(self.part("prompt", usual), self.where)

    def answers(self, usual: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        if "answer" not in self.columns:
            return usual()
        return _answers(self.part("answer", usual), self.where)

    def texts(self, usual: Callable[[], Any]) -> list[str]:
        return _texts(self.part("response", usual), self.where)


def read_rows(file: Path, columns: Mapping[str, str], *, golds: bool) -> Iterator[Written]:
    """Rows of a file.

    Args:
        file: JSONL, JSON, Parquet, CSV or TSV.
        columns: part (one of `PARTS`) -> column, where it is not found by itself.
        golds: whether gold answers are read; without, `answers` is empty.

    Raises:
        DataError: a part in a shape that has no reading, several gold answers that differ, or no
            such column.
    """
    first: dict[str, Any] = {}
    for where, row in read_file(file):
        document, made = row.get("__doc__"), row.get("__model_response__")
        if "doc" in row and "resps" in row:
            if first.setdefault("filter", row.get("filter")) == row.get("filter"):
                document = row["doc"] if isinstance(row["doc"], dict) else {}
                yield _lm_eval(_Row(file, where, (row, document), columns), golds)
        elif isinstance(document, dict) and isinstance(made, dict):
            yield _lighteval(_Row(file, where, (row, document, made), columns), golds)
        else:
            yield _plain(_Row(file, where, (row,), columns), golds)


def task_of(file: Path) -> str:
    """The task in the name of an lm-eval or lighteval file, else the file's own name."""
    match = re.fullmatch(r"(?:samples|details)_(.+?)_\d{4}-\d\d-\d\dT[\d.-]+", file.stem)
    return match[1] if match else file.stem


def _lm_eval(source: _Row, golds: bool) -> Written:
    row, document = source.layers

    def answers() -> tuple[str, ...]:
        if not _value(document, ("choices", "options")):
            for _, own in _golds(document, source.where):
                return own
        return _answers(row.get("target"), f"{source.where}, column 'target'")

    def asked() -> Any:
        found = _value(document, KNOWN["prompt"])
        return _first_text(row.get("arguments")) if found is None else found

    name = source.id(lambda: row.get("doc_id"))
    texts = source.texts(lambda: list(chain.from_iterable(map(_listed, _listed(row["resps"])))))
    return Written(
        source.where,
        name,
        source.prompt(asked),
        source.answers(answers) if golds else (),
        texts,
        [None] * len(texts),
        [None] * len(texts),
        task=None if name is None or "id" in source.columns else task_of(source.file),
    )


def _lighteval(source: _Row, golds: bool) -> Written:
    _, document, made = source.layers

    def answers() -> tuple[str, ...]:
        choices, found = document.get("choices") or [], []
        for index in _listed(document.get("gold_index")):
            if not isinstance(index, int) or not 0 <= index < len(choices):
                raise DataError(
                    f"{source.where}: gold_index is {index!r}, with {len(choices)} choices."
                )
            found.append(answer_text(choices[index], source.where))
        return tuple(dict.fromkeys(filter(None, found)))

    def written() -> Any:
        if not made.get("text") and made.get("logprobs"):
            raise _no_text(made["logprobs"], source.where)
        return _listed(made.get("text"))

    name = source.id(lambda: document.get("id"))
    texts = source.texts(written)
    ids = _each(made.get("output_tokens"), len(texts))
    task = document.get("task_name") or task_of(source.file)
    return Written(
        source.where,
        name,
        source.prompt(lambda: document.get("query")),
        source.answers(answers) if golds else (),
        texts,
        [len(those) if isinstance(those, list) else None for those in ids],
        [None] * len(texts),
        task=None if name is None or "id" in source.columns else str(task),
    )


def _plain(source: _Row, golds: bool) -> Written:
    [row] = source.layers

    def written() -> Any:
        found = _value(row, RESPONSE)
        if found is None:
            raise DataError(
                f"{source.where}: no response. Looked for {', '.join(RESPONSE)}; the columns are "
                f"{', '.join(row)}. Name it with --column response=COLUMN."
            )
        return found

    def answers() -> tuple[str, ...]:
        found = dict(_golds(row, source.where))
        if len(set(found.values())) > 1:
            told = ", ".join(f"{name}: {' or '.join(own)[:40]}" for name, own in found.items())
            raise DataError(
                f"{source.where}: which column is the gold answer ({told})? Name it with "
                "--column answer=COLUMN."
            )
        return next(iter(found.values()), ())

    identity = _found(row, IDENTITY)
    texts = source.texts(written)
    seed = row.get("seed")
    return Written(
        source.where,
        source.id(lambda: identity[1]),
        source.prompt(lambda: _value(row, KNOWN["prompt"])),
        source.answers(answers) if golds else (),
        texts,
        [n if isinstance(n, int) else None for n in _each(_value(row, LENGTH), len(texts))],
        [
            end if end in ("stop", "length") else None
            for end in _each(_value(row, FINISH), len(texts))
        ],
        seed=seed if isinstance(seed, int) else 0,
        numbered="id" not in source.columns and identity[0] in NUMBERS,
    )


# Values.


def _golds(row: Mapping[str, Any], where: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each answer column that has an answer, with its answers."""
    found = False
    for name in (*GOLD, WORKED):
        if name == WORKED and found:
            return
        answers = _answers(_value(row, (name,)), f"{where}, column '{name}'")
        if answers:
            found = True
            yield name, answers


def _answers(value: Any, where: str) -> tuple[str, ...]:
    """Of a list of texts each is right."""
    several = isinstance(value, list) and all(isinstance(item, str) for item in value)
    texts = [answer_text(item, where) for item in (value if several else [value])]
    return tuple(dict.fromkeys(filter(None, texts)))


def _texts(value: Any, where: str) -> list[str]:
    """What the model wrote: a text, a chat, or a list of them."""
    several = isinstance(value, list) and not _is_chat(value)
    return [_text(item, where) for item in (value if several else [value])]


def _text(value: Any, where: str) -> str:
    """A text, or the last message of the assistant in a chat."""
    if isinstance(value, str):
        return value
    chat = [value] if isinstance(value, dict) else value
    if not _is_chat(chat):
        raise _no_text(value, where)
    own = [message["content"] for message in chat if message["role"] == "assistant"]
    if not own or not isinstance(own[-1], str) or len(own) == len(chat) > 1:
        raise _no_text(value, where)
    return own[-1]


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and {"role", "content"} <= item.keys() for item in value)
    )


def _no_text(value: Any, where: str) -> DataError:
    return DataError(
        f"{where}: expected the response as text, as a chat [{{role, content}}, ...] with one "
        f"answer of the assistant at its end, or as a list of such; found {str(value)[:80]!r}. "
        "Only generated text can be graded, log-likelihoods cannot. Another column: --column "
        "response=COLUMN."
    )


def _first_text(value: Any) -> str | None:
    """The first text in nested lists and objects: of lm-eval's `arguments`, the prompt."""
    while isinstance(value, list | dict) and value:
        value = next(iter(value.values() if isinstance(value, dict) else value))
    return value if isinstance(value, str) else None


def _each(value: Any, count: int) -> list[Any]:
    """A value for each of several texts: None where it is told for all of them together."""
    if isinstance(value, list) and len(value) == count:
        return value
    return [value] if count == 1 else [None] * count


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _reach(row: Any, name: str) -> Any:
    """A column by its exact name, a dot reaching into a nested one; `_ABSENT` where none is."""
    if not isinstance(row, Mapping):
        return _ABSENT
    head, _, rest = name.partition(".")
    if name in row or not rest:
        return row.get(name, _ABSENT)
    return _reach(row.get(head), rest)


def _found(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str | None, Any]:
    """The first of the columns that the row has, in any case, and its value."""
    lowered = {key.lower(): value for key, value in row.items()}
    for name in names:
        value = _reach(lowered, name)
        if value is not None and value is not _ABSENT:
            return name, value
    return None, None


def _value(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return _found(row, names)[1]
