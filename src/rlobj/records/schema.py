"""The columns of RUN/records/*.parquet, schema.yaml: one row per recorded token of an update."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pyarrow

from rlobj.base.yaml import packaged_table

SCHEMA_VERSION = 1
"""Of records/ and tables/; readers refuse files of another version."""

VERSION_KEY = "rlobj.schema_version"
"""The key of the version in the metadata of each file."""

CONTEXT = 20
"""Tokens of context on each side of a recorded token."""

Effect = Literal["dropped", "reweighted", "masked", "switched", "penalised"]


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


COLUMNS = {
    name: RecordColumn(**column)
    for name, column in packaged_table("rlobj.records", "schema.yaml").items()
}
"""Name -> column, in the order of the files."""

SCHEMA = pyarrow.schema(
    [(name, pyarrow.type_for_alias(column.type)) for name, column in COLUMNS.items()],
    {VERSION_KEY: str(SCHEMA_VERSION)},
)

OPTIONAL = ("sampler_gap", "spurious")
"""Columns that files of other programs may leave out: null in each row."""
