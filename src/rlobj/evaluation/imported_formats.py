"""One row of a file made elsewhere: what it says of its problem, and the responses in it.

| made by | known by | responses | gold answer |
|---|---|---|---|
| lm-eval | `doc`, `resps` | all of `resps` | an answer column of `doc`, else `target` |
| lighteval | `__doc__`, `__model_response__` | `text` | `choices[gold_index]` |
| anything else | a column of `RESPONSE` | text, a chat, or a list of them | a column of `GOLD` |

lm-eval writes each document once for every filter: the rows of the first filter are read. A doc
with choices names the right one by letter or index, so `target` is taken there. To add a maker:
write a function `(row, where, file) -> _Source`, and call it in `read_rows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rlobj.base.errors import DataError, nearest
from rlobj.data.files import read_file
from rlobj.data.layouts import KNOWN, answer_text, prompt_text

__all__ = ["PARTS", "ImportedRow", "read_rows", "task_of"]

PARTS = ("id", "prompt", "answer", "response")
"""What a column can be named for."""
RESPONSE = (
    *("response", "responses", "completion", "completions", "generation", "generations"),
    *("output", "outputs", "generated_text", "model_output", "prediction"),
)
"""Columns that may hold responses; the first one found is taken."""
ROW_NUMBERS = ("extra_info.index", "index", "idx")
"""Ids that may count rows and not problems: taken only if the row has no question."""
IDS = (*(n for n in KNOWN["id"] if n not in ROW_NUMBERS), "problem_id", "example_id", "doc_id")
WORKED = "solution"
"""An answer column that often holds the derivation too: read if there is no other."""
GOLD = ("gold", "gold_answer", "target", *(name for name in KNOWN["answer"] if name != WORKED))
LENGTH = ("tokens", "num_tokens", "response_tokens", "completion_tokens")
FINISH = ("finish", "finish_reason", "stop_reason")
_ABSENT = object()


@dataclass(frozen=True)
class ImportedRow:
    """A problem as far as a row describes it, and responses to it.

    Attributes:
        where: names the row in errors.
        id: of the problem, or None.
        prompt: the question, perhaps inside a template; "" if it is not there.
        answers: gold answers, each of them right; empty if there is none.
        texts: the responses.
        tokens: length of each response, or None.
        finish: how each response ended, or None.
        seed: of the row.
        task: the task that the id is counted in, or None.
    """

    where: str
    id: str | None
    prompt: str
    answers: tuple[str, ...]
    texts: list[str]
    tokens: list[int | None]
    finish: list[Literal["stop", "length"] | None]
    seed: int
    task: str | None


@dataclass(frozen=True)
class _Source:
    """Where a format keeps the parts of a row; they are read only if no column is named for them.

    Attributes:
        layers: the row, and the objects in it whose columns can be named.
        number: of the row; its id if it has neither an id nor a question.
    """

    layers: tuple[Mapping[str, Any], ...]
    id: Any
    prompt: Callable[[], Any]
    answers: Callable[[], tuple[str, ...]]
    response: Callable[[], Any]
    tokens: Any = None
    finish: Any = None
    seed: Any = 0
    task: str | None = None
    number: Any = None


def read_rows(file: Path, columns: Mapping[str, str], *, golds: bool) -> Iterator[ImportedRow]:
    """Rows of a file.

    Args:
        file: JSONL, JSON, Parquet, CSV or TSV.
        columns: part (one of `PARTS`) -> column, if it is not found by itself.
        golds: whether gold answers are read; if not, `answers` is empty.

    Raises:
        DataError: a part that cannot be read, several gold answers that differ, or no such column.
    """
    first: Any = _ABSENT
    for where, row in read_file(file):
        if "doc" in row and "resps" in row:
            first = row.get("filter") if first is _ABSENT else first
            if row.get("filter") != first:
                continue
            source = _lm_eval(row, where, file)
        elif isinstance(row.get("__doc__"), dict) and isinstance(
            row.get("__model_response__"), dict
        ):
            source = _lighteval(row, where, file)
        else:
            source = _plain(row, where)
        yield _read(source, columns, where, golds)


def task_of(file: Path) -> str:
    """The task in the name of an lm-eval or lighteval file, else the file's own name."""
    match = re.fullmatch(r"(?:samples|details)_(.+?)_\d{4}-\d\d-\d\dT[\d.-]+", file.stem)
    return match[1] if match else file.stem


