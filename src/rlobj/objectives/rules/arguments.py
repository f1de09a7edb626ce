"""The arguments of expressions: their checks, and how a fraction becomes a number of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rlobj.base.errors import ConfigError

Rounding = Literal["ceil", "floor", "linear"]


def rounded_share(fraction: float, n: int, rounding: Rounding) -> int:
    """round(fraction·n), where a product that is whole but for rounding is whole: 0.07·100 is 7.

    "linear" is floor(fraction·(n − 1)) + 1: the number of values up to the quantile if it is
    interpolated between two values, as `torch.quantile` does.
    """
    linear = rounding == "linear"
    product = fraction * (n - linear)
    whole = round(product)
    exact = whole if math.isclose(product, whole, rel_tol=1e-15) else product
    return math.ceil(exact) if rounding == "ceil" else math.floor(exact) + linear


def plain(value: float) -> float:
    """The number as a Python int or float: unlike numpy's, its repr is the number alone."""
    return int(value) if isinstance(value, int) and abs(value) <= 2**53 else float(value)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{what}={value!r}: expected one of {', '.join(choices)}")


def check_fraction(name: str, value: object, above: float = -1.0) -> None:
    """Refuse what is not a number in [0, 1], or in (0, 1] if `above` is 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and max(above, 0) <= value <= 1 and value != above):  # type: ignore[operator]
        interval = "(0, 1]" if above == 0 else "[0, 1]"
        raise ConfigError(f"{name} must lie in {interval}, got {value!r}")


def check_size(name: str, tokens: object) -> None:
    if type(tokens) is not int or tokens < 0:
        raise ConfigError(f"{name} must be a whole number of tokens >= 0")
