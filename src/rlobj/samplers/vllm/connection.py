"""HTTP connection to a server, with the key, retries and health checks."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, MissingExtra, RlobjError, RunError
from rlobj.samplers.vllm.auth import KEY_VARIABLE, find_key
from rlobj.samplers.vllm.settings import ServerSettings

_Result = TypeVar("_Result")
_Request = tuple[str, str, Any]
"""Method, path and body."""

_CONCURRENT = 256
"""Largest number of simultaneous requests."""
_HEARTBEAT = 10.0
"""Seconds between health checks."""
_LONG = 10.0
"""Factor on the timeout for long commands."""
_SHOWN = 500
"""Largest number of characters of a response in an error message."""


class Connection:
    """Connection to one server.

    A call is retried up to `retries` times after connection errors, timeouts and temporary server
    errors. Long requests, such as completions, have no or a longer timeout; meanwhile the server's
    health is checked every few seconds.

    Raises:
        MissingExtra: aiohttp is not installed.
    """

    def __init__(self, settings: ServerSettings) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise MissingExtra("aiohttp", "vllm-server", "sampling from a vLLM server") from None
        self.url = settings.url
        self._settings = settings

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        return self._run(self._answers([("GET", path, None)], self._settings.timeout))[0]

    def post(self, path: str, body: Any = None, *, long: bool = False) -> Any:
        """Send a command and return the JSON response.

        Args:
            path: path with query.
            body: JSON body.
            long: allow ten times the timeout, and check the server's health meanwhile.

        Raises:
            ConfigError: the key is wrong, or the server does not know the command.
            RunError: the server does not respond, or the command failed.
        """
        timeout = self._settings.timeout * (_LONG if long else 1)
        probe = ("GET", "/health", None) if long else None
        return self._run(self._answers([("POST", path, body)], timeout, probe))[0]

    def call(self, method: str, *arguments: Any, long: bool = False) -> list[Any]:
        """Call a method of all workers, and return one result per worker."""
        body = {"method": method, "args": list(arguments)}
        return self.post("/collective_rpc", body, long=long)["results"]

    def complete(
        self, bodies: Sequence[dict[str, Any]], arrived: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """Send completion requests, and return their responses in the order of the requests.

        Args:
            bodies: JSON bodies.
            arrived: called with a request's index and response as soon as it arrives. An
                exception in it ends the call.
        """
        requests = [("POST", "/v1/completions", body) for body in bodies]
        engine = ("POST", "/collective_rpc", {"method": "rlobj_status"})
        return self._run(self._answers(requests, None, engine, arrived))

    async def _answers(
        self,
        requests: Sequence[_Request],
        timeout: float | None,
        probe: _Request | None = None,
        arrived: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Send requests, and fail early if the server stops to answer the probe."""
        slots = asyncio.Semaphore(_CONCURRENT)

        async def one(session: Any, index: int, request: _Request) -> Any:
            async with slots:
                answer = await self._retried(session, *request, timeout)
            if arrived is not None:
                arrived(index, answer)
            return answer

        try:
            async with self._session() as session, asyncio.TaskGroup() as group:
                jobs = [group.create_task(one(session, *each)) for each in enumerate(requests)]
                beating = probe and group.create_task(self._heartbeat(session, probe))
                answers = [await job for job in jobs]
                if beating:
                    beating.cancel()
                return answers
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _heartbeat(self, session: Any, probe: _Request) -> None:
        """Send the probe every few seconds; raise an error if it fails."""
        timeout = self._settings.timeout
        while True:
            await asyncio.sleep(min(_HEARTBEAT, timeout))
            await self._retried(session, *probe, timeout)

    async def _retried(
        self, session: Any, method: str, path: str, body: Any, timeout: float | None
    ) -> Any:
        import aiohttp

        settings = self._settings
        for attempt in itertools.count():
            try:
                return await self._attempt(session, method, path, body, timeout)
            except (aiohttp.ClientError, TimeoutError) as error:
                out_of_time = (
                    isinstance(error, TimeoutError) and timeout == _LONG * settings.timeout
                )
                if attempt == settings.retries or out_of_time:
                    raise RunError(self._dead(error, attempt + 1)) from error
            await asyncio.sleep(settings.backoff * 2**attempt)

    async def _attempt(
        self, session: Any, method: str, path: str, body: Any, timeout: float | None
    ) -> Any:
        import aiohttp

        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=self._settings.timeout)
        async with session.request(method, self.url + path, json=body, timeout=limits) as answer:
            text = await answer.text()
        if answer.status == 200:
            return json.loads(text) if text else None
        if answer.status == 401:
            raise ConfigError(self._refused())
        shown = text[:_SHOWN]
        if (path == "/v1/completions" and answer.status >= 500) or answer.status in (502, 503, 504):
            raise aiohttp.ClientError(f"HTTP {answer.status}: {shown}")  # another attempt
        if answer.status == 404:
            raise ConfigError(
                f"the server at {self.url} does not know {path}. Start it with: rlobj serve MODEL"
            )
        kind: type[RlobjError] = RunError if answer.status >= 500 else ConfigError
        raise kind(f"the server at {self.url} answered {path} with {answer.status}: {shown}")

    def _session(self) -> Any:
        import aiohttp

        key = find_key(self.url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0))

    def _refused(self) -> str:
        problem = "refuses the key" if find_key(self.url) else "needs a key, and none is set"
        return (
            f"the server at {self.url} {problem}. Set {KEY_VARIABLE} in the environment to the key "
            "that `rlobj serve` was started with."
        )

    def _dead(self, error: BaseException, attempts: int) -> str:
        silent = isinstance(error, TimeoutError)
        state = "does not answer" if silent else "cannot be reached"
        reason = getattr(error, "os_error", None) or error  # the cause without aiohttp's text
        detail = "" if silent else f" ({reason})"
        port = urlsplit(self.url).port or 80
        return (
            f"the server at {self.url} {state}{detail}; {attempts} attempts. "
            f"Start one with: rlobj serve MODEL --port {port}"
        )

    @staticmethod
    def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to its end, also if an event loop is already running (in a notebook)."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work).result()
