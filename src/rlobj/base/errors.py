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

A message is text and, between the texts, what a person can type: a `Setting` or an `Argument`.
Python and the program write these in different ways, and both write them as they are typed there:

    raise ConfigError("no problems; give ", Argument("data", "FILE"), " or ", Setting("seed", 1))
    Python         no problems; give data=FILE or seed=1
    rlobj train    no problems; give --data FILE or --set seed=1

So a sentence around them must be right in both ways: "use training.steps=3", not "set
training.steps=3". Errors and messages are parts, too, and keep their own parts:

    raise ConfigError(f"{path}: ", error) from error

A text that is no error, such as a remark or a warning, is a `Message`.
"""

import copyreg
import difflib
import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

warn = logging.getLogger(__name__).warning
"""Log a warning."""
warn_once = functools.cache(warn)
"""Log a warning; the same text once only."""


@dataclass(frozen=True)
class Setting:
    """A setting with a value.

    Attributes:
        path: its dotted name.
        value: text as it is typed, or a value of YAML.

    Example:
        >>> str(Setting("sampling.group_size", 8)), str(Setting("columns.hard", "FILE.py:NAME"))
        ('sampling.group_size=8', 'columns.hard=FILE.py:NAME')
    """

    path: str
    value: Any

    def __str__(self) -> str:
        text = self.value if isinstance(self.value, str) else json.dumps(self.value, default=str)
        return f"{self.path}={text}"


@dataclass(frozen=True)
class Argument:
    """An argument of a function of rlobj, which is an option of the program.

    Attributes:
        name: of the argument.
        value: text as it is typed, or True.

    Example:
        >>> str(Argument("data", "FILE")), str(Argument("trust"))
        ('data=FILE', 'trust=True')
    """

    name: str
    value: Any = True

    def __str__(self) -> str:
        return f"{self.name}={self.value}"


Typed = Setting | Argument
"""What a person can type."""


class Message(str):
    """A text for a person that knows what he can type.

    As a str it is the text for Python; `written` writes it in another way.

    Args:
        parts: texts, settings and arguments, and errors and messages, which keep their own parts.

    Example:
        >>> message = Message("use ", Setting("training.steps", 3), " or ", Argument("trust"))
        >>> print(message)
        use training.steps=3 or trust=True
        >>> message.written(lambda part: f"<{part}>")
        'use <training.steps=3> or <trust=True>'
    """

    parts: tuple[str | Typed, ...]

    def __new__(cls, *parts: object) -> Self:
        flat = tuple(_parts(parts))
        message = super().__new__(cls, "".join(map(str, flat)))
        message.parts = flat
        return message

    @classmethod
    def joined(cls, between: str, messages: Iterable[object]) -> Self:
        """All messages, with a text between them."""
        parts = [part for message in messages for part in (between, message)]
        return cls(*parts[1:])

    def written(self, write: Callable[[Typed], str]) -> str:
        """The text, with settings and arguments as a function writes them."""
        return "".join(part if isinstance(part, str) else write(part) for part in self.parts)


def _parts(parts: Iterable[object]) -> Iterator[str | Typed]:
    for part in parts:
        if isinstance(part, RlobjError):
            yield from part.message.parts
        elif isinstance(part, Message):
            yield from part.parts
        else:
            yield part if isinstance(part, Setting | Argument) else str(part)


class RlobjError(Exception):
    """Base of all errors raised by rlobj.

    Args:
        parts: of the message.

    Attributes:
        message: what went wrong, and what to type.
    """

    def __init__(self, *parts: object) -> None:
        self.message = Message(*parts)
        super().__init__(self.message)

    def __str__(self) -> str:  # a `Message`, which keeps its parts
        return self.message

    def __reduce__(self) -> Any:  # also of classes whose arguments are not the message
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


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
        super().__init__(message, *(("\n", instead) if instead else ()))


def pip_install(extra: str) -> str:
    """The command that adds an extra. rlobj is on no index: another package could have its name."""
    return f"pip install -e '.[{extra}]', in the checkout of rlobj"


class RunError(RlobjError, RuntimeError):
    """The input was valid, but the work failed.

    Args:
        parts: what failed.
        finding: the finding of the diagnosis that it amounts to, such as "collapse"; None = none.
    """

    def __init__(self, *parts: object, finding: str | None = None) -> None:
        super().__init__(*parts)
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
        raise kind(f"{text}: ", error, advice) from error


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str], *, spell_out: bool = True, section: str = "") -> str:
    """Advice for an unknown name.

    Args:
        name: the unknown name.
        known: the known names.
        spell_out: list all known names in the advice.
        section: what stands before the name in the question.

    Returns:
        `" Did you mean 'entropy'? Known: advantage, entropy, prob."`; without the question if no
        known name is similar.
    """
    known = sorted(known)
    lower, folded = name.lower(), {word.lower(): word for word in known}
    begins = [word for word in folded if len(word) > 3 and lower.startswith(word)]
    near = [difflib.get_close_matches(lower, folded, n=1, cutoff=cutoff) for cutoff in (0.8, 0.5)]
    close = near[0] or begins or near[1]
    question = f" Did you mean '{section}{folded[close[0]]}'?" if close else ""
    return f"{question} Known: {', '.join(known)}." if spell_out else question
