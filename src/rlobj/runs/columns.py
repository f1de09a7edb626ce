"""The columns of RUN/records/*.parquet, schema.yaml: one row per recorded token of an update."""

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow

from rlobj.base.errors import ConfigError
from rlobj.base.yaml import packaged_table

SCHEMA_VERSION = 3
"""Of records/ and tables/; readers refuse files of another version."""
VERSION_KEY = "rlobj.schema_version"
"""The key of the version in the metadata of each file."""
CONTEXT = 20
"""Tokens of context on each side of a recorded token."""


class RecordColumn(NamedTuple):
    """A column of the record.

    Attributes:
        type: a type name of pyarrow.
        meaning: one sentence.
        unit: nats, a count, ...; "" = none.
    """

    type: str
    meaning: str
    unit: str = ""


_TABLE = packaged_table("rlobj.runs", "schema.yaml")
COLUMNS = {name: RecordColumn(**column) for name, column in _TABLE.items()}
"""Name -> column, in the order of the files."""
_TYPES = {name: pyarrow.type_for_alias(column.type) for name, column in COLUMNS.items()}
SCHEMA = pyarrow.schema(_TYPES, {VERSION_KEY: str(SCHEMA_VERSION)})


def refuse_recorded(names: Iterable[str]) -> None:
    """Check that columns of a user's own have other names than those of the record.

    Raises:
        ConfigError: one has the same name.
    """
    for name in COLUMNS.keys() & {*names}:
        raise ConfigError(f"columns.{name}: the record has this column; take another name")
