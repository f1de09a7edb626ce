"""Records as a run writes them, made up by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow

from rlobj.base.arrow import write_parquet
from rlobj.runs.columns import SCHEMA
from rlobj.runs.reading import DESIGN_KEY, Design

DEFAULTS: dict[str, Any] = {
    "schema_version": 1,
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
    "inclusion_probability": 1.0,
    "spurious": None,
}


def dropped(text: str = "7", **columns: Any) -> dict[str, Any]:
    """A token that STAPO's rule dropped."""
    rule = {"effect": "dropped", "clause": "prob < 0.002", "kept": False, "factor": 0.0}
    return {"text": text, "prob": 0.001, **rule, **columns}


def write_records(
    run: Path, rows: list[dict[str, Any]], name: str = "part-0", design: Design | None = None
) -> Path:
    """A file of records of these rows; what a row leaves out is `DEFAULTS`."""
    run.mkdir(exist_ok=True)
    (run / "config.resolved.yaml").touch()
    table = pyarrow.Table.from_pylist([{**DEFAULTS, **row} for row in rows], schema=SCHEMA)
    if design is not None:
        more = {DESIGN_KEY: json.dumps(design._asdict())}
        table = table.replace_schema_metadata({**SCHEMA.metadata, **more})
    file = run / "records" / f"{name}.parquet"
    write_parquet(file, table)
    return file
