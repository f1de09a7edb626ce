"""The manifest of a checkpoint: size in bytes and CRC-32 of every file."""

import json
import zlib
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.base.files import parse_json

_NAME = "manifest.json"
_BLOCK = 1 << 24  # bytes read at a time
_READ: set[tuple[str, int, int, int]] = set()
"""Files that this process has read and found intact: path, time of the last change, size, CRC."""


def write_manifest(place: Path) -> None:
    """Write the manifest of the files in a folder."""
    manifest = place / _NAME
    files = sorted(file for file in place.rglob("*") if file.is_file() and file != manifest)
    listed = {str(file.relative_to(place)): [file.stat().st_size, _crc(file)] for file in files}
    manifest.write_text(json.dumps(listed, indent=1), encoding="utf-8")


def require_sound(checkpoint: Path, within: str = "") -> None:
    """Check the files of a checkpoint, or of a folder `within` it.

    Raises:
        ConfigError: one is damaged.
    """
    if (problem := damage(checkpoint, within)) is not None:
        raise ConfigError(f"{checkpoint} is damaged ({problem}): name another checkpoint")


def damage(checkpoint: Path, within: str = "") -> str | None:
    """Describe the first damaged file of a checkpoint; None if all files are intact.

    Args:
        checkpoint: its folder.
        within: only files in this folder of it.
    """
    try:
        listed = parse_json((checkpoint / _NAME).read_bytes())
        for name, (size, crc) in listed.items():
            file = checkpoint / name
            if not name.startswith(within):
                continue
            if not file.is_file():
                return f"{name} is missing"
            status = file.stat()
            stamp = (str(file), status.st_mtime_ns, status.st_size, crc)
            if stamp not in _READ and (status.st_size != size or _crc(file) != crc):
                return f"{name} has changed since it was written"
            _READ.add(stamp)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{_NAME}: {error}"
    return None


def _crc(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total = zlib.crc32(block, total)
    return total
