"""Calls of tools that may fail, hang, or end their process.

Tools that a setting names run in worker processes, which are killed at a deadline. Those that were
passed from Python are called in threads of this process; an `async` one has the deadline, too.
Nothing that a tool does raises an exception here.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.showing import shown
from rlobj.base.targets import trusted_target
from rlobj.base.threads import DaemonThreads
from rlobj.conversations import box
from rlobj.conversations.environment import Call, Turn, called, limited_text
from rlobj.conversations.settings import EnvironmentSettings, require_known
from rlobj.conversations.tool_worker import answered, failed, schema_of
from rlobj.samplers.response import ToolUse
from rlobj.workers.pool import Pool
from rlobj.workers.worker import Failure, NoReply

Answer = tuple[str, ToolUse]
"""What the policy reads of a call: what the tool returned, or what went wrong; and the call."""
BOX = {"calculator": box.calculator, "python": box.python}
"""The tools in the box, by name."""


class ToolPool:
    """Calls tools; those that settings name in worker processes, which start when they are needed.

    `call` is used in one event loop. `close` ends all processes; so does the end of this process.

    Args:
        settings: the limits.
        tools: in place of those of the settings; functions run in threads of this process.
        as_in_trl: the policy reads `str(result)` of a function, or `{'error': '...'}`.

    Raises:
        ConfigError: a tool has the name of another one, or may not be imported.
    """

    def __init__(
        self,
        settings: EnvironmentSettings,
        tools: Sequence[str | Callable[..., Any]] | None = None,
        *,
        as_in_trl: bool = False,
    ) -> None:
        self._as_in_trl = as_in_trl
        self._settings, self._threads = settings, DaemonThreads()
        self._tools = dict[str, str | Callable[..., Any]]()
        for tool in settings.tools if tools is None else tools:
            name = _name(tool)
            if name in self._tools:
                raise ConfigError(f"two tools have the name {name!r}. Give one another name")
            self._tools[name] = f"{box.__name__}:{tool}" if tool in BOX else tool
        self._named = {name: tool for name, tool in self._tools.items() if isinstance(tool, str)}
        self._pool = self._opened(settings.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes. Later calls fail."""
        self._pool.close()

    def schemas(self) -> list[dict[str, Any]]:
        """The JSON schemas of the tools, in their order. Call this before a run: it imports them.

        Tools that settings name are imported in a process of their own.

        Raises:
            ConfigError: a tool cannot be imported, has no docstring, or not all of its arguments
                have a type and a description.
        """
        schemas = dict[str, Any]()
        if not BOX.keys() >= self._named.keys():
            [worker] = self._opened(1, describe=True).workers
            what = f"the import of the tools {', '.join(self._named)}"
            try:
                with reported(ConfigError, what, NoReply):
                    worker.ready()
                schemas = worker.opening
            finally:
                worker.kill()
        return [
            schemas.get(name) or schema_of(BOX.get(name, tool), name)
            for name, tool in self._tools.items()
        ]

    async def call(self, name: str, arguments: Mapping[str, Any], seed: int = 0) -> Answer:
        """Call a tool.

        Args:
            name: of the tool.
            arguments: by name, as JSON has them.
            seed: with the name and the arguments, it seeds the global generators of Python, numpy
                and torch in a worker process. Those of this process are left alone.

        Returns:
            What the policy reads, and what became of the call. Of a "flood", the middle of the text
            is left out. The seconds are without the wait for a free process.
        """
        tool, begun = self._tools[name], time.monotonic()
        most, patience = self._settings.max_output, self._settings.deadline
        if isinstance(tool, str):
            work = self._threads.submit(self._call_there, name, arguments, seed)
            return await asyncio.wrap_future(work)
        try:
            result = await called(lambda: tool(**arguments), name, patience)
            if isinstance(result, Turn | Call):
                raise RunError(
                    f"the tool {name!r} returned {shown(result)}; expected a text, number, list or "
                    "dict. Only an environment's step restarts or calls sub-agents; these cannot"
                )
            text, error = answered(str(result) if self._as_in_trl else result, most)
        except NoReply as problem:
            cause = problem.__cause__ or problem
            text, error = failed(cause, most)
            if problem.reason == Failure.TIMEOUT:
                text = f"error: the tool did not answer within {patience:g} seconds"
                error = problem.reason
            elif self._as_in_trl:
                text = limited_text(str({"error": str(cause)}), most)
        except RunError:
            raise
        except Exception as problem:  # the result is nothing that the policy can read
            text, error = failed(problem, most)
        return text, ToolUse(name, error, time.monotonic() - begun)

    def _opened(self, size: int, *, describe: bool = False) -> Pool:
        """Worker processes for the tools that settings name."""
        memory = self._settings.memory_mb << 20
        arguments = {
            "tools": self._named,
            "describe": describe,
            "max_output": self._settings.max_output,
            "deadline": self._settings.deadline,
            "memory": memory,
        }
        return Pool(size, "rlobj.conversations.tool_worker:Tools", arguments, memory=memory)

    def _call_there(self, name: str, arguments: Mapping[str, Any], seed: int) -> Answer:
        """Ask a free process; one that does not answer is killed."""
        begun = time.monotonic()
        try:
            key = json.dumps([seed, name, arguments]).encode()
            number = int.from_bytes(hashlib.sha256(key).digest()[:7])
            with self._pool.worker() as worker:
                worker.ready()
                begun = time.monotonic()
                text, error = worker.ask(name, arguments, number, seconds=self._settings.deadline)
        except NoReply as problem:
            text, error = f"error: the tool {problem}", problem.reason
        except Exception as problem:  # the arguments are no JSON, or no process can be started
            text, error = failed(problem, self._settings.max_output)[0], "error"
        return text, ToolUse(name, error, time.monotonic() - begun)


def _name(tool: str | Callable[..., Any]) -> str:
    """The name of a tool.

    Raises:
        ConfigError: it is unknown, or may not be imported.
    """
    if isinstance(tool, str):
        require_known("a tool", tool, BOX)
        return tool if tool in BOX else trusted_target(tool)[1]
    return tool.__name__
