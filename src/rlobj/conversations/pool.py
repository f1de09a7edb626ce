"""Calls of tools that may fail, hang, or end their process.

Tools that a setting names run in worker processes, which are killed at a deadline. Tools that were
passed from Python run in daemon threads of this process, which nothing can end: at a deadline, they
are left alone. Nothing that a tool does raises an exception here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import LifoQueue
from typing import Any

from rlobj.base.errors import ConfigError, RunError, nearest
from rlobj.base.processes import (
    LARGEST_ANSWER,
    DaemonThreads,
    kill_tree,
    new_token,
    signal_name,
)
from rlobj.base.targets import trusted_target
from rlobj.conversations import box, tool_worker
from rlobj.conversations.deadlines import Failed, called
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.conversations.tool_worker import answered, failed, schema_of

BOX = {"calculator": box.calculator, "python": box.python}
"""The tools in the box, by name."""
_START_SECONDS = 120.0
"""Limit on the start of a process, which imports the tools."""


@dataclass(frozen=True)
class ToolResult:
    """What became of a call.

    Attributes:
        text: what the policy reads: what the tool returned, or what went wrong.
        error: "" if it returned; "error": it raised an exception; "timeout": it did not return
            before the deadline; "crash": its process ended; "flood": the text was too long, and its
            middle is left out.
        seconds: that the call took, without the wait for a free process.
    """

    text: str
    error: str = ""
    seconds: float = 0.0


class ToolPool:
    """Calls tools; those that settings name in worker processes, which start when they are needed.

    `call` is used in one event loop. `close` ends all processes; so does the end of this process.

    Args:
        settings: `tools` and the limits.
        functions: further tools, which run in threads of this process; see `deadlines`.

    Raises:
        ConfigError: a tool has no name, has the name of another one, or may not be imported.
    """

    def __init__(
        self, settings: EnvironmentSettings, functions: Sequence[Callable[..., Any]] = ()
    ) -> None:
        self._settings, self._threads = settings, DaemonThreads()
        self._tools = dict[str, str | Callable[..., Any]]()
        for tool in (*settings.tools, *functions):
            name = _name(tool)
            if name in self._tools:
                raise ConfigError(f"two tools have the name {name!r}. Give one another name")
            self._tools[name] = f"{box.__name__}:{tool}" if tool in BOX else tool
        self._schemas: list[dict[str, Any]] | None = None
        self._workers, self._closed = set[_Worker](), False
        self._slots: LifoQueue[_Worker | None] = LifoQueue()
        for _ in range(settings.workers):
            self._slots.put(None)

    def __enter__(self) -> ToolPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. Later calls fail."""
        self._closed = True
        for worker in [*self._workers]:
            worker.kill()

    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schemas of the tools, in their order. Call this before a run: it imports them.

        Tools that settings name are imported in a process of their own.

        Raises:
            ConfigError: a tool cannot be imported, has no docstring, or not all of its arguments
                have a type and a description.
        """
        if self._schemas is None:
            found = dict[str, Any]()
            named = [each for each, tool in self._tools.items() if isinstance(tool, str)]
            if not BOX.keys() >= {*named}:
                try:
                    worker, found = self._started(describe=True)
                except (EOFError, TimeoutError) as error:
                    raise ConfigError(
                        f"The import of the tools {', '.join(named)} {error}. Its limit on memory "
                        f"is environment.memory_mb={self._settings.memory_mb}"
                    ) from error
                worker.kill()
            self._schemas = [
                found.get(name) or schema_of(BOX.get(name, tool), name)
                for name, tool in self._tools.items()
            ]
        return self._schemas

    async def call(self, name: str, arguments: Mapping[str, Any], seed: int = 0) -> ToolResult:
        """Call a tool.

        Args:
            name: of the tool.
            arguments: by name, as JSON has them.
            seed: with the name and the arguments, it seeds the global generators of Python, numpy
                and torch in a worker process. Those of this process are left alone.
        """
        tool, begun = self._tools.get(name), time.monotonic()
        most, patience = self._settings.max_output, self._settings.deadline
        if tool is None:
            advice = nearest(name, self._tools)
            return ToolResult(f"error: there is no tool {name!r}.{advice}", "error")
        if isinstance(tool, str):
            work = self._threads.submit(self._call_there, name, arguments, seed)
            return await asyncio.wrap_future(work)
        try:
            text, error = await called(partial(_answer, tool, arguments, most), patience)
        except Failed:
            text, error = f"error: the tool did not answer within {patience:g} seconds", "timeout"
        return ToolResult(text, error, time.monotonic() - begun)

    def _call_there(self, name: str, arguments: Mapping[str, Any], seed: int) -> ToolResult:
        """Ask a free process; one that does not answer is killed."""
        worker, begun = self._slots.get(), time.monotonic()
        try:
            key = json.dumps([seed, name, arguments]).encode()
            number = int.from_bytes(hashlib.sha256(key).digest()[:7])
            if worker is None or not worker.quiet():
                worker, _ = self._started()
                begun = time.monotonic()
            text, error = worker.ask((name, arguments, number), self._settings.deadline)
        except (TimeoutError, EOFError) as problem:
            error = "timeout" if isinstance(problem, TimeoutError) else "crash"
            text = f"error: the tool {problem}"
        except Exception as problem:  # the arguments are no JSON, or no process can be started
            text, error = failed(problem, self._settings.max_output)
        finally:
            self._slots.put(worker)
        return ToolResult(text, error, time.monotonic() - begun)

    def _started(self, *, describe: bool = False) -> tuple[_Worker, dict[str, Any]]:
        """A new process, and the schemas if they are asked for.

        Raises:
            ConfigError: a tool cannot be imported, or has no schema.
            EOFError, TimeoutError: the process has ended, or does not answer.
        """
        if self._closed:
            raise RunError("the tools are closed")
        for each in [*self._workers]:
            if each.process.poll() is not None:
                each.kill()
                self._workers.discard(each)
        tools = {name: tool for name, tool in self._tools.items() if isinstance(tool, str)}
        settings = self._settings.model_dump(include={"deadline", "max_output", "memory_mb"})
        settings |= {"tools": tools, "path": sys.path, "describe": describe}
        worker = _Worker(settings)
        self._workers.add(worker)
        ready = worker.told(_START_SECONDS)
        if ready["error"]:
            worker.kill()
            raise ConfigError(ready["error"])
        return worker, ready["schemas"]


class _Worker:
    """A process that runs `tool_worker`, with a folder for temporary files."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._folder = tempfile.mkdtemp(prefix="rlobj-tools-")
        self._connection, theirs = socket.socketpair()
        self._heard, self._token = b"", ""
        words = [sys.executable, "-P", tool_worker.__file__, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                [*words, json.dumps(settings)],
                env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self._folder},
                stdin=subprocess.PIPE,  # its end is the end of the process
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

        self._tell(_START_SECONDS)

    def quiet(self) -> bool:
        """Whether it waits for a question; one that said something unasked is killed."""
        if self.process.poll() is not None:
            return False
        try:
            self._connection.setblocking(False)
            self._heard += self._connection.recv(1)
        except BlockingIOError:
            if not self._heard:
                return True
        except OSError:
            pass
        self.kill()
        return False

    def ask(self, question: Sequence[Any], seconds: float) -> Any:
        """The answer to a question; see `told`."""
        end = time.monotonic() + seconds
        self._tell(seconds, *question)
        return self.told(max(end - time.monotonic(), 0.0), seconds)

    def told(self, seconds: float, said: float | None = None) -> Any:
        """The next message.

        Args:
            seconds: that it may take.
            said: the seconds that the message of an error names; None = these.

        Raises:
            TimeoutError: there is none in this time.
            EOFError: the process has ended, or what it wrote is no answer to the last question; the
                message says how.
        """
        end = time.monotonic() + seconds
        try:
            while b"\n" not in self._heard:
                self._connection.settimeout(max(end - time.monotonic(), 1e-6))
                if not (data := self._connection.recv(1 << 16)):
                    raise ConnectionError
                self._heard += data
                if b"\n" not in self._heard:
                    self._check_begun(end)
        except TimeoutError:
            self.kill()
            raise TimeoutError(f"did not answer within {said or seconds:g} seconds") from None
        except ConnectionError:
            code = self.kill()
            name = signal_name(-code) if code < 0 else f"the exit status {code}"
            raise EOFError(f"ended its process with {name}") from None
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            token, message = json.loads(line)
        except (ValueError, TypeError):
            token = message = None
        if token != self._token:
            self.kill()
            raise EOFError("wrote to the connection of its process")
        return message

    def _check_begun(self, end: float) -> None:
        """Refuse a message that never ends: data may always be ready.

        Raises:
            TimeoutError: it is late.
            EOFError: it is larger than any answer.
        """
        if time.monotonic() >= end:
            raise TimeoutError
        if len(self._heard) > LARGEST_ANSWER:
            self.kill()
            raise EOFError("wrote to the connection of its process")

    def _tell(self, seconds: float, *question: Any) -> None:
        """Send a new token, and perhaps a question."""
        self._token = new_token()
        line = json.dumps([self._token, *question] if question else self._token)
        self._connection.settimeout(seconds)
        with contextlib.suppress(OSError):  # `told` says what happened
            self._connection.sendall(line.encode() + b"\n")

    def kill(self) -> int:
        """Kill the process and all that it started; its exit code."""
        if self.process.returncode is None:
            kill_tree(self.process.pid)
        with self._connection, self.process:
            code = self.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code


def _answer(tool: Any, arguments: Mapping[str, Any], most: int) -> Any:
    """As `answer`, or an awaitable of this."""
    try:
        result = tool(**arguments)
        return _awaited(result, most) if inspect.isawaitable(result) else answered(result, most)
    except BaseException as error:
        return failed(error, most)


async def _awaited(result: Awaitable[Any], most: int) -> list[str]:
    try:
        return answered(await result, most)
    except BaseException as error:
        return failed(error, most)


def _name(tool: str | Callable[..., Any]) -> str:
    """The name of a tool.

    Raises:
        ConfigError: it has none, or it may not be imported.
    """
    if isinstance(tool, str):
        if tool in BOX:
            return tool
        if ":" not in tool:
            raise ConfigError(
                f"there is no tool {tool!r}.{nearest(tool, BOX)} Others are named as "
                "package.module:function or path/to/file.py:function"
            )
        return trusted_target(tool)[1]
    name = getattr(tool, "__name__", "")
    if not callable(tool) or not name.isidentifier():
        raise ConfigError(
            f"{tool!r} is no tool. Expected a function with a name:{tool_worker.EXAMPLE}"
        )
    return name
