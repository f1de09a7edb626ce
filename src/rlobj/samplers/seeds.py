"""Seeds that are derived from their purpose and are the same on every machine."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Hash all parts to a seed in [0, 2^62)."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
