"""Records as a run writes them, made up by tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow

from rlobj.base.arrow import write_parquet
from rlobj.runs.columns import SCHEMA
from rlobj.runs.layout import step_file
from rlobj.runs.reading import UPDATES_KEY

DEFAULTS: dict[str, Any] = {
    "step": 1,
    "update": 1,
    "response": 0,
    "group": 0,
    "position": 0,
    "token": 7,
    "text": "7",
    "kept": True,
    "weight": 0.5,
    "factor": 1.0,
    "effect": None,
    "clause": None,
    "advantage": 0.5,
    "reward": 1.0,
    "prob": 0.25,
    "old_prob": 0.25,
    "ratio": 1.0,
    "entropy": 1.0,
    "gradient_norm": 0.5,
    "entropy_sensitivity": 0.0,
    "sampler_gap": 0.0,
    "before": "2+",
    "after": "=9",
    "spurious": None,
}


def dropped(text: str = "7", **columns: Any) -> dict[str, Any]:
    """A token that STAPO's rule dropped."""
    rule = {"effect": "dropped", "clause": "prob < 0.002", "kept": False, "factor": 0.0}
    return {"text": text, "prob": 0.001, **rule, **columns}


def write_records(
    run: Path, rows: list[dict[str, Any]], tokens: Mapping[int, int] | None = None, more: int = 0
) -> Path:
    """Files of records of these rows; what a row leaves out is `DEFAULTS`.

    Args:
        run: the folder of the run.
        rows: of the record.
        tokens: the number of all tokens of steps; by default the number of their rows.
        more: so many tokens were dropped in each step beside the rows.

    Returns:
        The file of the newest step.
    """
    run.mkdir(exist_ok=True)
    (run / "config.resolved.yaml").touch()
    every = sorted(({**DEFAULTS, **row} for row in rows), key=lambda row: row["step"])
    steps: dict[int, list[Any]] = {}
    steps |= {step: [*of_step] for step, of_step in groupby(every, lambda row: row["step"])}
    for step in {**steps, **(tokens or {})}:
        some = steps.get(step, [])
        causes: dict[tuple[Any, Any], list[int]] = {}
        for row in some:
            counts = causes.setdefault((row["effect"], row["clause"]), [0, 0, 0])
            judged = row["spurious"]
            marks = (1, judged is not None, bool(judged))
            counts[:] = (a + int(b) for a, b in zip(counts, marks, strict=True))
        if more:
            causes.setdefault(("dropped", "prob < 0.002"), [0, 0, 0])[0] += more
        update = {
            "update": 1,
            "tokens": (tokens or {}).get(step, len(some) + more),
            "recordable": len(some) + more,
            "recorded": len(some),
            "clauses": [[*cause, *counts] for cause, counts in causes.items() if cause[0]],
        }
        metadata = {**SCHEMA.metadata, UPDATES_KEY: json.dumps([update])}
        table = pyarrow.Table.from_pylist(some, SCHEMA).replace_schema_metadata(metadata)
        write_parquet(step_file(run, "records", step), table)
    return step_file(run, "records", max({**steps, **(tokens or {})}))
