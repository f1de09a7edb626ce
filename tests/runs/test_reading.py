"""Reading records: what is asked for, and messages that say what is wrong with a folder."""

from __future__ import annotations

import random

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
import torch
from test_recorder import observed_of, record
from tiny import tiny_config

from rlobj import ConfigError
from rlobj.runs.reading import read_records
from rlobj.runs.tables import read_tables
from rlobj.training import run_training


@pytest.fixture
def run(tmp_path):
    recorder = record(tmp_path)
    for step in (1, 2, 3):
        recorder.update(step, 0, observed_of(seed=step))
        recorder.end_step(step)
    return tmp_path


def test_columns_steps_and_rows_can_be_chosen(run):
    whole = read_records(run)
    assert set(whole["step"].to_pylist()) == {1, 2, 3}
    dropped = read_records(
        run, ["text", "step"], steps=[2, 3], where=pc.field("effect") == "dropped"
    )
    assert dropped.column_names == ["text", "step"]
    assert len(dropped) == sum(
        row["effect"] == "dropped" and row["step"] > 1 for row in whole.to_pylist()
    )


def test_a_record_without_a_column_is_refused(run):
    file = run / "records" / "step-000002.parquet"
    table = parquet.read_table(file)
    metadata = {key: value for key, value in table.schema.metadata.items() if b"digest" not in key}
    parquet.write_table(table.drop_columns(["prob"]).replace_schema_metadata(metadata), file)
    refused("cannot be read", run)


def refused(match, *arguments, read=read_records):
    with pytest.raises(ConfigError, match=match):
        list(read(*arguments)) if read is read_tables else read(*arguments)


def test_a_missing_folder_an_empty_one_and_a_wrong_name_are_refused(run, tmp_path):
    refused("nowhere is not a run: there is no such folder", tmp_path / "nowhere")
    why = "no step has one yet, or output.tables_every is 0"
    refused(f"has no tables: {why}", run, read=read_tables)
    refused(r"no column 'prop'.*prob", run, ["prop"])


def damaged(content: bytes) -> bytes:
    return content[:200] + bytes(255 - byte for byte in content[200:4000]) + content[4000:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[: len(content) // 2], "parquet is not a whole Parquet file"),
        (lambda content: b"", "parquet is not a whole Parquet file"),
        (damaged, r"(?s)cannot be read: .* A file is damaged"),
    ],
    ids=["cut", "empty", "damaged pages"],
)
def test_damaged_files_are_refused(run, change, message):
    file = run / "records" / "step-000001.parquet"
    file.write_bytes(change(file.read_bytes()))
    refused(message, run)


def listed(value):
    """A tensor as numbers, which its text would leave out."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", ["records", "tables"])
def test_no_flipped_bit_is_read_as_another_number(policy, tmp_path, kind):
    settings = {"training": {"steps": 1}, "output": {"tables_every": 1}}
    run_training(tiny_config(policy, "stapo", **settings), tmp_path)
    [file], generator = (tmp_path / kind).iterdir(), random.Random(0)
    readers = {
        "records": lambda: read_records(file).to_pydict(),
        "tables": lambda: [
            (
                {name: listed(value) for name, value in vars(update.table).items()},
                {name: listed(value) for name, value in update.table.columns.items()},
                (listed(update.weights), update.sequences, update.state, update.facts),
            )
            for update in read_tables(file)
        ],
    }
    whole, content = str(readers[kind]()), file.read_bytes()
    refusals = 0
    for _ in range(300):
        flipped = bytearray(content)
        flipped[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        file.write_bytes(flipped)
        try:
            assert str(readers[kind]()) == whole
        except (ConfigError, pyarrow.ArrowException, OSError):
            refusals += 1
    assert refusals > 150


def test_a_file_whose_columns_were_changed_is_refused(run):
    file = run / "records" / "step-000003.parquet"
    parquet.write_table(parquet.read_table(file).drop(["effect"]), file)
    refused("its columns and metadata are not those that it was written with", run)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({b"rlobj.schema_version": b"2"}, "has schema version 2, and this rlobj reads version 3"),
        (None, "was not written by rlobj"),
    ],
)
def test_files_of_another_version_or_program_are_refused(run, metadata, message):
    file = run / "records" / "step-000003.parquet"
    parquet.write_table(parquet.read_table(file).replace_schema_metadata(metadata), file)
    refused(message, run)


def test_a_file_in_the_making_is_not_read(run):
    (run / "records" / ".step-000004.parquet.partial").write_bytes(b"half")
    assert set(read_records(run)["step"].to_pylist()) == {1, 2, 3}
