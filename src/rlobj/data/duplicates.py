"""Drop duplicate rows of Arrow batches before they become Python objects.

DAPO-Math-17k has 1.79 million rows: each of its 17,000 questions about a hundred times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from rlobj.base.errors import DataError
from rlobj.data.layouts import Columns, find_columns


class DuplicateFilter:
    """Finds rows with the question and the answer of an earlier row of the source.

    It keeps a hash of 16 bytes for each question with its answer.

    Args:
        columns: the columns; a column that does not exist is replaced by a common name.

    Attributes:
        dropped: number of duplicate rows.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.dropped = 0
        self._seen: set[bytes] = set()

    def new_rows(self, batch: Any) -> Sequence[int]:
        """Return the indices of the rows that are not duplicates, in ascending order.

        All rows are new if a column has no text to compare, such as a list of answers.
        """
        all_rows = range(batch.num_rows)
        (first,) = batch.slice(0, 1).to_pylist() or [{}]
        try:
            columns = find_columns(self._columns, first, "", strict=False)
        except DataError:  # reported with its location when the rows are read
            return all_rows
        prompts, answers = (_texts(batch, str(name)) for name in (columns.prompt, columns.answer))
        if prompts is None or answers is None:
            return all_rows
        new = []
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            key = hashlib.blake2b(f"{prompt}\0{answer}".encode(), digest_size=16).digest()
            if key not in self._seen:
                self._seen.add(key)
                new.append(index)
        self.dropped += batch.num_rows - len(new)
        return new


def _texts(batch: Any, name: str) -> list[Any] | None:
    """One value for each row, joined for chat messages; None for other nested columns."""
    import pyarrow
    from pyarrow import types

    from rlobj.base.arrow import pc as compute

    head, *path = [name] if name in batch.schema.names else name.split(".")
    column = batch.column(head)
    if path:
        column = compute.struct_field(column, path)
    if types.is_list(column.type) and types.is_struct(column.type.value_type):
        if column.type.value_type.get_field_index("content") < 0:
            return None
        contents = compute.struct_field(column.values, "content")
        texts = pyarrow.ListArray.from_arrays(column.offsets, contents.fill_null(""))
        column = compute.binary_join(texts, "\0")
    return None if types.is_nested(column.type) else column.to_pylist()
