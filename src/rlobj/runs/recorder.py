"""Recorder: writes RUN/records/ and RUN/tables/; `write_samples` writes RUN/samples/.

The record has the tokens of each update that were touched or are spurious: all of them, or the
first `output.records` in the order of a hash of the run's seed, the step, the update, the response
and the position. So it is the same at any number of ranks and any split into micro-batches.

The metadata of each file count all tokens of its updates, exactly; see `RecordedUpdate`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import torch

from rlobj.base.arrow import write_parquet
from rlobj.conversations.grading import described
from rlobj.objectives.statistics import hash_keys, kth_smallest
from rlobj.ranks import ProcessGroup, together
from rlobj.runs.columns import SCHEMA
from rlobj.runs.layout import step_file
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import UPDATES_KEY
from rlobj.runs.rows import rows_of
from rlobj.runs.tables import write_tables
from rlobj.runs.texts import TokenTexts
from rlobj.samplers import Response
from rlobj.settings.run_config import RunConfig

OPTIONAL = ("source", "conversation", "began", "versions")
"""Columns that a table lacks if no response has a value."""
_ORDER = [(name, "ascending") for name in ("update", "rollout", "response", "position")]


class Recorder:
    """RUN/records and RUN/tables. All ranks call every method, in the same order.

    Args:
        folder: of the run.
        config: of the run; `output` says what is recorded.
        tokenizer: of the policy.
        comm: the process group.
    """

    def __init__(self, folder: Path, config: RunConfig, tokenizer: Any, comm: ProcessGroup) -> None:
        self._folder, self._config, self._comm = folder, config, comm
        self._texts = TokenTexts(tokenizer)
        self._tabled: list[tuple[int, ObservedUpdate]] = []  # updates of a step with a full table
        self._rows: list[Any] = []  # of this rank in the step in progress
        self._counts: list[dict[str, Any]] = []  # of its updates, over all ranks

    def update(self, step: int, index: int, observed: ObservedUpdate) -> None:
        """Record an update; `step` counts from 1 and `index`, in the step, from 0."""
        every = self._config.output.tables_every
        if every and (step % every == 0 or step == self._config.training.steps):
            self._tabled.append((index + 1, observed))
        if self._config.output.records:
            rows = self._chosen(step, index + 1, observed)
            with together(self._comm, "recording an update"):
                self._rows.append(rows_of(observed, rows, (step, index + 1), self._texts))

    def _chosen(self, step: int, update: int, observed: ObservedUpdate) -> torch.Tensor:
        """The tokens of this rank that are recorded, int [M]; the update is counted, too."""
        clauses, table = observed.plan.asked_clauses, observed.table
        most = self._config.output.records
        assert table.ids is not None
        touched, wrong = clauses.codes >= 0, observed.spurious == 1
        marked = clauses.in_phase & (touched | wrong)
        kinds = (touched, touched & ~observed.spurious.isnan(), touched & wrong)
        codes, places = clauses.codes.long(), len(clauses.causes)
        fired = [codes[kind].bincount(minlength=places) for kind in kinds]
        sizes = torch.stack([clauses.in_phase.sum(), marked.sum()])
        counts = self._comm.sum(torch.cat([sizes, *fired])).tolist()
        (tokens, recordable), fired = counts[:2], torch.tensor(counts[2:]).view(3, -1).T.tolist()
        rows = marked.nonzero()[:, 0]
        if recordable > most:
            seeds = table.spread(hash_keys((self._config.seed, step, update, table.ids)))
            keys = hash_keys((seeds[rows], table.positions[rows]))
            rows = rows[keys <= kth_smallest(keys, most, self._comm)]
        causes = [[*cause, *n] for cause, n in zip(clauses.causes, fired, strict=True) if n[0]]
        self._counts.append(
            {
                "update": update,
                "tokens": tokens,
                "recordable": recordable,
                "recorded": min(recordable, most),
                "clauses": causes,
            }
        )
        return rows

    def end_step(self, step: int) -> None:
        """Write the record of a step, and its tables if they are due."""
        rows, counts, tabled = self._rows, self._counts, self._tabled
        self._rows, self._counts, self._tabled = [], [], []
        recorded, parts = self._config.output.records > 0, list[Any]()
        if recorded:
            parts = self._comm.gather(pyarrow.concat_tables([SCHEMA.empty_table(), *rows]))
        with together(self._comm, "writing records and tables"):
            if tabled:
                config, ranks = self._config, (self._comm.rank, self._comm.size)
                facts = {  # how the policy was scored
                    "temperature": config.sampling.temperature,
                    "max_tokens": config.sampling.longest_rollout,
                    "selection": config.training.selection,
                    "model": config.model.name or "embedded",
                    "seed": config.seed,
                }
                write_tables(self._folder, step, tabled, ranks, facts)
            if recorded and not self._comm.rank:
                whole = pyarrow.concat_tables(parts).sort_by(_ORDER)
                metadata = {**SCHEMA.metadata, UPDATES_KEY: json.dumps(counts)}
                file = step_file(self._folder, "records", step)
                write_parquet(file, whole.replace_schema_metadata(metadata))


def write_samples(
    run: Path,
    step: int,
    responses: Sequence[Response],
    kept: int,
    comm: ProcessGroup,
    names: Sequence[str] = (),
) -> None:
    """Write the sample table of all ranks: one row per response, with its problem, text and grade.

    Each of several rewards has a column, such as `reward_format`. With several sources, the column
    `source` has their labels. `response` is the last message of a conversation, and the column
    `conversation` has all turns, as JSON. The rows of a rollout stand together, in order; without
    several rows in any, there are no columns `rollout` and `began`. `versions` has (version, number
    of tokens) of each run of tokens that weights of one version drew; null = all tokens are of
    `weight_version`, and there is no such column if all responses are so.

    Args:
        run: the run's folder.
        step: from 1.
        responses: of this rank.
        kept: how many of them, from the first, the step trains on.
        comm: the process group.
        names: of several rewards.
    """
    columns = {
        "id": [r.id for r in responses],
        "rollout": [r.rollout for r in responses],
        "began": [r.began for r in responses],
        "group": [r.group for r in responses],
        "problem": [r.problem.id for r in responses],
        "prompt": [r.problem.prompt for r in responses],
        "answer": [r.problem.answer for r in responses],
        "source": [r.problem.source for r in responses],
        "response": [r.text for r in responses],
        "conversation": [
            json.dumps([*map(described, r.turns)]) if r.turns else None for r in responses
        ],
        "graded_answer": [r.grade.answer for r in responses],
        "correct": [r.grade.correct for r in responses],
        "reason": [r.grade.reason for r in responses],
        "reward": [r.reward for r in responses],
        **{
            f"reward_{name}": [r.grade.rewards[k] for r in responses]
            for k, name in enumerate(names)
        },
        "length": [len(r.tokens) for r in responses],
        "finish": [r.finish for r in responses],
        "weight_version": [r.weight_version for r in responses],
        "versions": [[*map(list, r.versions)] if r.versions[1:] else None for r in responses],
        "kept": [i < kept for i in range(len(responses))],
    }
    parts = comm.gather(columns)
    if not comm.rank:
        whole = {key: [value for part in parts for value in part[key]] for key in columns}
        if not any(whole["began"]):
            del whole["rollout"]
        for name in OPTIONAL:
            if not any(whole[name]):
                del whole[name]
        write_parquet(step_file(run, "samples", step), pyarrow.table(whole))
