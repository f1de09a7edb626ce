"""All errors that rlobj raises, and the advice about the nearest name.

    RlobjError
    ├── ConfigError   (ValueError)    a setting, preset, rule or file is invalid
    ├── BatchError    (ValueError)    a column of a TokenBatch is missing or has a wrong value
    ├── DataError     (ValueError)    problems or a data set cannot be read
    ├── MissingExtra  (ImportError)   an optional package is not installed
    └── RunError      (RuntimeError)  the input was valid, but the work failed

Catch `RlobjError` for all of them. The command line turns the first four into exit code 2 (the
input was wrong) and `RunError` into exit code 1 (the work failed). To add one: subclass
`RlobjError` and the standard error a caller would expect, and add a line above.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class RlobjError(Exception):
    """Base of all errors raised by rlobj."""


class ConfigError(RlobjError, ValueError):
    """A setting, preset, rule or file is invalid."""


class BatchError(RlobjError, ValueError):
    """A column of a TokenBatch is missing, has a wrong shape or is not finite."""


class DataError(RlobjError, ValueError):
    """Problems or a data set cannot be read."""


class MissingExtra(RlobjError, ImportError):
    """An optional package is not installed; the message has the pip command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str, instead: str = "") -> None:
        command = pip_install(extra) if extra else f"pip install {package}"
        message = f"{purpose} needs the package '{package}'. Install it with: {command}"
        super().__init__(f"{message}\n{instead}" if instead else message)


def pip_install(extra: str) -> str:
    """The commands that add an extra: from an index, and in a checkout."""
    return f"pip install 'rlobj[{extra}]'; in a checkout: pip install -e '.[{extra}]'"


class RunError(RlobjError, RuntimeError):
    """The input was valid, but the work failed.

    Args:
        message: what failed.
        finding: the finding of the diagnosis that it amounts to, such as "collapse"; None = none.
    """

    def __init__(self, message: str = "", finding: str | None = None) -> None:
        super().__init__(message)
        self.finding = finding


@contextmanager
def reported(
    kind: type[RlobjError], text: str, *errors: type[Exception], advice: str = ""
) -> Iterator[None]:
    """Raise an error of rlobj, with the message of the first one, in place of an error of another.

    Args:
        kind: of the error that is raised.
        text: what cannot be done, before the message.
        errors: what is caught.
        advice: what is expected, behind the message.

    Example:
        >>> with reported(ConfigError, "the step", ValueError, advice="; expected a number"):
        ...     int("x")
        Traceback (most recent call last):
        rlobj.base.errors.ConfigError: the step: invalid literal for int() ...; expected a number
    """
    try:
        yield
    except errors as error:
        raise kind(f"{text}: {error}{advice}") from error


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str], *, spell_out: bool = True) -> str:
    """Advice for an unknown name.

    Args:
        name: the unknown name.
        known: the known names.
        spell_out: list all known names in the advice.

    Returns:
        `" Did you mean 'entropy'? Known: advantage, entropy, prob."`; without the question if no
        known name is similar.
    """
    known = sorted(known)
    folded = {each.lower(): each for each in known}
    begins = [each for each in folded if len(each) > 3 and name.lower().startswith(each)]
    near = [difflib.get_close_matches(name.lower(), folded, n=1, cutoff=x) for x in (0.8, 0.5)]
    close = near[0] or begins or near[1]
    question = f" Did you mean '{folded[close[0]]}'?" if close else ""
    return f"{question} Known: {', '.join(known)}." if spell_out else question
