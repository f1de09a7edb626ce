"""The hub, through local copies of data sets, and their splits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from data_files import numbered, verl_row, write_parquet

from rlobj.base.errors import DataError
from rlobj.data.hub import HubSource, hub_rows, loaded

pytestmark = pytest.mark.usefixtures("hub_cache")


@pytest.fixture
def hub_copy(tmp_path):
    """A folder as the hub stores it, read by the same `datasets.load_dataset` call."""
    rows = [verl_row(f"Question {i}?", str(i), f"id-{i}") for i in range(3)]
    write_parquet(tmp_path / "copy" / "train-00000-of-00001.parquet", rows * 2)
    return tmp_path / "copy"


def test_single_split_is_used_only_with_fallback(hub_copy):
    rows = list(hub_rows(str(hub_copy), None, "train", fallback=True))
    assert [row["extra_info"]["index"] for _, row in rows] == ["id-0", "id-1", "id-2"] * 2
    assert len(list(hub_rows(str(hub_copy), None, "test", fallback=True))) == 6
    with pytest.raises(DataError, match="has the splits train, not 'test'"):
        list(hub_rows(str(hub_copy), None, "test", fallback=False))
    write_parquet(hub_copy / "test-00000-of-00001.parquet", [verl_row("?", "1", "id")])
    with pytest.raises(DataError, match=r"not 'dev'\. Use data\.split=train"):
        list(hub_rows(str(hub_copy), None, "dev", fallback=True))


def test_splits_can_be_joined(tmp_path):
    for name, count in (("train", 2), ("test", 3)):
        write_parquet(tmp_path / "set" / f"{name}.parquet", numbered(count))
    source = HubSource(str(tmp_path / "set"), split="train+test")
    assert len(list(loaded(source))) == 5
    assert str(replace(source, id="owner/set", config="a")) == "owner/set/a[train+test]"
