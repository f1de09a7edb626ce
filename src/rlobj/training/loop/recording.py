"""What a run records of its updates: tokens in records/, whole updates in tables/."""

from __future__ import annotations

import torch

from rlobj.records.observed import Observed
from rlobj.records.tables import write_tables
from rlobj.training.loop.parts import Parts
from rlobj.training.parallel.agreement import together


def record_update(parts: Parts, index: int, observed: Observed) -> None:
    """Record an update of the step in progress; `index` counts from 0."""
    step, every = parts.learner.steps + 1, parts.config.output.tables_every
    if every and (step % every == 0 or step == parts.config.training.steps):
        parts.observed.append((index + 1, observed))
    with parts.learner.clock.inside("writing"), together(parts.comm, "recording an update"):
        parts.recorder.add(step, index + 1, observed)


def end_step(parts: Parts) -> None:
    """Write what is due after a step, and keep the record within its limit."""
    recorder, comm = parts.recorder, parts.comm
    with parts.learner.clock.inside("writing"):
        with together(comm, "writing records and tables"):
            _write_tables(parts)
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


def _write_tables(parts: Parts) -> None:
    updates, parts.observed = parts.observed, []
    if not updates:
        return
    config = parts.config
    facts = {
        "temperature": config.sampling.temperature,
        "max_tokens": config.sampling.max_tokens,
        "selection": config.training.selection,
        "model": config.model.name or "embedded",
        "seed": config.seed,
    }
    ranks = (parts.comm.rank, parts.comm.size)
    write_tables(parts.run.path / "tables", parts.learner.steps, updates, ranks, facts)
