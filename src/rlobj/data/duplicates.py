"""Drop duplicate rows of Arrow batches before they become Python objects.

DAPO-Math-17k has 1.79 million rows: each of its 17,000 questions about a hundred times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from rlobj.base.errors import DataError
from rlobj.data.layouts import Columns, find_columns, value_of


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
        """Return the indices of the rows that are not duplicates, in ascending order."""
        all_rows = range(batch.num_rows)
        (first,) = batch.slice(0, 1).to_pylist() or [{}]
        try:
            columns = find_columns(self._columns, first, "", strict=False)
        except DataError:  # reported with its location when the rows are read
            return all_rows
        names = [str(columns.prompt), str(columns.answer)]
        heads = [name if name in first else name.partition(".")[0] for name in names]
        new = []
        for index, row in enumerate(batch.select(list(dict.fromkeys(heads))).to_pylist()):
            text = repr([value_of(row, name) for name in names])
            key = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if key not in self._seen:
                self._seen.add(key)
                new.append(index)
        self.dropped += batch.num_rows - len(new)
        return new
