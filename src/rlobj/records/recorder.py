"""Recorder: writes RUN/records/: tokens that were touched or are spurious, and some others.

Whether a token is recorded depends on a hash of its seed, step, update, response and position. So
the record is the same at any number of ranks, and it is known how probably a token is in it. When
the record has as many rows as it may have, all probabilities are halved.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow import parquet
from torch import Tensor

from rlobj.base.errors import RunError
from rlobj.objectives.statistics import hash_keys
from rlobj.records.observed import Observed
from rlobj.records.rows import rows_of, write_parquet
from rlobj.records.texts import TokenTexts

logger = logging.getLogger(__name__)

ROW_BYTES = 200
"""Disk space of a row, rounded up: rows of short texts take a half of it."""
FILE_ROWS = 65536
"""A file gets no rows of further steps when it has this many."""
PAUSE, SHARE_OF_TIME = 5.0, 0.005
"""Seconds between writes, and the largest share of the time that they take."""


class Recorder:
    """The record of a run on one rank.

    Rows wait in memory. Each write replaces the open file with all rows since it was opened, until
    `close_file` lets a new one begin.

    Args:
        folder: RUN/records.
        megabytes: the largest size of the record of all ranks; 0 = no record.
        share: the share of the other tokens that is recorded.
        seed: of the run.
        tokenizer: of the policy.
        rank: of this process.

    Attributes:
        limit: the largest number of rows of all ranks; 0 = no record.
        rows: rows of all ranks up to the last complete step.
        halvings: how often all probabilities were halved.
        added: rows of the step in progress on this rank.
    """

    def __init__(
        self, folder: Path, megabytes: float, share: float, seed: int, tokenizer: Any, rank: int = 0
    ) -> None:
        self.limit = int(megabytes * 1_000_000 / ROW_BYTES)
        self.rows = self.halvings = self.added = 0
        self._folder, self._rank = folder, rank
        self._share, self._seed = share, seed
        self._texts = TokenTexts(tokenizer)
        self._first = 0  # step of the open file's first row
        self._open: list[Any] = []  # tables of the open file
        self._unwritten = False
        self._written, self._seconds = time.perf_counter(), 0.0  # the last write, and its duration

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"halvings": self.halvings, "rows": self.rows}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from what `state` returned."""
        self.halvings, self.rows = state["halvings"], state["rows"]

    def add(self, step: int, update: int, observed: Observed) -> None:
        """Record tokens of an update; `step` and `update` count from 1."""
        if not self.limit:
            return
        clauses, table = observed.plan.clauses, observed.table
        assert clauses is not None
        assert table.ids is not None
        sure = (clauses.codes >= 0) | (observed.spurious == 1)
        probability = torch.where(sure, 1.0, self._share) * 0.5**self.halvings
        keys = table.spread(hash_keys((self._seed, step, update, table.ids)))
        chosen = uniform(hash_keys((keys, table.positions))) < probability
        rows = (chosen & clauses.in_phase).nonzero()[:, 0]
        if len(rows):
            self._first = self._first or step
            self._open.append(rows_of(observed, rows, probability, (step, update), self._texts))
            self._unwritten = True
            self.added += len(rows)

    def write_if_due(self) -> None:
        """Write the rows of complete steps if the last write was long ago, or if they are many."""
        if sum(map(len, self._open)) >= FILE_ROWS:
            self.close_file()
        elif time.perf_counter() - self._written > max(PAUSE, self._seconds / SHARE_OF_TIME):
            self.flush()

    def flush(self) -> None:
        """Write all rows."""
        if self._unwritten:
            start = time.perf_counter()
            path = self._folder / f"step-{self._first:06d}-rank-{self._rank}.parquet"
            write_parquet(path, pyarrow.concat_tables(self._open))
            self._unwritten = False
            self._written = time.perf_counter()
            self._seconds = self._written - start

    def close_file(self) -> None:
        """Write all rows; the next step begins a new file."""
        self.flush()
        self._open, self._first = [], 0

    def close(self) -> None:
        """Write all rows on the way out, also after an error, which must not be hidden."""
        try:
            self.close_file()
        except (OSError, RunError) as error:
            logger.warning("the last rows of the record could not be written: %s", error)

    def halve(self) -> None:
        """Record each token half as probably from now on; `thin` does so with the written files."""
        self.close_file()
        if not self.halvings and not self._rank:
            logger.warning(
                "%s has reached the size output.records_mb: now each token is recorded half as "
                "probably, and so again whenever it is full; see its column inclusion_probability",
                self._folder,
            )
        self.halvings += 1

    def thin(self, ranks: int) -> int:
        """Thin this rank's share of the written files, and return how many rows they still have."""
        files = sorted(self._folder.glob("step-*.parquet"))
        return sum(map(self._thin, files[self._rank :: ranks]))

    def _thin(self, path: Path) -> int:
        table = parquet.read_table(path)
        names = ("step", "update", "response", "position", "inclusion_probability")
        columns = [torch.from_numpy(table[name].to_numpy().copy()) for name in names]
        *keys, position, before = columns
        spurious = table["spurious"].fill_null(False).to_numpy()
        sure = torch.from_numpy(table["effect"].is_valid().to_numpy() | spurious)
        now = torch.where(sure, 1.0, self._share) * 0.5**self.halvings
        probability = torch.minimum(before, now)
        kept = uniform(hash_keys((hash_keys((self._seed, *keys)), position))) < probability
        place = table.schema.get_field_index(names[-1])
        table = table.set_column(place, table.schema.field(place), [probability.numpy()])
        table = table.filter(pyarrow.array(kept.numpy()))
        write_parquet(path, table)
        return len(table)


def uniform(keys: Tensor) -> Tensor:
    """A number in [0, 1) for each hash, float64, [N]."""
    return ((keys >> 11) & (2**53 - 1)).double() / 2**53
