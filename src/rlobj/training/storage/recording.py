"""What a run records of its updates: tokens in records/, whole updates in tables/."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlobj.config.run_config import RunConfig
from rlobj.objectives.statistics import Comm
from rlobj.records.observed import Observed
from rlobj.records.recorder import Recorder
from rlobj.records.tables import write_tables
from rlobj.training.parallel.agreement import together


class Recording:
    """RUN/records and RUN/tables. All ranks call every method but `close`, in the same order.

    Args:
        folder: of the run.
        config: of the run.
        tokenizer: of the policy.
        comm: the process group.
    """

    def __init__(self, folder: Path, config: RunConfig, tokenizer: Any, comm: Comm) -> None:
        self._folder, self._config, self._comm = folder, config, comm
        output = config.output
        self._recorder = Recorder(
            folder / "records",
            output.records_mb,
            output.records_share,
            config.seed,
            tokenizer,
            comm.rank,
        )
        self._updates: list[tuple[int, Observed]] = []  # of a step that gets a full table

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return self._recorder.state()

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from what `state` returned."""
        self._recorder.restore(state)

    def update(self, step: int, index: int, observed: Observed) -> None:
        """Record an update; `step` counts from 1 and `index`, in the step, from 0."""
        every = self._config.output.tables_every
        if every and (step % every == 0 or step == self._config.training.steps):
            self._updates.append((index + 1, observed))
        with together(self._comm, "recording an update"):
            self._recorder.add(step, index + 1, observed)

    def end_step(self, step: int) -> None:
        """Write what is due after a step, and keep the record within its limit."""
        recorder, comm = self._recorder, self._comm
        with together(comm, "writing records and tables"):
            self._write_tables(step)
            recorder.write_if_due()
        if not recorder.limit:
            return
        recorder.rows += int(comm.sum(torch.tensor(recorder.added)))
        recorder.added = 0
        while recorder.rows > recorder.limit:
            with together(comm, "writing the record"):
                recorder.halve()
            rows = 0
            with together(comm, "thinning the record"):
                rows = recorder.thin(comm.size)
            recorder.rows = int(comm.sum(torch.tensor(rows)))

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
        write_tables(self._folder / "tables", step, updates, ranks, facts)

    def close_file(self) -> None:
        """Write all rows; the next step begins a new file, as a checkpoint needs it."""
        with together(self._comm, "writing the record"):
            self._recorder.close_file()

    def close(self) -> None:
        """Write this rank's rows on the way out, also after an error."""
        self._recorder.close()
