r"""Turn rows of published data sets into problems. The known layouts:

| layout | prompt | answer |
|---|---|---|
| verl, DAPO-Math-17k | `prompt`: list of chat messages | `reward_model.ground_truth` |
| MATH-500, DeepScaleR, MathArena | `problem` | `answer` |
| gsm8k | `question` | `answer`: a worked solution that ends in `#### 18` |
| AIME 2024 | `Problem` or `problem` | `Answer`, or `solution`: `\boxed{204}` |
| OlympiadBench | `question` | `final_answer`: a list |
| Knights and Knaves | `quiz` | `solution_text_format`: `(1) Zoey is a knight`, one per line |
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

from rlobj.answers.extraction import last_box
from rlobj.base.errors import DataError, Setting, nearest
from rlobj.base.validation import Model, half_surrogates
from rlobj.data.problems import Problem, Row, digest

KNOWN = {
    "prompt": ("problem", "question", "quiz", "source_prompt", "prompt"),
    "answer": (
        *("solution_text_format", "answer", "final_answer", "reward_model.ground_truth"),
        *("ground_truth", "target", "solution"),
    ),
    "id": ("id", "unique_id", "problem_idx", "extra_info.index"),
}
"""Part -> common column names by priority, in any case; a dot selects a nested column."""


class Columns(Model):
    """The columns of a problem; None = find the column among common names.

    A dot selects a nested column: `reward_model.ground_truth`.
    """

    prompt: str | None = None
    """column of the question: text, or a list of chat messages"""
    answer: str | None = None
    """column of the gold answer: text, a number, or a list of several of which any is right"""
    id: str | None = None
    """column of the problem's id; if there is none, a hash is used"""


Several = Literal["alternatives", "values"]
"""The meaning of a list of answers: alternatives that are all right, or one answer with several
values."""


class RowReader:
    """Turns the rows of one source into problems; its first row decides which columns are used.

    Args:
        columns: the columns.
        strict: a column named in `columns` must exist; else the common names are tried as well.
        several: the meaning of a list of answers. Of alternatives, the first becomes `answer`, and
            `extra["alternatives"]` lists all of them; several values are joined with commas.
        answers: rows without an answer are left out; else their answer is "".

    Attributes:
        has_ids: whether the rows have ids; None before the first row.
        left_out: number of rows without a question, and without an answer.
        repeated: number of rows with the question and the answer of an earlier row, which are left
            out before they are read: of the rows of DAPO-Math-17k, a hundred to each question.
    """

    def __init__(
        self,
        columns: Columns | None = None,
        *,
        strict: bool = True,
        several: Several = "alternatives",
        answers: bool = True,
    ) -> None:
        self._columns = columns or Columns()
        self._strict = strict
        self._several = several
        self._needs_answers = answers
        self.has_ids: bool | None = None
        self.left_out = {"a question": 0, "an answer": 0}
        self.repeated = 0
        self._read: set[str] = set()

    def problems(self, rows: Iterable[Row]) -> Iterator[Problem]:
        """Yield the problems of the rows that have a question and an answer.

        Raises:
            DataError: a column is missing, or a value has an unknown form.
        """
        for where, row in rows:
            if self.has_ids is None:
                self._columns = self._found(row, where)
                self.has_ids = self._columns.id is not None
            columns = self._columns
            values = repr([value_of(row, str(name)) for name in (columns.prompt, columns.answer)])
            if values in self._read:
                self.repeated += 1
                continue
            self._read.add(values)
            problem = self._problem(where, row)
            if isinstance(problem, Problem):
                yield problem
            else:
                self.left_out[problem] += 1

    def notes(self, repeated: int) -> list[str]:
        """How many rows were left out, in words.

        Args:
            repeated: number of problems that were read and have the question of an earlier one.
        """
        counts = {"rows with repeated questions": repeated + self.repeated}
        counts |= {f"rows without {part}": count for part, count in self.left_out.items()}
        return [f"{count} {rows} were left out" for rows, count in counts.items() if count]

    def _found(self, row: Mapping[str, Any], where: str) -> Columns:
        """The columns of a source, with common names for those that are not named."""
        names = column_names(row)
        in_any_case = {name.lower(): name for name in reversed(names)}
        columns: dict[str, str] = {}
        for part, chosen in self._columns:
            common = [in_any_case[name] for name in KNOWN[part] if name in in_any_case]
            if chosen in names:
                columns[part] = chosen
            elif chosen is not None and self._strict:
                what = f"{where}: the first row has no column '{chosen}' (data.columns.{part})."
                raise DataError(what, nearest(chosen, names))
            elif common:
                columns[part] = common[0]
        for part in ("prompt", "answer") if self._needs_answers else ("prompt",):
            if part not in columns:
                what = f"{where}: found no {part}. The columns are: {', '.join(names)}. Use "
                raise DataError(what, Setting(f"data.columns.{part}", "COLUMN"))
        return Columns(**columns)

    def _problem(self, where: str, row: Mapping[str, Any]) -> Problem | str:
        """The problem of a row, or what the row does not have."""
        names = str(self._columns.prompt), str(self._columns.answer), self._columns.id
        prompt = prompt_text(value_of(row, names[0]), f"{where}, column '{names[0]}'")
        if not prompt.strip():
            return "a question"
        answers = self._answers(value_of(row, names[1]), f"{where}, column '{names[1]}'")
        if not answers and self._needs_answers:
            return "an answer"
        name = None if names[2] is None else value_of(row, names[2])
        for column, wrong in half_surrogates(row):  # which JSON allows, and no file can hold
            raise DataError(f"{where}, column '{column}': {wrong}")
        extra = {key: value for key, value in row.items() if key not in names}
        if len(answers) > 1:
            extra["alternatives"] = answers
        return Problem(
            id=digest(prompt)[:16] if name is None else str(name),
            prompt=prompt,
            answer=answers[0] if answers else "",
            extra=extra,
        )

    def _answers(self, value: Any, where: str) -> list[str]:
        """The right answers; empty if the row has none."""
        if not isinstance(value, list):
            text = answer_text(value, where)
            return [text] if text else []
        texts = [text for item in value if (text := answer_text(item, where))]
        return [", ".join(texts)] if self._several == "values" and texts else texts


