"""A hub that cannot be reached: the error comes at once, and local copies are read without it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import datasets
import datasets.config
import pytest

from rlobj.base.errors import DataError
from rlobj.data.files import HubSource, first_available, hub_rows


@pytest.fixture
def closed_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a hub that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", address)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return address


def test_an_unreachable_hub_is_an_error_at_once_with_what_to_type(closed_hub: str) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        first_available([HubSource("a/a"), HubSource("b/b")], "numbers", "Give --data-dir DIR.")
    with pytest.raises(DataError, match=f"'c/c'.*{closed_hub} cannot be reached") as other:
        list(hub_rows("c/c", None, "train", fallback=True))
    assert time.monotonic() - began < 10  # one package's retries alone are 23 seconds of sleep
    first, *tried, mirror, instead = str(caught.value).splitlines()
    assert f"{closed_hub} cannot be reached" in first
    assert tried == [f"  {name}[train]: not in the local cache" for name in ("a/a", "b/b")]
    assert instead == "Give --data-dir DIR."
    for text in (mirror, str(other.value)):
        assert "HF_ENDPOINT=URL" in text
        assert "HF_HUB_OFFLINE=1" in text


def test_a_local_copy_is_read_without_the_hub(closed_hub: str, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train.jsonl").write_text('{"problem": "Q?", "answer": "1"}\n')
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
