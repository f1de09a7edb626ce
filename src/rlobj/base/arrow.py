"""pyarrow: its functions, and files of its tables.

Type checkers do not know pyarrow.compute, whose functions pyarrow makes on import.

Importing this takes a moment. Modules that must be light import it where they need it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from rlobj.base.files import write_whole

pc: Any = importlib.import_module("pyarrow.compute")


def write_parquet(path: Path, table: Any) -> None:
    """Write a file, which appears whole or not at all.

    Raises:
        RunError: the disk refused.
    """
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content, compression="zstd")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content.getvalue().to_pybytes())
