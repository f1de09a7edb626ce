"""Read rows of published data sets: local copies, else the Hugging Face hub or its cache."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import Argument, DataError, MissingExtra, Setting, reported
from rlobj.base.paths import path_of
from rlobj.data.files import arrow_rows, local_copy, read_file, split_files
from rlobj.data.problems import Row

ADVICE = (
    "Without the hub, give a file or a folder; RLOBJ_DATA_DIR=DIR names a folder of published "
    "data sets. HF_ENDPOINT=URL sets a mirror; HF_HUB_OFFLINE=1 reads only the cache."
)


def no_test_split(what: str) -> DataError:
    """The error for problems without a test split, with what to type."""
    fraction = Setting("data.test_fraction", 0.1)
    return DataError(f"{what}. Use ", Setting("data.test", "FILE"), ", or hold out: ", fraction)


@dataclass(frozen=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        id: `owner/name`.
        split: one split; None = all of them, by name.
        config: the configuration to read; None = the only one.
    """

    id: str
    split: str | None = "train"
    config: str | None = None

    def __str__(self) -> str:
        split = "" if self.split is None else f"[{self.split}]"
        return f"{self.id}{f'/{self.config}' if self.config else ''}{split}"


def published_rows(
    name: str,
    source: HubSource | None,
    split: str,
    *,
    fallback: bool,
    data_dir: Path | None = None,
) -> tuple[str, Iterator[Row]]:
    """Return where a published data set is read from, and the rows of a split.

    Args:
        name: its name; the name of a copy.
        source: the data set on the hub that has this split; None = there is none.
        split: train or test.
        fallback: use all of a copy if its file names do not name a split.
        data_dir: the folder that has a copy. Default: the folder in the environment variable
            RLOBJ_DATA_DIR, if it has one, and then the hub.

    Raises:
        MissingExtra: there is no copy, and `datasets` is not installed.
        DataError: there is no such folder, file or split, or it cannot be loaded.
    """
    if folder := data_dir or os.environ.get("RLOBJ_DATA_DIR"):
        folder = path_of(folder)
        if not folder.is_dir():
            typed = Argument("data_dir", folder) if data_dir else f"RLOBJ_DATA_DIR={folder}"
            raise DataError(typed, ": there is no such folder")
        copy = local_copy(folder, name)
        if copy is not None and (copy.is_dir() or fallback):
            files = split_files(copy, split, fallback=fallback)
            return str(copy), (row for file in files for row in read_file(file))
    if data_dir is not None:
        raise DataError(f"{folder} has no {name}.jsonl (.parquet, .json, .csv) and no {name}/")
    if source is None:
        raise no_test_split(f"{name} has no split '{split}'")
    return str(source), _rows(str(source), loaded(source))


def loaded(source: HubSource) -> Any:
    """Return what `datasets` gives for a data set on the hub.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: it cannot be loaded.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "hub", f"Loading {source} from the hub", ADVICE) from None
    what = f"{source} cannot be loaded from the Hugging Face hub"
    with reported(DataError, what, Exception, advice=f"\n{ADVICE}"):  # errors of many libraries
        return datasets.load_dataset(source.id, source.config, split=source.split)


def hub_rows(identifier: str, name: str | None, split: str, *, fallback: bool) -> Iterator[Row]:
    """Yield the rows of one split of a data set on the hub, or of a local copy.

    Args:
        identifier: `owner/name`, or the folder of a copy.
        name: configuration of the data set; None = the only one.
        split: name of the split.
        fallback: if the data set has a single split, use it whatever its name is.

    Raises:
        MissingExtra: `datasets` is not installed.
        DataError: the data set cannot be loaded, or has no such split.
    """
    parts = loaded(HubSource(identifier, None, name))
    if split not in parts:
        if not (fallback and len(parts) == 1):
            what = f"'{identifier}' has the splits {', '.join(parts)}, not '{split}'"
            if split == "test":
                raise no_test_split(what)
            raise DataError(f"{what}. Use ", Setting("data.split", next(iter(parts))))
        (split,) = parts
    yield from _rows(f"{identifier}[{split}]", parts[split])


def _rows(name: str, part: Any) -> Iterator[Row]:
    tables = part.with_format("arrow").iter(batch_size=8192)
    return arrow_rows(name, (batch for table in tables for batch in table.to_batches()))
