"""The record of a run: what its updates did to every token.

    recorder   RUN/records/: the tokens that a rule touched and a sample of the others
    tables     RUN/tables/: whole updates of some steps, to plan them again
    reading    read both
    schema     the columns of records/

Names are loaded when they are first used, because pyarrow takes a moment to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlobj.base.lazy import load

if TYPE_CHECKING:
    from rlobj.records.reading import open_records, read_records
    from rlobj.records.tables import UpdateTable, read_tables

_HOMES = {
    "UpdateTable": "rlobj.records.tables",
    "open_records": "rlobj.records.reading",
    "read_records": "rlobj.records.reading",
    "read_tables": "rlobj.records.tables",
}

__all__ = ["UpdateTable", "open_records", "read_records", "read_tables"]


def __getattr__(name: str) -> Any:
    return load(__name__, _HOMES, name)
