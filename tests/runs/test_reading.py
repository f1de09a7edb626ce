"""Reading records: what is asked for, and messages that say what is wrong with a folder."""

from __future__ import annotations

import json
import random

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet as parquet
import pytest
import torch
from test_recorder import observed_of, record
from tiny import tiny_config

from rlobj import ConfigError
from rlobj.runs.reading import open_records, read_records
from rlobj.runs.samples import read_samples
from rlobj.runs.tables import read_tables
from rlobj.training import run_training


@pytest.fixture
def run(tmp_path):
    recorder = record(tmp_path)
    for step in (1, 2, 3):
        recorder.update(step, 0, observed_of(seed=step))
        if step == 2:
            recorder.close_file()
    recorder.close_file()
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
    assert open_records(run).count_rows() == len(whole)


def refused(match, *arguments, read=read_records):
    with pytest.raises(ConfigError, match=match):
        list(read(*arguments)) if read is read_tables else read(*arguments)


def test_a_missing_folder_an_empty_one_and_a_wrong_name_are_refused(run, tmp_path):
    refused("nowhere is not a run: there is no such folder", tmp_path / "nowhere")
    refused("has no folder tables; expected the folder of a run", run, read=read_tables)
    (run / "tables").mkdir()
    refused("tables is empty: no step was recorded yet", run, read=read_tables)
    refused(r"no column 'prop'.*prob", run, ["prop"])
    (tmp_path / "old").mkdir()
    refused("has no folder records; expected the folder of a run", tmp_path / "old")


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
    file = run / "records" / "step-000001-rank-0.parquet"
    file.write_bytes(change(file.read_bytes()))
    refused(message, run)


def versions(table):
    bare = table.replace_schema_metadata(None)
    later = pyarrow.array([1] * (len(bare) - 1) + [7], "int32")
    return bare.set_column(bare.schema.get_field_index("schema_version"), "schema_version", later)


def prob_as_text(table):
    texts = table["prob"].cast("string")
    return table.set_column(table.schema.get_field_index("prob"), "prob", texts)


def listed(value):
    """A tensor as numbers, which its text would leave out."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("kind", ["records", "tables", "samples"])
def test_no_flipped_bit_is_read_as_another_number(policy, tmp_path, kind):
    settings = {"training": {"steps": 1}, "output": {"tables_every": 1, "records_share": 0.5}}
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
        "samples": lambda: read_samples(file).to_pydict(),
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


def without_digest(table):
    """As another program would write it."""
    metadata = {k: v for k, v in table.schema.metadata.items() if k != b"rlobj.digest"}
    return table.replace_schema_metadata(metadata)


def test_a_file_whose_columns_were_changed_is_refused(run):
    file = run / "records" / "step-000003-rank-0.parquet"
    parquet.write_table(parquet.read_table(file).drop(["effect"]), file)
    refused("its columns and metadata are not those that it was written with", run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda table: table.replace_schema_metadata({b"rlobj.schema_version": b"2"}),
            "has schema version 2; this rlobj reads version 1",
        ),
        (versions, "has schema version 1, 7; this rlobj reads version 1"),
        (
            lambda table: table.replace_schema_metadata(None).drop(["schema_version"]),
            "was not written by rlobj",
        ),
        (lambda table: table.drop(["effect"]), "has no column 'effect', which is read here"),
        (prob_as_text, r".*its column 'prob' is string; expected float"),
    ],
)
def test_files_of_another_version_or_with_other_columns_are_refused(run, change, message):
    file = run / "records" / "step-000003-rank-0.parquet"
    parquet.write_table(change(without_digest(parquet.read_table(file))), file)
    refused(message, run)


def test_files_of_other_programs_have_their_version_in_a_column(run):
    whole = read_records(run)
    for file in (run / "records").iterdir():
        parquet.write_table(parquet.read_table(file).replace_schema_metadata(None), file)
    assert read_records(run).equals(whole)
    assert read_records(run / "records").equals(whole)
    assert len(read_records(file)) < len(whole)


def replace(run, table):
    """Write a table in place of the files of a record."""
    for file in (run / "records").iterdir():
        file.unlink()
    parquet.write_table(table, run / "records" / "all.parquet")


def rewritten(run, change):
    """The record with changed types, as another program writes it in one file."""
    table = read_records(run)
    columns = {name: change(table[name]) for name in table.column_names}
    replace(run, pyarrow.table(columns))
    return table


def wide(column):
    if pyarrow.types.is_integer(column.type):
        return column.cast("int64")
    return column.cast("double") if pyarrow.types.is_floating(column.type) else column


def text_as(kind):
    return lambda column: kind(column) if pyarrow.types.is_string(column.type) else column


@pytest.mark.parametrize(
    "change",
    [
        wide,
        text_as(lambda column: column.cast("large_string")),
        text_as(lambda column: column.cast("string_view")),
        text_as(lambda column: column.dictionary_encode()),
    ],
    ids=["wide numbers", "large_string", "string_view", "dictionary"],
)
def test_types_of_other_programs_are_read_as_the_documented_ones(run, change):
    whole = rewritten(run, change)
    assert read_records(run).equals(whole)
    some = whole.filter(pc.field("step") == 2).select(["text", "effect"])
    assert read_records(run, ["text", "effect"], steps=[2]).equals(some)


def test_only_columns_that_are_read_must_be_in_a_file(run):
    whole = read_records(run)
    some = whole.drop_columns(["clause", "before", "spurious"])
    replace(run, some)
    assert read_records(run, ["prob", "spurious"]).column("spurious").null_count == len(whole)
    assert read_records(run, ["prob"]).equals(whole.select(["prob"]))
    refused("has no column 'clause', which is read here", run, ["prob", "clause"])


PROBABILITY = "inclusion_probability"


@pytest.mark.parametrize(
    ("name", "value"),
    [*((PROBABILITY, value) for value in (0.0, float("nan"), None, 2.0)), ("step", 0)],
)
def test_numbers_that_no_record_has_are_refused_with_their_row(run, name, value):
    table = read_records(run)
    values = table[name].to_pylist()
    values[1] = value
    replace(run, table.set_column(table.column_names.index(name), name, [values]))
    refused(f"'{name}' is {value} in row 1", run)


def test_a_file_in_the_making_is_not_read(run):
    (run / "records" / ".step-000004-rank-0.parquet.partial").write_bytes(b"half")
    assert set(read_records(run)["step"].to_pylist()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("settings", "steps", "why"),
    [
        ("{records_mb: 0}", 2, "output.records_mb=0 switched the record off"),
        ("{records_share: 0.001}", 0, "no step was recorded yet"),
        (
            "{records_share: 0.001}",
            2,
            r"of 768 tokens in 2 steps no rule touched one, and output.records_share=0.001 chose "
            r"none of the others; .* Use output.records_share=0.1",
        ),
    ],
)
def test_an_empty_record_says_why_and_what_to_type(tmp_path, settings, steps, why):
    (tmp_path / "records").mkdir()
    (tmp_path / "config.resolved.yaml").write_text(f"output: {settings}")
    lines = [{"step": step, "tokens/step": 384} for step in range(1, steps + 1)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    refused(f"records is empty: {why}", tmp_path)
