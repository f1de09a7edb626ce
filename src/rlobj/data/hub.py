"""Rows of data sets on the Hugging Face hub; a name may have several of them to try in turn.

The hub is asked for a sign of life first: the packages that read it repeat every question for half
a minute before they call it out of reach. Where it is, the local cache has what was read before.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import DataError, MissingExtra
from rlobj.data.files import Row, arrow_rows
from rlobj.data.repeats import Repeats

__all__ = ["HubSource", "first_available", "hub_rows"]

logger = logging.getLogger(__name__)

MIRROR = "HF_ENDPOINT=URL in the environment names a mirror; HF_HUB_OFFLINE=1 asks the cache alone."


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

    Where the hub is out of reach, or falls silent, they are looked for in the local cache only.

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
    silence = _silence(datasets, *(source.id for source in candidates))
    failures, reachable = [], not silence
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
            if silence:
                logger.warning("%s: %s comes from the local cache", silence, source)
            return source, itertools.chain(*(_rows(str(source), part, repeats) for part in parts))
    why = f"Could not load {name} from the Hugging Face hub:"
    lines = [f"{why} {silence}" if silence else why, *failures, *([MIRROR] if silence else [])]
    raise DataError("\n".join([*lines, instead]))


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
    silence = _silence(datasets, identifier)
    try:
        with _offline(datasets, bool(silence)):
            parts: Any = datasets.load_dataset(identifier, name)
    except Exception as error:
        stem = identifier.rpartition("/")[2]
        reason = f"{type(error).__name__}: {error}"
        if silence:
            reason = f"{silence}, and it is not in the local cache\n{MIRROR}"
        raise DataError(
            f"Could not load '{identifier}' from the Hugging Face hub: {reason}\n"
            "Without the hub, give a local copy: the folder of the data set, or a file such as "
            f"{stem}.jsonl, {stem}.parquet or {stem}.csv with the columns problem and answer."
        ) from error
    if silence:
        logger.warning("%s: %s comes from the local cache", silence, identifier)
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


def _silence(datasets: Any, *identifiers: str) -> str:
    """Why the hub cannot be asked for these, in words; empty where it can, or need not be.

    Any answer is a sign of life. A hub that takes long to connect to is waited for as long as
    `HF_HUB_ETAG_TIMEOUT` says, 10 seconds where it says nothing.
    """
    if datasets.config.HF_HUB_OFFLINE or all(Path(name).exists() for name in identifiers):
        return ""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of whichever HTTP package is behind it
        return f"{constants.ENDPOINT} cannot be reached ({' '.join(str(error).split())[:200]})"
    return ""


@contextmanager
def _offline(datasets: Any, wanted: bool) -> Iterator[None]:
    """The cache alone, where wanted."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
