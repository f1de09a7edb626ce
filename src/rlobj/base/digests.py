"""Hashes of files, by which a run knows whether they are the same."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

MODEL_FILES = (".json", ".safetensors", ".bin", ".jinja")
"""The files of a model that its digest is of."""
_PIECE = 1 << 20


def model_digest(
    folder: Path, suffixes: Sequence[str] = MODEL_FILES, pieces: int = 1024
) -> str | None:
    """`files_digest` of the files of a model, or of its one file; None = there is none."""
    if folder.is_file():
        return files_digest([folder], pieces)
    if not folder.is_dir():
        return None
    files = [file for file in folder.iterdir() if file.suffix in suffixes and file.is_file()]
    return files_digest(sorted(files), pieces)


def files_digest(files: Sequence[Path], pieces: int = 1024) -> str:
    """16 hexadecimal digits of a hash of the names, sizes and bytes of files.

    Args:
        files: in the order that counts.
        pieces: of a file of more MiB than this, about so many pieces of 1 MiB are read.
    """
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        step = max(_PIECE, size // pieces)
        with file.open("rb") as content:
            for start in range(0, size, step):
                content.seek(start)
                digest.update(content.read(_PIECE))
    return digest.hexdigest()[:16]
