"""A user's reward function in a worker process, and what it prints there."""

from __future__ import annotations

import copy
import faulthandler
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.targets import import_target
from rlobj.rewards.functions import Function


class _Printed(io.TextIOBase):
    """A stream whose text the parent prints."""

    encoding = "utf-8"

    def __init__(self, name: str, tell: Callable[..., None]) -> None:
        self._name, self._tell = name, tell

    def fileno(self) -> int:
        """Of the stream of the process, whose output is not shown."""
        return 1 if self._name == "stdout" else 2

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._tell(self._name, text)
        return len(text)


class Server:
    """A user's function in a worker process.

    Args:
        tell: tells the parent something; see `workers.child`.
        target: the function.
        settings: of `Function`.

    Attributes:
        opening: whether it is `async`, and the place of its definition.
    """

    def __init__(self, tell: Callable[..., None], target: str, **settings: Any) -> None:
        faulthandler.enable(2)  # on SIGABRT, it writes where the threads stand
        sys.stdout, sys.stderr = _Printed("stdout", tell), _Printed("stderr", tell)
        function = import_target(target)
        if not callable(function):
            raise ConfigError(
                f"rewards.target {target!r} is not a function; expected "
                "package.module:function or path/to/file.py:function"
            )
        self._function, self._tell = Function(function, target, **settings), tell
        self.opening = self._function.is_async, self._function.place
        self.close = self._function.close

    def answer(self, method: str, *arguments: Any) -> Any:
        """Call `Function.refusal`, or make calls, whose outcomes are told."""
        if method == "refusal":
            return self._function.refusal(*arguments)
        calls, form, allowed = arguments
        copies, tell = map(copy.deepcopy, calls), partial(self._tell, "part")
        if self._function.is_async:
            return self._function.together(copies, form, tell)
        for outcome in self._function.outcomes(copies, form):
            tell(outcome)
            allowed -= bool(outcome.reason)
            if allowed < 0:
                break
        return None
