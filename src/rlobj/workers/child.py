"""The program of a worker process, `child.py DESCRIPTOR`. It is started by its path, without torch.

It makes an object of one class, and answers questions with pairs:

    kind      value
    ready     its `opening`        once, when it is made
    reply     what its method `answer` returned
    failed    why it did not return: `memory`, or a kind such as `error: TypeError`
    error     text                 the object cannot be made, or a package cannot be imported

The question FORK makes a copy of the process, which answers on a connection of its own.

If processor time is limited, the system ends the process when a question has used it up.
"""

import contextlib
import importlib
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    importlib.import_module("rlobj")  # the one of the parent, if there are others
    del sys.path[0]

from rlobj.base.errors import ConfigError
from rlobj.base.memory import limit_memory
from rlobj.base.processes import adopt_orphans, end_with_parent

FORK = "rlobj: fork"


def serve(connection: "Connection[Any, Any]") -> None:
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
            if question[:1] == (FORK,):
                descriptor = recv_handle(connection)
                with contextlib.suppress(ChildProcessError):  # copies that have ended
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                if process := os.fork():
                    os.close(descriptor)
                    connection.send(("reply", process))
                else:  # which has closed the connection
                    connection = Connection(descriptor)
            else:
                connection.send(_answer(served, question, seconds))


def _answer(served: Any, question: Any, seconds: float) -> tuple[str, Any]:
    """The kind and the value of the answer to a question."""
    try:
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
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    os.register_at_fork(after_in_child=connection.close)
    serve(connection)
