"""A user's value, and the file and line of his function, in messages."""

import inspect
import linecache
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Any

_LIBRARY = __file__.removesuffix("base/showing.py")
_SHOWN = 300
"""Characters of a text in a message."""
_FRAMES = 4
"""Calls of a traceback in a message."""


def place_of(
    function: Callable[..., Any], frames: Iterable[tuple[FrameType, int | None]] = ()
) -> str:
    """A line of a message: the user's file and line, with the text of the line.

    Args:
        function: the user's.
        frames: where an exception passed, or what is running, with the line numbers. The last line
            in the function's own file counts, and without one the definition of the function.
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    if code is None:  # of C
        return ""
    file = code.co_filename
    for frame, line in reversed([*frames]):
        if frame.f_code.co_filename == file and line is not None:
            return place_at(file, line)
    return f"\n  at {file}, line {code.co_firstlineno}"


def place_of_error(error: BaseException) -> str:
    """As `place_of`, of an exception: the last lines that it passed outside of rlobj."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_LIBRARY)]
    lines = dict.fromkeys(place_at(frame.filename, frame.lineno or 0) for frame in theirs)
    return "".join([*lines][-_FRAMES:])


def place_at(file: str, line: int) -> str:
    """A line of a message: a file and a line, with the text of the line."""
    return f"\n  at {file}, line {line}: {shown(linecache.getline(file, line).strip(), str)}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """The first characters of the text of a value."""
    try:
        text = write(value)
    except BaseException:
        text = f"<unprintable {type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