def _read(source: _Source, columns: Mapping[str, str], where: str, golds: bool) -> ImportedRow:
    def named(part: str) -> Any:
        """The value of the column named for a part."""
        for layer in source.layers:
            value = _reach(layer, columns[part])
            if value is not _ABSENT:
                return value
        there = [key for layer in source.layers for key in layer]
        advice = nearest(columns[part], there)
        raise DataError(f"{where}: there is no column '{columns[part]}'.{advice}")

    prompt = prompt_text(named("prompt") if "prompt" in columns else source.prompt(), where)
    identity = named("id") if "id" in columns else source.id
    if identity is None and not prompt.strip():
        identity = source.number
    name = None if identity in (None, "") else str(identity)
    answers: tuple[str, ...] = ()
    if golds:
        answers = _answers(named("answer"), where) if "answer" in columns else source.answers()
    texts = _texts(named("response") if "response" in columns else source.response(), where)
    return ImportedRow(
        where,
        name,
        prompt,
        answers,
        texts,
        [_length(each) for each in _each(source.tokens, len(texts))],
        [e if e in ("stop", "length") else None for e in _each(source.finish, len(texts))],
        source.seed if isinstance(source.seed, int) else 0,
        None if name is None or "id" in columns else source.task,
    )


def _lm_eval(row: Mapping[str, Any], where: str, file: Path) -> _Source:
    document = row["doc"] if isinstance(row["doc"], dict) else {}

    def answers() -> tuple[str, ...]:
        if not _value(document, ("choices", "options")):
            for _, own in _golds(document, where):
                return own
        return _answers(row.get("target"), f"{where}, column 'target'")

    def prompt() -> Any:
        found = _value(document, KNOWN["prompt"])
        return _first_text(row.get("arguments")) if found is None else found

    return _Source(
        (row, document),
        row.get("doc_id"),
        prompt,
        answers,
        lambda: list(chain.from_iterable(map(_listed, _listed(row["resps"])))),
        task=task_of(file),
    )


def _lighteval(row: Mapping[str, Any], where: str, file: Path) -> _Source:
    document, made = row["__doc__"], row["__model_response__"]

    def answers() -> tuple[str, ...]:
        choices, found = document.get("choices") or [], []
        for index in _listed(document.get("gold_index")):
            if not isinstance(index, int) or not 0 <= index < len(choices):
                raise DataError(f"{where}: gold_index is {index!r}, with {len(choices)} choices.")
            found.append(answer_text(choices[index], where))
        return tuple(dict.fromkeys(filter(None, found)))

    def response() -> Any:
        if not made.get("text") and made.get("logprobs"):
            raise _no_text(made["logprobs"], where)
        return _listed(made.get("text"))

    return _Source(
        (row, document, made),
        document.get("id"),
        lambda: document.get("query"),
        answers,
        response,
        tokens=made.get("output_tokens"),
        task=str(document.get("task_name") or task_of(file)),
    )


def _plain(row: Mapping[str, Any], where: str) -> _Source:
    def response() -> Any:
        found = _value(row, RESPONSE)
        if found is None:
            raise DataError(
                f"{where}: no response. Looked for {', '.join(RESPONSE)}; the columns are "
                f"{', '.join(row)}. Name it with --column response=COLUMN."
            )
        return found

    def answers() -> tuple[str, ...]:
        found = dict(_golds(row, where))
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{name}: {' or '.join(own)[:40]}" for name, own in found.items())
            raise DataError(
                f"{where}: which column is the gold answer ({listed})? Name it with "
                "--column answer=COLUMN."
            )
        return next(iter(found.values()), ())

    return _Source(
        (row,),
        _value(row, IDS),
        lambda: _value(row, KNOWN["prompt"]),
        answers,
        response,
        tokens=_value(row, LENGTH),
        finish=_value(row, FINISH),
        seed=row.get("seed"),
        number=_value(row, ROW_NUMBERS),
    )


# Values.


def _golds(row: Mapping[str, Any], where: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each answer column with its answers, if it has any."""
    found = False
    for name in (*GOLD, WORKED):
        if name == WORKED and found:
            return
        answers = _answers(_value(row, (name,)), f"{where}, column '{name}'")
        if answers:
            found = True
            yield name, answers


def _answers(value: Any, where: str) -> tuple[str, ...]:
    """The answers of a value; in a list of texts each one is right."""
    several = isinstance(value, list) and all(isinstance(item, str) for item in value)
    texts = [answer_text(item, where) for item in (value if several else [value])]
    return tuple(dict.fromkeys(filter(None, texts)))


def _texts(value: Any, where: str) -> list[str]:
    """The responses of a value: a text, a chat, or a list of them."""
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
    """A value for each response; None if there is one value for several responses."""
    if isinstance(value, list) and len(value) == count:
        return value
    return [value] if count == 1 else [None] * count


def _length(value: Any) -> int | None:
    """A number of tokens, given as a number or as the tokens."""
    return len(value) if isinstance(value, list) else value if isinstance(value, int) else None


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _reach(row: Any, name: str) -> Any:
    """A column by its exact name; a dot reaches into a nested column. Else `_ABSENT`."""
    if not isinstance(row, Mapping):
        return _ABSENT
    head, _, rest = name.partition(".")
    if name in row or not rest:
        return row.get(name, _ABSENT)
    return _reach(row.get(head), rest)


def _value(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first of the columns that the row has, in any case; None if it has none."""
    lowered = {key.lower(): value for key, value in row.items()}
    found = (_reach(lowered, name) for name in names)
    return next((value for value in found if value is not None and value is not _ABSENT), None)
