"""The program of a worker process, `child.py DESCRIPTOR`. It is started by its path, without torch.

It makes an object of one class, which answers questions:

    in   (token, settings), and later (token, question), pickled
    out  [token, kind, value]      lines of JSON, each with the last token

    kind      value
    ready     its `opening`        once, when it is made
    begun     null                 the time of a question begins, if processor time is limited
    part      anything             of a reply, told by `tell`
    stdout    text                 that the user's code prints; also `stderr`
    reply     anything             to a question
    failed    reason               an exception in place of it, if processor time is limited
    error     text                 the object cannot be made, or a package cannot be imported

The object has a method `answer`. It may have `opening`; `close`, which is called at the end; and,
if processor time is limited, `prepare`, which is called with a question before its time begins.
The system ends the process when a question has used up its processor time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import resource
import signal
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    importlib.import_module("rlobj")  # the one of the parent, if there are others
    del sys.path[0]

from rlobj.base.errors import ConfigError
from rlobj.base.processes import adopt_orphans, descendants, end_with_parent, hidden, kill_tree


class _Talk:
    """The connection to the parent. A fork of the user's code tells nothing."""

    def __init__(self, descriptor: int) -> None:
        self._process, self._lock, self._token = os.getpid(), threading.Lock(), ""
        connection = socket.socket(fileno=hidden(descriptor))
        self._stream = connection.makefile("rwb")
        only_here = partial(os.close, connection.fileno())  # its end is the end of this process
        os.register_at_fork(after_in_child=only_here)

    def heard(self) -> Any:
        """The next question.

        Raises:
            EOFError: the parent has closed the connection.
        """
        self._token, question = pickle.load(self._stream)
        return question

    def tell(self, kind: str, value: Any = None) -> None:
        """Tell something. A fork that has returned from the user's code ends here."""
        if os.getpid() != self._process:
            if kind in ("stdout", "stderr"):
                return
            os._exit(0)
        line = json.dumps([self._token, kind, value]).encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def serve(talk: _Talk) -> None:
    """Make the object, and answer questions until the parent closes the connection."""
    [settings] = talk.heard()
    sys.path[:] = settings["path"]
    module, _, name = settings["target"].partition(":")
    arguments, seconds = settings["arguments"], settings["processor_seconds"]
    if seconds:  # the code is ours, and the parent handles them
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        kind = getattr(importlib.import_module(module), name)
        if memory := settings["memory"]:
            outer = resource.getrlimit(resource.RLIMIT_AS)[1]
            with contextlib.suppress(ValueError, OSError):  # not every system can limit it
                resource.setrlimit(resource.RLIMIT_AS, (memory, outer))
        served = kind(tell=talk.tell, **arguments) if settings["tells"] else kind(**arguments)
    except Exception as error:
        text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        talk.tell("error", text)
        return
    talk.tell("ready", getattr(served, "opening", None))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            question = talk.heard()
            if seconds:
                talk.tell(*_judged(served, question, seconds, talk))
            else:
                talk.tell("reply", served.answer(*question))
    if hasattr(served, "close"):
        served.close()
    for process in descendants(os.getpid()):  # also those that have left the group
        kill_tree(process)


def _judged(served: Any, question: Any, seconds: float, talk: _Talk) -> tuple[str, Any]:
    """What is told about a question with a limit of processor time, also after an exception."""
    try:
        if hasattr(served, "prepare"):
            served.prepare(*question)
        talk.tell("begun")
        signal.setitimer(signal.ITIMER_PROF, seconds)
        return "reply", served.answer(*question)
    except MemoryError:
        return "failed", "memory"
    except ImportError as error:
        return "error", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "failed", f"error: {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    end_with_parent()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(_Talk(int(sys.argv[1])))
