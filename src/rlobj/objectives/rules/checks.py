"""What a cut may be asked for, and how a fraction becomes a number of tokens."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from rlobj.base.errors import ConfigError

__all__ = ["Rounding", "check_cut", "check_rounding", "plain", "share"]

Rounding = Literal["ceil", "floor"]


def share(fraction: float, n: int, rounding: Rounding) -> int:
    """round(fraction·n), with the fraction read as the decimal that was written."""
    exact = Fraction(repr(float(fraction))) * n
    return math.ceil(exact) if rounding == "ceil" else math.floor(exact)


def plain(value: float) -> float:
    """A Python int or float, whose repr is the number (numpy's is not)."""
    return int(value) if isinstance(value, int) and abs(value) <= 2**53 else float(value)


def check_cut(name: str, ranked: bool, value: object, fraction: float, rounding: str) -> None:
    if not ranked:
        raise ConfigError(f"{name} needs a column to rank by, got '{value}'")
    number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction <= 1:
        raise ConfigError(f"{name}: the fraction must lie in [0, 1], got {fraction!r}")
    check_rounding(rounding)


def check_rounding(rounding: str) -> None:
    if rounding not in ("ceil", "floor"):
        raise ConfigError(f"round={rounding!r}: expected 'ceil' or 'floor'")
