"""Rows of data sets on the Hugging Face hub; a name may have several of them to try in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlobj.data.files import Row, arrow_rows
from rlobj.data.repeats import Repeats
from rlobj.errors import DataError, MissingExtra

__all__ = ["HubSource", "first_available", "hub_rows"]


@dataclass(frozen=True)
class HubSource:
    """Where on the hub a named data set lies.

    Attributes:
        id: `owner/name`.
        split: which split, or several: `3ppl+4ppl`.
        configs: the configurations to read one after the other; None = the only one.
    """

    id: str
    split: str = "train"
    configs: tuple[str | None, ...] = (None,)

    def __str__(self) -> str:
        configs = "+".join(name for name in self.configs if name)
        return f"{self.id}{f'/{configs}' if configs else ''}[{self.split}]"


def first_available(
    candidates: Sequence[HubSource], name: str, instead: str, repeats: Repeats | None = None
) -> tuple[HubSource, Iterator[Row]]:
    """The first of the candidates that can be had, and its rows.

    Once the hub is out of reach, the rest are looked for in the local cache only.

    Args:
        candidates: in the order to try.
        name: what they all are, for errors.
        instead: what to give where none can be had, a sentence.
        repeats: drops rows that repeat an earlier one.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: none can be had; each with its reason.
    """
    datasets = _datasets(f"Loading {name} from the hub", instead)
    failures, reachable = [], True
    for source in candidates:
        try:
            with _offline(datasets, not reachable):
                parts = [
                    datasets.load_dataset(source.id, config, split=source.split)
                    for config in source.configs
                ]
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            failures.append(f"  {source}: {text[:200] if reachable else 'not in the local cache'}")
            reachable = reachable and not isinstance(error, ConnectionError)
        else:
            return source, itertools.chain(*(_rows(str(source), part, repeats) for part in parts))
    tried = "\n".join(failures)
    raise DataError(f"Could not load {name} from the Hugging Face hub:\n{tried}\n{instead}")


def hub_rows(
    identifier: str,
    name: str | None,
    split: str,
    *,
    fallback: bool,
    repeats: Repeats | None = None,
) -> Iterator[Row]:
    """Rows of one split of a data set on the Hugging Face hub, or of a local copy of one.

    With `fallback`, a data set that has a single split gives it, whatever its name.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: the data set cannot be had, or has no such split.
    """
    datasets = _datasets(f"Loading '{identifier}' from the hub")
    try:
        parts: Any = datasets.load_dataset(identifier, name)
    except Exception as error:
        stem = identifier.rpartition("/")[2]
        raise DataError(
            f"Could not load '{identifier}' from the Hugging Face hub: "
            f"{type(error).__name__}: {error}\nWithout the hub, give a local copy: the folder of "
            f"the data set, or a file such as {stem}.jsonl, {stem}.parquet or {stem}.csv with the "
            "columns problem and answer."
        ) from error
    if split not in parts:
        if not (fallback and len(parts) == 1):
            raise DataError(
                f"'{identifier}' has no split '{split}'. It has: {', '.join(parts)}. Set "
                "data.split, data.test or data.test_fraction accordingly."
            )
        (split,) = parts
    yield from _rows(f"{identifier}[{split}]", parts[split], repeats)


def _datasets(purpose: str, instead: str = "") -> Any:
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hub", purpose, instead) from None
    return datasets


def _rows(name: str, part: Any, repeats: Repeats | None) -> Iterator[Row]:
    tables = part.with_format("arrow").iter(batch_size=8192)
    return arrow_rows(name, (batch for table in tables for batch in table.to_batches()), repeats)


@contextmanager
def _offline(datasets: Any, wanted: bool) -> Iterator[None]:
    """The cache alone, where wanted: a hub that is out of reach costs 20 seconds an attempt."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
