"""Small data files in published layouts, and folders that stand in for the hub."""

from __future__ import annotations

import json

import pyarrow
from pyarrow import parquet


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def numbered(count):
    return [{"problem": f"What is {i}?", "answer": str(i)} for i in range(count)]


def verl_row(question, gold, index):
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": index, "split": "test"},
    }
