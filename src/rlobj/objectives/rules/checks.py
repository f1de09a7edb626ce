"""Checks of the arguments of expressions, and how a fraction becomes a number of tokens."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

from rlobj.base.errors import ConfigError, nearest
from rlobj.objectives.rules.columns import COLUMNS, declared_columns

__all__ = [
    "Rounding",
    "check_aggregate",
    "check_by",
    "check_column",
    "check_controller",
    "check_cut",
    "check_finite",
    "check_sample",
    "check_scan",
    "check_size",
    "plain",
    "share",
]

Rounding = Literal["ceil", "floor"]


def share(fraction: float, n: int, rounding: Rounding) -> int:
    """round(fraction·n), computed with the fraction as a decimal: 0.07·100 is 7."""
    exact = Fraction(repr(float(fraction))) * n
    return math.ceil(exact) if rounding == "ceil" else math.floor(exact)


def plain(value: float) -> float:
    """The number as a Python int or float: unlike numpy's, its repr is the number alone."""
    return int(value) if isinstance(value, int) and abs(value) <= 2**53 else float(value)


def check_column(name: str) -> None:
    if name not in COLUMNS and name not in declared_columns():
        raise ConfigError(f"unknown column '{name}'.{nearest(name, COLUMNS)}")


def check_finite(value: float, largest: float) -> None:
    if not abs(value) <= largest:
        raise ConfigError(f"a number in a rule must be finite, got {value}")


def check_by(name: str, by: object, ranks: bool = True) -> None:
    levels = ("update", "group", *(() if ranks else ("position",)), "response")
    if by not in levels:
        raise ConfigError(f"{name}(by={by!r}): expected one of {', '.join(levels)}")


def check_aggregate(name: str, by: object, of: object, varies: bool) -> None:
    check_by(name, by, ranks=False)
    if not varies:
        raise ConfigError(f"{name}() needs a column, and '{of}' is the same for the whole update")


def check_scan(name: str, decay: object) -> None:
    number = isinstance(decay, (int, float)) and not isinstance(decay, bool)
    if not number or not 0 < decay <= 1:  # type: ignore[operator]
        raise ConfigError(f"{name}: the decay must lie in (0, 1], got {decay!r}")


def check_controller(name: str) -> None:
    if not (name.isidentifier() and name[0].isupper()):
        advice = nearest(name, (*COLUMNS, *declared_columns()))
        raise ConfigError(
            f"unknown name '{name}'.{advice} A controller's name begins with a capital; a column "
            "of your own is declared in 'columns'."
        )


def check_cut(name: str, ranked: bool, value: object, fraction: float, rounding: str) -> None:
    if not ranked:
        raise ConfigError(f"{name} needs a column to rank by, got '{value}'")
    number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction <= 1:
        raise ConfigError(f"{name}: the fraction must lie in [0, 1], got {fraction!r}")
    _check_rounding(rounding)


def check_sample(amount: object, seed: object, of: str, rounding: str, at_least: object) -> None:
    whole = type(amount) is int and amount >= 0
    if not whole and not (isinstance(amount, float) and 0 <= amount <= 1):
        raise ConfigError(
            f"sample({amount!r}): expected a whole number of tokens or a float in [0, 1]"
        )
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        raise ConfigError(f"sample(seed={seed!r}): expected a whole number of 64 bits")
    check_size("sample(at_least=...)", at_least)
    if of not in ("rule", "all"):
        raise ConfigError(f"sample(of={of!r}): expected 'rule' or 'all'")
    _check_rounding(rounding)


def check_size(name: str, tokens: object) -> None:
    if type(tokens) is not int or tokens < 0:
        raise ConfigError(f"{name} must be a whole number of tokens >= 0")


def _check_rounding(rounding: str) -> None:
    if rounding not in ("ceil", "floor"):
        raise ConfigError(f"round={rounding!r}: expected 'ceil' or 'floor'")
