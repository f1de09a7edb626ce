"""Decimals whose last digits repeat."""

from __future__ import annotations

import re

_DIGITS = r"([0-9]*\.[0-9]*)"
_BAR = re.compile(_DIGITS + r"\s*\\(?:overline|overbar|bar)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_DOTS = re.compile(
    _DIGITS + r"\s*\\dot\s*\{?([0-9])\}?(?:\s*([0-9]*)\s*\\dot\s*\{?([0-9])\}?)?(?![0-9])"
)
_CONTINUED = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)\s*(?:\.\.+|\\[lc]?dots(?:\b|$))\s*")


def read_repeating(text: str) -> str:
    r"""Write repeating decimals as 0.1(6); the digits before an ellipsis must show the period.

    Example:
        >>> [read_repeating(text) for text in (r"0.\overline{5}", r"0.1666\ldots", "3.14...")]
        ['0.(5)', '0.1(6)', '\\approx 3.14']
    """
    text = _BAR.sub(lambda run: f"{run[1]}({run[2] or run[3]})", text)
    text = _DOTS.sub(lambda run: f"{run[1]}({run[2]}{run[3] or ''}{run[4] or ''})", text)
    if (run := _CONTINUED.search(text)) is None:
        return text
    decimals = _period(run[2])
    if decimals is not None and not text[run.end() : run.end() + 1].isdecimal():
        return text[: run.start()] + f"{run[1]}.{decimals}" + text[run.end() :]
    alone = run.span() == (0, len(text))
    return rf"\approx {run[1]}.{run[2]}" if alone else text  # digits that were cut off


def _period(digits: str) -> str | None:
    """The decimals with their period in brackets: at least two periods and three digits."""
    decimals, covered = None, 2
    for length in range(1, len(digits) // 2 + 1):
        same = len(digits) - length
        while same and digits[same - 1] == digits[same - 1 + length]:
            same -= 1
        if len(digits) - same >= max(2 * length, covered + 1):
            decimals = f"{digits[:same]}({digits[same : same + length]})"
            covered = len(digits) - same
    return decimals
