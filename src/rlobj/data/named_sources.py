"""Published training sets by name, with their sources and templates. Their reward is `math`.

| name | problems |
|---|---|
| dapo-math-17k | 17,000 competition problems with integer answers |
| deepscaler | 40,000 competition problems |
| gsm8k | 7,473 word problems; 1,319 for testing |
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from rlobj.base.errors import DataError
from rlobj.data.duplicates import DuplicateFilter
from rlobj.data.files import local_copy, read_file, split_files
from rlobj.data.hub import HubSource, first_available, hub_sources
from rlobj.data.layouts import Columns
from rlobj.data.problems import Row
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE


@dataclass(frozen=True)
class NamedSource:
    """A published data set.

    Attributes:
        name: its name in `data.source`.
        description: one line for users.
        hub: split (train, test) -> data sets on the hub, in the order in which they are tried.
        template: the default of `data.template`; `{prompt}` if the questions contain instructions.
        columns: columns without a common name; a copy may lack them.
    """

    name: str
    description: str
    hub: Mapping[str, tuple[HubSource, ...]]
    template: str = MATH_TEMPLATE
    columns: Columns = field(default_factory=Columns)

    def rows(self, split: str, duplicates: DuplicateFilter, *, fallback: bool) -> Iterator[Row]:
        """Yield the rows of a split: of a copy in the folder RLOBJ_DATA_DIR, else from the hub.

        Args:
            split: train or test.
            duplicates: drops duplicate rows.
            fallback: use all of a local copy if its file names do not name a split.

        Raises:
            MissingExtra: there is no local copy, and `datasets` is not installed.
            DataError: there is no such split, or it cannot be loaded.
        """
        copy = local_copy(data_folder(), self.name)
        if copy is not None and (copy.is_dir() or fallback):
            for file in split_files(copy, split, fallback=fallback):
                yield from read_file(file, duplicates)
        elif split in self.hub:
            instead = (
                f"Without the hub, put {self.name}.parquet or {self.name}.jsonl, or a folder "
                f"{self.name}/ with files named train and test, into a folder DIR and set "
                "--data-dir DIR, or RLOBJ_DATA_DIR=DIR in the environment. Or set data.source to "
                "the file."
            )
            _, rows = first_available(self.hub[split], self.name, instead, duplicates)
            yield from rows
        else:
            raise DataError(
                f"{self.name} has no split '{split}', only {' and '.join(self.hub)}. Set "
                "data.test, or hold out a share of it: data.test_fraction=0.1"
            )


def data_folder() -> Path | None:
    """Return the folder in the environment variable RLOBJ_DATA_DIR; None if it is not set.

    Raises:
        DataError: the folder does not exist.
    """
    name = os.environ.get("RLOBJ_DATA_DIR")
    if not name:
        return None
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataError(f"RLOBJ_DATA_DIR={name}: there is no such folder.")
    return folder


_TEMPLATES = {"plain": PLAIN_TEMPLATE, "math": MATH_TEMPLATE}
_FILE = files("rlobj.data") / "named_sources.yaml"


def _source(name: str, hub: Any, template: str = "math", columns: Any = None, **keys: Any) -> Any:
    sources = {part: hub_sources(each) for part, each in hub.items()}
    columns = Columns(**(columns or {}))
    return NamedSource(name, hub=sources, template=_TEMPLATES[template], columns=columns, **keys)


NAMED_SOURCES: dict[str, NamedSource] = {
    name: _source(name, **keys)
    for name, keys in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
}
"""Name -> training set."""
