"""The tables and the pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(found: Mapping[str, Any], out: Path) -> None:
    """Write mechanism.md and the pictures."""
