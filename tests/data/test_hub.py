"""The hub, through local copies of data sets: splits and candidates in turn."""

from __future__ import annotations

from dataclasses import replace

import datasets
import pytest
from data_files import numbered, verl_row, write_parquet

from rlobj.base.errors import DataError
from rlobj.data import Columns
from rlobj.data.duplicates import DuplicateFilter
from rlobj.data.hub import HubSource, first_available, hub_rows

pytestmark = pytest.mark.usefixtures("hub_cache")


@pytest.fixture
def hub_copy(tmp_path):
    """A folder as the hub stores it, read by the same `datasets.load_dataset` call."""
    rows = [verl_row(f"Question {i}?", str(i), f"id-{i}") for i in range(3)]
    write_parquet(tmp_path / "copy" / "train-00000-of-00001.parquet", rows * 2)
    return tmp_path / "copy"


def test_single_split_is_used_only_with_fallback(hub_copy):
    """And repeated rows are left out if a filter is given."""
    duplicates = DuplicateFilter(Columns())
    rows = list(hub_rows(str(hub_copy), None, "train", fallback=True, duplicates=duplicates))
    assert [row["extra_info"]["index"] for _, row in rows] == ["id-0", "id-1", "id-2"]
    assert len(list(hub_rows(str(hub_copy), None, "test", fallback=True))) == 6
    with pytest.raises(DataError, match=r"has no split 'test'\. It has: train"):
        list(hub_rows(str(hub_copy), None, "test", fallback=False))


# ---- candidates --------------------------------------------------------------------------------


def test_splits_can_be_joined(tmp_path):
    for name, count in (("train", 2), ("test", 3)):
        write_parquet(tmp_path / "set" / f"{name}.parquet", numbered(count))
    source = HubSource(str(tmp_path / "set"), split="train+test")
    assert len(list(first_available([source], "numbers", "")[1])) == 5
    assert str(replace(source, id="owner/set", config="a")) == "owner/set/a[train+test]"


def test_an_error_has_the_reason_of_each_candidate_and_what_to_type(monkeypatch):
    def load(identifier, config, split):
        raise ConnectionError(f"no route to {identifier}")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError) as caught:
        first_available([HubSource("a/a"), HubSource("b/b")], "numbers", "Set RLOBJ_DATA_DIR.")
    _, first, second, mirror, instead = str(caught.value).splitlines()
    assert first == "  a/a[train]: ConnectionError: no route to a/a"
    assert second == "  b/b[train]: ConnectionError: no route to b/b"
    assert "HF_ENDPOINT=URL" in mirror
    assert instead == "Set RLOBJ_DATA_DIR."


# ---- duplicates --------------------------------------------------------------------------------


def batch_of(rows):
    import pyarrow

    return pyarrow.RecordBatch.from_pylist(rows)


def test_duplicates_are_found_across_batches_and_in_slices():
    rows = [verl_row(f"Question {i % 3}?", str(i % 3), "x") for i in range(12)]
    whole = batch_of(rows)
    duplicates = DuplicateFilter(Columns())
    assert list(duplicates.new_rows(whole.slice(4, 2))) == [0, 1]  # questions 1 and 2
    assert list(duplicates.new_rows(whole.slice(0, 4))) == [0]
    assert list(duplicates.new_rows(whole.slice(6, 6))) == []
    assert duplicates.dropped == 3 + 6


def test_rows_with_another_answer_message_or_column_are_not_duplicates():
    rows = [{"problem": "A", "answer": answer, "id": 0} for answer in ("1", "2", "1")]
    assert list(DuplicateFilter(Columns()).new_rows(batch_of(rows))) == [0, 1]
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "A"}
    rows = [{"prompt": prompt, "answer": 1} for prompt in ([user], [system, user], [user])]
    assert list(DuplicateFilter(Columns()).new_rows(batch_of(rows))) == [0, 1]
    rows = [{"problem": problem, "other": "B", "answer": 1} for problem in "AC"]
    assert list(DuplicateFilter(Columns(prompt="other")).new_rows(batch_of(rows))) == [0]
    assert list(DuplicateFilter(Columns(prompt="gone")).new_rows(batch_of(rows))) == [0, 1]
    unknown = [{"text": "A", "gold": "1"}] * 2  # left to the reader
    assert list(DuplicateFilter(Columns()).new_rows(batch_of(unknown))) == [0, 1]
