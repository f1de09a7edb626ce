"""The numbers of an evaluation, as results.json and the tables have them."""

import math
from typing import Any, NamedTuple

from rlobj.evaluation.estimators import Estimate, MacroAverage

UNKNOWN = "–"


class Measure(NamedTuple):
    """A number of a benchmark, or of the average of several.

    Attributes:
        name: its name in results.json.
        value: as results.json has it; shares are fractions.
        row: its row in the tables; "" = they do not have it.
        text: the value in the tables.
    """

    name: str
    value: Any
    row: str = ""
    text: str = ""


def count(name: str, value: int, row: str) -> Measure:
    """A number of problems or responses."""
    return Measure(name, value, row, f"{value:,}")


def share(name: str, value: float, row: str) -> Measure:
    """A share, in percent in the tables."""
    return Measure(name, value, row, percent(value))


def tokens(name: str, value: float, row: str) -> Measure:
    """A number of tokens."""
    return Measure(name, value, row, UNKNOWN if math.isnan(value) else f"{value:,.0f}")


def averaged(name: str, row: str, estimate: Estimate | MacroAverage) -> list[Measure]:
    """avg@n or a mean reward, with its interval and standard errors."""
    shares, (low, high, _) = estimate.shares, estimate.interval
    ends = number_range(low, high, shares)

    def error(end: str, value: float, what: str) -> Measure:
        text = number(value or math.nan, shares)  # 0 says only that all values are equal
        return Measure(f"{name}_{end}", value, f"standard error, {what} problems", text)

    return [
        Measure(name, estimate.mean, row, number(estimate.mean, shares)),
        Measure(f"{name}_interval", [low, high], "95% interval, similar problems", ends),
        error("stderr", estimate.stderr, "similar"),
        error("stderr_sampling", estimate.stderr_sampling, "same"),
    ]


def at_k(name: str, row: str, estimate: Estimate, problems: int) -> list[Measure]:
    """pass@k or maj@k of the problems with at least k responses.

    Args:
        name: such as "pass@4".
        row: its row in the tables.
        estimate: the mean over these problems.
        problems: the number of all problems of the benchmark.
    """
    able = len(estimate.values)
    of_fewer = [Measure(f"{name}_problems", able)] if able < problems else []
    text = percent(estimate.mean) + (f" (of {able:,})" if of_fewer else "")
    return [
        Measure(name, estimate.mean, row, text),
        Measure(f"{name}_stderr", estimate.stderr),
        Measure(f"{name}_interval", list(estimate.interval[:2])),
        *of_fewer,
    ]


def number(value: float, shares: bool, sign: str = "") -> str:
    """A share in percent with one decimal, or a reward; a dash if it is not finite.

    Args:
        value: the share or the reward.
        shares: it is a share.
        sign: "+" for a difference.
    """
    text = f"{100 * value:{sign}.1f}" if shares else f"{value:{sign}.3f}"
    return (text.replace("-", "−") if sign else text) if math.isfinite(value) else UNKNOWN


def number_range(low: float, high: float, shares: bool, sign: str = "") -> str:
    """Two numbers; a dash if they are not finite."""
    ends = (number(end, shares, sign) for end in (low, high))
    return " to ".join(ends) if math.isfinite(low) else UNKNOWN


def percent(value: float) -> str:
    """A share in percent with one decimal; a dash for nan."""
    return number(value, True)