def column_names(row: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Column names of a row; nested ones with dots."""
    names = []
    for key, value in row.items():
        names.append(prefix + key)
        if isinstance(value, dict):
            names.extend(column_names(value, f"{prefix}{key}."))
    return names


def value_of(row: Mapping[str, Any], name: str) -> Any:
    """Value of a column; None if the row does not have it."""
    if name in row:
        return row[name]
    head, _, rest = name.partition(".")
    inner = row.get(head)
    return value_of(inner, rest) if rest and isinstance(inner, dict) else None


def prompt_text(value: Any, where: str) -> str:
    """Return the question as one text.

    The contents of chat messages are joined by blank lines.

    Args:
        value: text, or a list of messages of the system and the user.
        where: the location of the value, for error messages.

    Raises:
        DataError: a message of the assistant, or a value of another type.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise DataError(f"{where}: expected text or chat messages, got {type(value).__name__}")
    texts = []
    for message in value:
        match message:
            case {"role": "system" | "user", "content": str(content)}:
                texts.append(content)
            case _:
                expected = "expected {role: system or user, content: text}"
                raise DataError(f"{where}: {expected}, got {str(message)[:80]!r}")
    return "\n\n".join(texts)


def answer_text(value: Any, where: str) -> str:
    r"""Return the gold answer alone; "" if there is none.

    27.0 gives `27`, a list with one item gives the item, `... #### 1,234` gives `1234`, and
    `...\boxed{204}...` gives the content of the last closed box. Commas behind `####` stay, unless
    the answer is one number whose digits they group by three.

    Args:
        value: text, a number, true or false, or a list with one of them.
        where: the location of the value, for error messages.

    Raises:
        DataError: a list with several answers, an object, an infinite number, or a value of
            another type, such as a date.

    Example:
        >>> [answer_text(value, "row 1") for value in (27.0, ["x"], "so #### 1,234", "#### (1, 2)")]
        ['27', 'x', '1234', '(1, 2)']
    """
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if value is None or (isinstance(value, list | tuple) and not value):
        return ""
    if isinstance(value, Real | Decimal) and not isinstance(value, bool):
        return _number_text(value, where)
    if not isinstance(value, str | bool):
        kind = f"the type {type(value).__name__} ({str(value)[:80]})"
        raise DataError(f"{where} has an answer of {kind}; expected text or a number")
    text = str(value).strip()
    marked = re.search(r"####(?!.*####)\s*([^\n]*)\Z", text)
    if marked:
        answer = marked[1].strip()
        return answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer
    return last_box(text) or text


_GROUPED = re.compile(
    r"[-+\u2212]?\s*(?:\\?[$€£¥])?[-+\u2212]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]*)?\s*(?:\\?[%$])?"
)
"""One number with groups of three digits, perhaps with a sign, a currency or percent."""


def _number_text(value: Any, where: str) -> str:
    """A number as text that has its value; "" if it is NaN."""
    if value != value:
        return ""
    if value in (math.inf, -math.inf):
        raise DataError(f"{where} has the answer {value}; expected a finite number, or text")
    if value == int(value):
        return str(int(value))
    return f"{value:f}".rstrip("0") if isinstance(value, Decimal) else str(value)
