"""RUN/samples/: the responses of each step, as Parquet."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow

from rlobj.base.arrow import write_parquet
from rlobj.conversations.grading import described
from rlobj.ranks import ProcessGroup
from rlobj.runs.layout import sample_table
from rlobj.samplers import Response

OPTIONAL = ("source", "conversation")
"""Columns that a table lacks if no response has a value."""


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
    `conversation` has all turns, as JSON.

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
        "kept": [i < kept for i in range(len(responses))],
    }
    parts = comm.gather(columns)
    if not comm.rank:
        whole = {key: [value for part in parts for value in part[key]] for key in columns}
        for name in OPTIONAL:
            if not any(whole[name]):
                del whole[name]
        write_parquet(sample_table(run, step), pyarrow.table(whole))
