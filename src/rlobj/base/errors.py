"""Every error that rlobj raises on purpose, and the nearest-name advice they carry.

    RlobjError
    ├── ConfigError   (ValueError)    a setting, preset, rule or file that cannot mean anything
    ├── BatchError    (ValueError)    a TokenBatch column that is missing, misshaped or not finite
    ├── DataError     (ValueError)    a problem file or data set that cannot be read as asked
    ├── MissingExtra  (ImportError)   a feature whose optional package is not installed
    └── RunError      (RuntimeError)  work that was well asked for and failed all the same

Catch `RlobjError` for all of them. The command line turns the first four into exit code 2 (the
input was wrong) and `RunError` into exit code 1 (the work failed). To add one: subclass
`RlobjError` and the standard error a caller would expect, and add a line above.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BatchError",
    "ConfigError",
    "DataError",
    "MissingExtra",
    "RlobjError",
    "RunError",
    "nearest",
]


class RlobjError(Exception):
    """Base of all errors raised by rlobj."""


class ConfigError(RlobjError, ValueError):
    """A setting, preset, rule or file that cannot mean anything."""


class BatchError(RlobjError, ValueError):
    """A TokenBatch column that is missing, misshaped or not finite."""


class DataError(RlobjError, ValueError):
    """A problem file or data set that cannot be read as asked."""


class MissingExtra(RlobjError, ImportError):
    """An optional package is not installed; the message holds the pip command that adds it."""

    def __init__(self, package: str, extra: str, purpose: str, instead: str = "") -> None:
        command = f"pip install 'rlobj[{extra}]'"
        message = f"{purpose} needs the package '{package}'. Install it with: {command}"
        super().__init__(f"{message}\n{instead}" if instead else message)


class RunError(RlobjError, RuntimeError):
    """Work that was well asked for and failed all the same."""


def nearest(name: str, known: Iterable[str], *, spell_out: bool = True) -> str:
    """Advice for a name that is not known.

    Args:
        name: what was given.
        known: what there is.
        spell_out: list all that there is (files of a folder are better not).

    Returns:
        `" Did you mean 'entropy'? Known: advantage, entropy, prob."`, without the question
        where nothing comes close.
    """
    known = sorted(known)
    folded = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    question = f" Did you mean '{folded[close[0]]}'?" if close else ""
    return f"{question} Known: {', '.join(known)}." if spell_out else question
