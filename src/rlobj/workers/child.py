"""The program of a worker process, `child.py DESCRIPTOR`. It is started by its path, without torch.

It makes an object of one class, and answers questions with pairs:

    kind      value
    ready     its `opening`        once, when it is made
    reply     what its method `answer` returned; of a generator, each item as `(item,)`, then None
    failed    why it did not return: `memory`, or a kind such as `error: TypeError`
    error     text                 the object cannot be made, or a package cannot be imported

The question FORK makes a copy of the process, which answers on a connection of its own, and the
question ENDED gives the exit code of a copy that was killed or has ended.

If processor time is limited, the system ends the process when a question has used it up; a method
`prepare` of the object is called with a question before its time begins.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from types import GeneratorType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    importlib.import_module("rlobj")  # the one of the parent, if there are others
    del sys.path[0]

from rlobj.base.errors import ConfigError
from rlobj.base.memory import limit_memory
from rlobj.base.processes import adopt_orphans, end_with_parent

FORK, ENDED = "rlobj: fork", "rlobj: ended"


def serve(connection: Connection[Any, Any]) -> None:
    """Make the object, and answer questions until the parent closes the connection."""
    settings = connection.recv()
    sys.path[:] = settings["path"]
    module, _, name = settings["target"].partition(":")
    seconds = settings["processor_seconds"]
    if seconds:  # the code is ours, and the parent handles them
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        kind = getattr(importlib.import_module(module), name)
        if memory := settings["memory"]:
            limit_memory(memory)
        served = kind(**settings["arguments"])
    except Exception as error:
        text = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        connection.send(("error", text))
        return
    connection.send(("ready", getattr(served, "opening", None)))
    with contextlib.suppress(EOFError, OSError):
        while True:
            question = connection.recv()
            if question[:1] == (ENDED,):
                code = os.waitstatus_to_exitcode(os.waitpid(question[1], 0)[1])
                connection.send(("reply", code))
            elif question[:1] == (FORK,):
                descriptor = recv_handle(connection)
                if process := os.fork():
                    os.close(descriptor)
                    connection.send(("reply", process))
                else:  # which has closed the connection
                    connection = Connection(descriptor)
            else:
                for message in _answers(served, question, seconds):
                    connection.send(message)


def _answers(served: Any, question: Any, seconds: float) -> Iterator[tuple[str, Any]]:
    """The kinds and the values of the answers to a question."""
    try:
        if seconds and hasattr(served, "prepare"):
            served.prepare(*question)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = served.answer(*question)
        if isinstance(reply, GeneratorType):
            for item in reply:
                yield "reply", (item,)
            reply = None
        yield "reply", reply
    except MemoryError:
        yield "failed", "memory"
    except ImportError as error:
        yield "error", f"{type(error).__name__}: {error}"
    except Exception as error:
        yield "failed", f"error: {type(error).__name__}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    end_with_parent()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(2)  # on SIGABRT, it writes where the threads stand
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    os.register_at_fork(after_in_child=connection.close)
    serve(connection)
