"""Recorder: writes RUN/records/ and RUN/tables/.

The record has the tokens that were touched or are spurious, and some others: a share of them.
Unless the user has set it, the share is larger in a step with few tokens, so that about `FLOOR` are
recorded. Whether a token is recorded depends on a hash of its seed, step, update, response and
position. So the record is the same at any number of ranks, and it is known how probably a token is
in it. When the record has as many rows as it may have, all probabilities are halved.

The metadata of each file say how often they were halved, and which steps it has, also those without
a row.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import pyarrow
import torch
from torch import Tensor

from rlobj.base.arrow import read_parquet, write_parquet
from rlobj.base.errors import RunError
from rlobj.objectives.statistics import Comm, hash_keys
from rlobj.ranks import together
from rlobj.runs.columns import SCHEMA
from rlobj.runs.layout import rank_file, step_files
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import DESIGN_KEY, Design
from rlobj.runs.rows import rows_of
from rlobj.runs.tables import write_tables
from rlobj.runs.texts import TokenTexts
from rlobj.settings.run_config import RunConfig

logger = logging.getLogger(__name__)

ROW_BYTES = 200
"""Disk space of a row, rounded up: rows of short texts take a half of it."""
SHARE, FLOOR = 0.01, 256
"""If output.records_share is null: the share of the untouched tokens that is recorded, and how many
of a step are recorded on average though this share of them is fewer."""
FILE_ROWS = 65536
"""A file gets no rows of further steps when it has this many."""
PAUSE, SHARE_OF_TIME = 5.0, 0.005
"""Seconds between writes, and the largest share of the time that they take."""


class Recorder:
    """RUN/records and RUN/tables. All ranks call every method but `close`, in the same order.

    Rows wait in memory. Each write replaces the open file with all rows since it was opened, until
    `close_file` lets a new one begin.

    Args:
        folder: of the run.
        config: of the run; `output` says what is recorded.
        tokenizer: of the policy.
        comm: the process group.

    Attributes:
        limit: the largest number of rows of all ranks; 0 = no record.
        state: what a checkpoint keeps: `rows` of all ranks up to the last complete step, and
            `halvings`, how often all probabilities were halved.
    """

    def __init__(self, folder: Path, config: RunConfig, tokenizer: Any, comm: Comm) -> None:
        self.limit = int(config.output.records_mb * 1_000_000 / ROW_BYTES)
        self.state = {"halvings": 0, "rows": 0}
        self._folder, self._config, self._comm = folder, config, comm
        self._texts = TokenTexts(tokenizer)
        self._updates: list[tuple[int, ObservedUpdate]] = []  # of a step that gets a full table
        self._first = 0  # step of the open file's first row
        self._open: list[Any] = []  # tables of the open file
        self._steps: list[int] = []  # that have ended since it was opened
        self._unwritten, self._added = False, 0  # rows or steps; rows of the step in progress
        share = config.output.records_share
        room = self.limit / (4 * max(config.training.steps, 1))  # so many fill a quarter of it
        updates = config.training.updates * len(config.objective.phases)
        self._share = SHARE if share is None else share
        self._fewest = min(FLOOR, room) / updates if share is None else 0.0  # of an update
        self._written, self._seconds = time.perf_counter(), 0.0  # the last write, and its duration

    def update(self, step: int, index: int, observed: ObservedUpdate) -> None:
        """Record an update; `step` counts from 1 and `index`, in the step, from 0."""
        every = self._config.output.tables_every
        if every and (step % every == 0 or step == self._config.training.steps):
            self._updates.append((index + 1, observed))
        if not self.limit:
            return
        clauses = observed.plan.clauses
        assert clauses is not None
        sure = (clauses.codes >= 0) | (observed.spurious == 1)
        others = self._comm.sum((clauses.in_phase & ~sure).sum())
        with together(self._comm, "recording an update"):
            self._add(step, index + 1, observed, self._probability(sure, int(others)))

    def _add(self, step: int, update: int, observed: ObservedUpdate, probability: Tensor) -> None:
        clauses, table = observed.plan.clauses, observed.table
        assert clauses is not None
        assert table.ids is not None
        keys = table.spread(hash_keys((self._config.seed, step, update, table.ids)))
        chosen = uniform(hash_keys((keys, table.positions))) < probability
        rows = (chosen & clauses.in_phase).nonzero()[:, 0]
        if len(rows):
            self._first = self._first or step
            self._open.append(rows_of(observed, rows, probability, (step, update), self._texts))
            self._unwritten = True
            self._added += len(rows)

    def _probability(self, sure: Tensor, others: int) -> Tensor:
        """With which tokens are recorded now, [N].

        Args:
            sure: those touched or spurious, bool [N].
            others: the number of the others in the update, on all ranks.
        """
        share = min(max(self._share, self._fewest / max(others, 1)), 1.0)
        return torch.where(sure, 1.0, share) * 0.5 ** self.state["halvings"]

    def end_step(self, step: int) -> None:
        """Write what is due after a step, and keep the record within its limit."""
        state, comm = self.state, self._comm
        with together(comm, "writing records and tables"):
            self._write_tables(step)
            if self.limit:
                self._first = self._first or step
                self._steps.append(step)
                self._unwritten = True
            waited = time.perf_counter() - self._written
            if sum(map(len, self._open)) >= FILE_ROWS:
                self._close_file()
            elif waited > max(PAUSE, self._seconds / SHARE_OF_TIME):
                self._flush()
        if not self.limit:
            return
        state["rows"] += int(comm.sum(torch.tensor(self._added)))
        self._added = 0
        while state["rows"] > self.limit:
            self.close_file()
            if not state["halvings"] and not comm.rank:
                logger.warning(
                    "%s has reached the size output.records_mb: now each token is recorded half as "
                    "probably, and so again whenever it is full; see its column "
                    "inclusion_probability",
                    self._folder / "records",
                )
            state["halvings"] += 1
            rows = 0
            with together(comm, "thinning the record"):
                files = step_files(self._folder, "records")
                rows = sum(map(self._thin, files[comm.rank :: comm.size]))
            state["rows"] = int(comm.sum(torch.tensor(rows)))

    def _write_tables(self, step: int) -> None:
        updates, self._updates = self._updates, []
        if not updates:
            return
        config = self._config
        facts = {
            "temperature": config.sampling.temperature,
            "max_tokens": config.sampling.max_tokens,
            "selection": config.training.selection,
            "model": config.model.name or "embedded",
            "seed": config.seed,
        }
        ranks = (self._comm.rank, self._comm.size)
        write_tables(self._folder, step, updates, ranks, facts)

    def _flush(self) -> None:
        if self._unwritten:
            start = time.perf_counter()
            design = Design(self.state["halvings"], self._comm.size, self._steps)
            rows = pyarrow.concat_tables([SCHEMA.empty_table(), *self._open])
            file = rank_file(self._folder, "records", self._first, self._comm.rank)
            write_parquet(file, _described(rows, design))
            self._unwritten = False
            self._written = time.perf_counter()
            self._seconds = self._written - start

    def _close_file(self) -> None:
        self._flush()
        self._open, self._steps, self._first = [], [], 0

    def close_file(self) -> None:
        """Write all rows; the next step begins a new file, as a checkpoint needs it."""
        with together(self._comm, "writing the record"):
            self._close_file()

    def close(self) -> None:
        """Write this rank's rows on the way out, also after an error, which must not be hidden."""
        try:
            self._close_file()
        except (OSError, RunError) as error:
            logger.warning("the last rows of the record could not be written: %s", error)

    def _thin(self, path: Path) -> int:
        """Thin a written file, and return how many rows it still has."""
        table, halvings = read_parquet(path), self.state["halvings"]
        design = Design.read(table.schema) or Design(halvings - 1, self._comm.size, None)
        if design.halvings >= halvings:  # written before the run was resumed
            return len(table)
        names = ("step", "update", "response", "position", "inclusion_probability")
        columns = [torch.from_numpy(table[name].to_numpy().copy()) for name in names]
        *keys, position, probability = columns
        probability = probability * 0.5 ** (halvings - design.halvings)
        keys = hash_keys((self._config.seed, *keys))
        kept = uniform(hash_keys((keys, position))) < probability
        place = table.schema.get_field_index(names[-1])
        table = table.set_column(place, table.schema.field(place), [probability.numpy()])
        table = table.filter(pyarrow.array(kept.numpy()))
        write_parquet(path, _described(table, design._replace(halvings=halvings)))
        return len(table)


def _described(rows: Any, design: Design) -> Any:
    """The rows with the metadata of their file."""
    more = {} if design.steps is None else {DESIGN_KEY: json.dumps(design._asdict())}
    return rows.replace_schema_metadata({**SCHEMA.metadata, **more})


def uniform(keys: Tensor) -> Tensor:
    """A number in [0, 1) for each hash, float64, [N]."""
    return ((keys >> 11) & (2**53 - 1)).double() / 2**53
