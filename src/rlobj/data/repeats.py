"""Rows of Arrow batches that repeat an earlier one, dropped before they become Python objects.

DAPO-Math-17k holds 1.79 million rows: each of its 17,000 questions a hundred times.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from rlobj.base.errors import DataError
from rlobj.data.layouts import Columns, Reader

__all__ = ["Repeats"]


class Repeats:
    """What was seen of one source; 16 bytes are kept of each question with its answer.

    A question that comes back with another answer is no repetition here.

    Args:
        columns: what the columns are called; those that are not there are looked for under the
            usual names.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.dropped = 0
        self._seen: set[bytes] = set()

    def fresh(self, batch: Any) -> Sequence[int]:
        """Indices of the batch's rows that repeat nothing, ascending.

        Columns in a shape that has no text to compare, answers in lists for one, repeat nothing.
        """
        everything = range(batch.num_rows)
        (first,) = batch.slice(0, 1).to_pylist() or [{}]
        try:
            reader = Reader(self._columns, "", first, strict=False)
        except DataError:  # the rows themselves will say what is missing
            return everything
        prompts, answers = (_texts(batch, name) for name in (reader.prompt, reader.answer))
        if prompts is None or answers is None:
            return everything
        new = []
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            key = hashlib.blake2b(f"{prompt}\0{answer}".encode(), digest_size=16).digest()
            if key not in self._seen:
                self._seen.add(key)
                new.append(index)
        self.dropped += batch.num_rows - len(new)
        return new


def _texts(batch: Any, name: str) -> list[Any] | None:
    """One plain value a row: of a list of chat messages the contents; None for other shapes."""
    from pyarrow import types

    head, *path = [name] if name in batch.schema.names else name.split(".")
    column = batch.column(head)
    for part in path:
        column = column.field(part)
    if not types.is_nested(column.type):
        return column.to_pylist()
    message = column.type.value_type if types.is_list(column.type) else None
    if message is None or not types.is_struct(message) or message.get_field_index("content") < 0:
        return None
    contents = [text or "" for text in column.flatten().field("content").to_pylist()]
    start, *ends = column.offsets.to_pylist()
    bounds = itertools.pairwise([0, *(end - start for end in ends)])
    return ["\0".join(contents[first:last]) for first, last in bounds]
