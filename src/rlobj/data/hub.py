"""Read rows of data sets on the Hugging Face hub.

One request first tests whether the hub can be reached, because the packages that read it repeat
every request for half a minute before they fail. If it cannot be reached, the local cache is used.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import DataError, MissingExtra
from rlobj.data.duplicates import DuplicateFilter
from rlobj.data.files import arrow_rows
from rlobj.data.problems import Row

logger = logging.getLogger(__name__)

ADVICE = "HF_ENDPOINT=URL in the environment sets a mirror; HF_HUB_OFFLINE=1 reads only the cache."


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        id: `owner/name`.
        split: one split; None = all of them, by name.
        configs: the configurations to read, in this order; None = the only one.
    """

    id: str
    split: str | None = "train"
    configs: tuple[str | None, ...] = (None,)

    def __str__(self) -> str:
        configs = "+".join(name for name in self.configs if name)
        split = "" if self.split is None else f"[{self.split}]"
        return f"{self.id}{f'/{configs}' if configs else ''}{split}"


def hub_sources(listed: Iterable[Mapping[str, Any]]) -> tuple[HubSource, ...]:
    """The data sets of a list in a YAML file."""
    with_configs = ({**each, "configs": tuple(each.get("configs", (None,)))} for each in listed)
    return tuple(HubSource(**each) for each in with_configs)


def first_available(
    candidates: Sequence[HubSource],
    name: str,
    instead: str,
    duplicates: DuplicateFilter | None = None,
) -> tuple[HubSource, Iterator[Row]]:
    """Return the first candidate that can be loaded, and its rows.

    If the hub cannot be reached, only the local cache is used.

    Args:
        candidates: data sets, in the order in which they are tried.
        name: name of the data set, for error messages.
        instead: a sentence that says what to give if no candidate can be loaded.
        duplicates: drops duplicate rows.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: no candidate can be loaded; the message has the reason for each.
    """
    source, parts = _load(candidates, name, instead)
    rows = (_rows(str(source), part, duplicates) for part in parts)
    return source, itertools.chain.from_iterable(rows)


def _load(candidates: Sequence[HubSource], name: str, instead: str) -> tuple[HubSource, list[Any]]:
    """The first candidate that can be loaded, and what `datasets` gives for its configurations."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hub", f"Loading {name} from the hub", instead) from None
    unreachable = _unreachable(datasets, *(source.id for source in candidates))
    failures, reachable = [], not unreachable
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
            if unreachable:
                logger.warning("%s: %s comes from the local cache", unreachable, source)
            return source, parts
    why = f"Could not load {name} from the Hugging Face hub: {unreachable}".rstrip()
    raise DataError("\n".join([why, *failures, *([ADVICE] if unreachable else []), instead]))


def hub_rows(
    identifier: str,
    name: str | None,
    split: str,
    *,
    fallback: bool,
    duplicates: DuplicateFilter | None = None,
) -> Iterator[Row]:
    """Yield the rows of one split of a data set on the hub, or of a local copy.

    Args:
        identifier: `owner/name`, or the folder of a copy.
        name: configuration of the data set; None = the only one.
        split: name of the split.
        fallback: if the data set has a single split, use it whatever its name is.
        duplicates: drops duplicate rows.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: the data set cannot be loaded, or has no such split.
    """
    stem = identifier.rpartition("/")[2]
    instead = (
        "Without the hub, give a local copy: the folder of the data set, or a file such as "
        f"{stem}.jsonl, {stem}.parquet or {stem}.csv with the columns problem and answer."
    )
    _, [parts] = _load([HubSource(identifier, None, (name,))], f"'{identifier}'", instead)
    if split not in parts:
        if not (fallback and len(parts) == 1):
            raise DataError(
                f"'{identifier}' has no split '{split}'. It has: {', '.join(parts)}. Set "
                "data.split, data.test or data.test_fraction accordingly."
            )
        (split,) = parts
    yield from _rows(f"{identifier}[{split}]", parts[split], duplicates)


def _rows(name: str, part: Any, duplicates: DuplicateFilter | None) -> Iterator[Row]:
    tables = part.with_format("arrow").iter(batch_size=8192)
    return arrow_rows(name, (batch for table in tables for batch in table.to_batches()), duplicates)


def _unreachable(datasets: Any, *identifiers: str) -> str:
    """Return why the hub cannot be reached; empty if it can be, or is not needed.

    Any response counts. The timeout is `HF_HUB_ETAG_TIMEOUT`, 10 seconds by default.
    """
    if datasets.config.HF_HUB_OFFLINE or all(Path(name).exists() for name in identifiers):
        return ""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # the type depends on the HTTP package
        return f"{constants.ENDPOINT} cannot be reached ({' '.join(str(error).split())[:200]})"
    return ""


@contextmanager
def _offline(datasets: Any, wanted: bool) -> Iterator[None]:
    """Use only the cache if `wanted`."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
