"""Rows of published data sets: which column holds what, and in which shape.

| layout | prompt | answer |
|---|---|---|
| verl, DAPO-Math-17k | `prompt`: list of chat messages | `reward_model.ground_truth` |
| MATH-500, DeepScaleR, MathArena | `problem` | `answer` |
| gsm8k | `question` | `answer`: a worked solution that ends in `#### 18` |
| AIME 2024 | `Problem` or `problem` | `Answer`, or `solution`: `\\boxed{204}` |
| OlympiadBench | `question` | `final_answer`: a list |
| Knights and Knaves | `quiz` | `solution_text_format`: `(1) Zoey is a knight`, one a line |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from rlobj.base.errors import DataError, nearest
from rlobj.base.validation import Model
from rlobj.data.problems import Problem, digest

__all__ = ["Columns", "Reader", "answer_text", "column_names", "prompt_text"]

KNOWN = {
    "prompt": ("problem", "question", "quiz", "prompt"),
    "answer": (
        "solution_text_format",
        "answer",
        "final_answer",
        "reward_model.ground_truth",
        "ground_truth",
        "target",
        "solution",
    ),
    "id": ("id", "unique_id", "problem_idx", "extra_info.index"),
}
"""Candidates for each part, first found wins, in any case; a dot reaches into a nested column."""


class Columns(Model):
    """The columns of a problem; None = find the column among common names.

    A dot selects a nested column: `reward_model.ground_truth`.
    """

    prompt: str | None = Field(
        default=None, description="column of the question: text, or a list of chat messages"
    )
    answer: str | None = Field(
        default=None, description="column of the gold answer: text, a number, or a list with one"
    )
    id: str | None = Field(
        default=None, description="column of the problem's id; if there is none, a hash is used"
    )


Several = Literal["refuse", "alternatives", "values"]
"""What a list of several answers is: no answer, several ways to be right, or one answer of many
values."""


class Reader:
    """Turns the rows of one source into problems; the columns are settled by its first row.

    Args:
        columns: what the columns are called.
        where: names the source in errors.
        first: its first row.
        strict: a column that `columns` names must be there; else the usual names are tried next.
        several: what a list of answers means. Of alternatives the first becomes `answer`, and all
            of them `extra["alternatives"]`; values are joined by commas.
    """

    def __init__(
        self,
        columns: Columns,
        where: str,
        first: Mapping[str, Any],
        *,
        strict: bool = True,
        several: Several = "refuse",
    ) -> None:
        names = column_names(first)
        if not strict:
            chosen = {part: name for part, name in columns if name in names}
            columns = Columns(**chosen)
        self.prompt = _find("prompt", columns.prompt, names, where)
        self.answer = _find("answer", columns.answer, names, where)
        optional = columns.id is None and not _candidates("id", names)
        self.id = None if optional else _find("id", columns.id, names, where)
        self._several = several

    def problem(self, where: str, row: Mapping[str, Any]) -> Problem | None:
        """The problem of a row, or None where the row has no answer.

        Raises:
            DataError: the row has no question, or a part of it in a shape that has no reading.
        """
        prompt = prompt_text(_get(row, self.prompt), f"{where}, column '{self.prompt}'")
        if not prompt.strip():
            raise DataError(f"{where}: column '{self.prompt}' is empty; expected a question.")
        answers = self._answers(_get(row, self.answer), f"{where}, column '{self.answer}'")
        if not answers:
            return None
        name = None if self.id is None else _get(row, self.id)
        taken = {self.prompt, self.answer, self.id}
        extra = {key: value for key, value in row.items() if key not in taken}
        if len(answers) > 1:
            extra["alternatives"] = answers
        return Problem(
            id=digest(prompt)[:16] if name is None else str(name),
            prompt=prompt,
            answer=answers[0],
            extra=extra,
        )

    def _answers(self, value: Any, where: str) -> list[str]:
        """The answers that are right, the first one first; none where the row has none."""
        if self._several == "refuse" or not isinstance(value, list):
            text = answer_text(value, where)
            return [text] if text else []
        texts = [text for item in value if (text := answer_text(item, where))]
        return [", ".join(texts)] if self._several == "values" and texts else texts


def column_names(row: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Column names of a row, nested ones with dots."""
    names = []
    for key, value in row.items():
        names.append(prefix + key)
        if isinstance(value, dict):
            names.extend(column_names(value, f"{prefix}{key}."))
    return names


def _candidates(part: str, names: Iterable[str]) -> list[str]:
    by_lower = {name.lower(): name for name in reversed(list(names))}
    return [by_lower[known] for known in KNOWN[part] if known in by_lower]


def _find(part: str, chosen: str | None, names: list[str], where: str) -> str:
    if chosen is None:
        found = _candidates(part, names)
        if found:
            return found[0]
        raise DataError(
            f"{where}: found no column for the {part} (looked for {', '.join(KNOWN[part])}). "
            f"The columns are: {', '.join(names)}. Name one: data.columns.{part}=COLUMN"
        )
    if chosen in names:
        return chosen
    raise DataError(
        f"{where}: there is no column '{chosen}' (data.columns.{part}).{nearest(chosen, names)}"
    )


def _get(row: Mapping[str, Any], name: str) -> Any:
    """Value of a column; None where this row does not have it."""
    if name in row:
        return row[name]
    head, _, rest = name.partition(".")
    inner = row.get(head)
    return _get(inner, rest) if rest and isinstance(inner, dict) else None


def prompt_text(value: Any, where: str) -> str:
    """The question as one text.

    Chat messages give their contents, joined by a blank line: a system message comes before the
    user's. A message of the assistant has no place in a prompt.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        texts = []
        for message in value:
            shape = message if isinstance(message, dict) else {}
            content = shape.get("content")
            if shape.get("role") not in ("system", "user") or not isinstance(content, str):
                raise DataError(
                    f"{where}: expected messages {{role: system or user, content: text}}, "
                    f"found {str(message)[:80]!r}."
                )
            texts.append(content)
        return "\n\n".join(texts)
    raise DataError(
        f"{where}: expected text or a list of chat messages, found {type(value).__name__}."
    )


def answer_text(value: Any, where: str) -> str:
    r"""The gold answer alone; "" where there is none.

    Whole floats lose their ".0", a list of one gives its item, `... #### 1,234` gives `1234`, and
    `...\boxed{204}...` gives the content of the last closed box.

    Raises:
        DataError: several answers, or an object: neither is one answer.

    Example:
        >>> [answer_text(value, "row 1") for value in (27.0, ["x"], "so #### 1,234")]
        ['27', 'x', '1234']
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or value == []:
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.0f}" if value.is_integer() else str(value)
    if isinstance(value, dict):
        raise DataError(
            f"{where} has an object with the fields {', '.join(value)}. Select one with a dot: "
            "data.columns.answer=COLUMN.FIELD"
        )
    if isinstance(value, list):
        raise DataError(f"{where} has {len(value)} answers ({str(value)[:80]}); expected one.")
    text = str(value).strip()
    marked = re.search(r"####\s*([^\n]*)\Z", text)
    if marked:
        return marked[1].strip().replace(",", "")
    return _last_box(text) or text


def _last_box(text: str) -> str:
    r"""Content of the last `\boxed{...}` that is closed; "" where there is none."""
    opening = "\\boxed{"
    start = text.rfind(opening)
    if start < 0:
        return ""
    depth = 0
    for position in range(start + len(opening) - 1, len(text)):
        if text[position] in "{}" and text[position - 1] != "\\":
            depth += 1 if text[position] == "{" else -1
            if depth == 0:
                return text[start + len(opening) : position].strip()
    return _last_box(text[:start])
