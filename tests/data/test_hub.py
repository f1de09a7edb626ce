"""The hub, through local copies of data sets: splits, candidates in turn, and no connection."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

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


def test_only_the_cache_is_used_after_a_connection_error(monkeypatch):
    asked = []

    def load(identifier, config, split):
        asked.append((identifier, datasets.config.HF_HUB_OFFLINE))
        raise ConnectionError("no route") if len(asked) == 1 else FileNotFoundError("not cached")

    monkeypatch.setattr("rlobj.data.hub._unreachable", lambda *_: "")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=r"a/a\[train\]: ConnectionError: no route\n.*local cache"):
        first_available([HubSource("a/a"), HubSource("b/b")], "numbers", "")
    assert asked == [("a/a", False), ("b/b", True)]
    assert datasets.config.HF_HUB_OFFLINE is False


# ---- a hub that cannot be reached ---------------------------------------------------------------


@pytest.fixture
def closed_hub(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a hub that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    return address


def test_an_unreachable_hub_is_an_error_at_once_with_what_to_type(closed_hub, monkeypatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("a retry"))
    with pytest.raises(DataError) as caught:
        first_available([HubSource("a/a"), HubSource("b/b")], "numbers", "Give --data-dir DIR.")
    with pytest.raises(DataError, match=f"'c/c'.*{closed_hub} cannot be reached") as other:
        list(hub_rows("c/c", None, "train", fallback=True))
    first, *tried, mirror, instead = str(caught.value).splitlines()
    assert f"{closed_hub} cannot be reached" in first
    assert tried == [f"  {name}[train]: not in the local cache" for name in ("a/a", "b/b")]
    assert instead == "Give --data-dir DIR."
    for text in (mirror, str(other.value)):
        assert "HF_ENDPOINT=URL" in text
        assert "HF_HUB_OFFLINE=1" in text


def test_a_local_copy_is_read_without_the_hub(closed_hub: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "copy" / "train.parquet", numbered(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.utils.get_session", lambda: pytest.fail("asked"))
        assert len(list(hub_rows(str(tmp_path / "copy"), None, "train", fallback=True))) == 1


def test_the_cache_is_read_without_the_hub(closed_hub, monkeypatch, caplog):
    part = datasets.Dataset.from_list([{"problem": "Q?", "answer": "1"}])
    asked = []

    def cached(identifier: str, config: str | None, split: str) -> datasets.Dataset:
        asked.append((identifier, datasets.config.HF_HUB_OFFLINE))
        return part

    monkeypatch.setattr(datasets, "load_dataset", cached)
    assert first_available([HubSource("a/a")], "numbers", "")[0].id == "a/a"
    assert asked == [("a/a", True)]
    assert "comes from the local cache" in caplog.text


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
