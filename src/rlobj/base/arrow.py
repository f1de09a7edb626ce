"""pyarrow: its functions, and files of its tables.

Type checkers do not know pyarrow.compute, whose functions pyarrow makes on import.

Importing this takes a moment. Modules that must be light import it where they need it.
"""

import hashlib
import importlib
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from rlobj.base.files import write_whole

DAMAGED = (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError)
"""What reading a damaged file raises."""
pc: Any = importlib.import_module("pyarrow.compute")


_DIGEST = b"rlobj.digest"


def _digest(schema: Any) -> bytes:
    """Of the names of columns and the metadata, which are in no page."""
    metadata = {key: value for key, value in (schema.metadata or {}).items() if key != _DIGEST}
    described = repr((schema.names, sorted(metadata.items())))
    return hashlib.sha256(described.encode()).hexdigest()[:16].encode()


def read_schema(path: Path) -> Any:
    """The schema of a file, with its metadata.

    Raises:
        OSError, pyarrow.ArrowException: it is not there, or does not have its digest.
    """
    schema = parquet.read_schema(path)
    if (schema.metadata or {}).get(_DIGEST, digest := _digest(schema)) != digest:
        raise OSError("its columns and metadata are not those that it was written with")
    return schema


def read_parquet(path: Path, **options: Any) -> Any:
    """The table of a file, with the options of `pyarrow.parquet.read_table`.

    Raises:
        OSError, pyarrow.ArrowException: it is not there, or a page does not have its checksum.
    """
    return parquet.read_table(path, page_checksum_verification=True, **options)


def write_parquet(path: Path, table: Any) -> None:
    """Write a file, which appears whole or not at all.

    Raises:
        RunError: the disk refused.
    """
    metadata = {**(table.schema.metadata or {}), _DIGEST: _digest(table.schema)}
    table, content = table.replace_schema_metadata(metadata), pyarrow.BufferOutputStream()
    parquet.write_table(table, content, compression="zstd", write_page_checksum=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue().to_pybytes())
