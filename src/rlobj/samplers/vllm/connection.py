"""HTTP to a server: the key, retries with growing pauses, and errors that say what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, MissingExtra, RlobjError, RunError
from rlobj.samplers.vllm.auth import KEY_VARIABLE, find_key
from rlobj.samplers.vllm.settings import ServerSettings

__all__ = ["Connection"]

_Result = TypeVar("_Result")
_Sign = tuple[str, str, Any]
"""Method, path and body of a request that a live server answers at once."""

_CONCURRENT = 256
"""Prompts under way at a time."""
_HEARTBEAT = 10.0
"""Seconds between two questions whether the server is alive."""
_LONG = 10.0
"""How many times the usual timeout a long command may take."""
_SHOWN = 500
"""Characters of an answer in an error message."""


class _Failed(Exception):
    """An answer that another attempt may better."""


class Connection:
    """One server.

    Every call is tried `retries` times more after connection errors, silence and answers that
    another attempt may better. What takes long, responses above all, has the time that it needs:
    every few seconds the server is asked beside it for a sign of life.

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
        """The JSON at a path."""
        return self._run(self._once("GET", path, None, self._settings.timeout))

    def post(self, path: str, body: Any = None, *, long: bool = False) -> Any:
        """The JSON answer to a command.

        Args:
            path: with its query.
            body: JSON.
            long: the command may take ten times the timeout, as long as the server is alive.

        Raises:
            ConfigError: the key is wrong, or the server does not know such a command.
            RunError: the server is dead or hung, or could not do it.
        """
        timeout = self._settings.timeout
        if not long:
            return self._run(self._once("POST", path, body, timeout))
        return self._run(self._guarded([(path, body)], _LONG * timeout, ("GET", "/health", None)))[
            0
        ]

    def call(self, method: str, *arguments: Any, long: bool = False) -> list[Any]:
        """The results of a worker's method, one for each worker."""
        body = {"method": method, "args": list(arguments)}
        return self.post("/collective_rpc", body, long=long)["results"]

    def complete(
        self, bodies: Sequence[dict[str, Any]], arrived: Callable[[int, Any], None] | None = None
    ) -> list[Any]:
        """The answers to all of these requests for responses, in their order.

        Args:
            bodies: JSON.
            arrived: told the place of a request and its answer as soon as that is here; what it
                raises ends the call.
        """
        requests = [("/v1/completions", body) for body in bodies]
        engine = ("POST", "/collective_rpc", {"method": "rlobj_status"})
        return self._run(self._guarded(requests, None, engine, arrived))

    async def _once(self, method: str, path: str, body: Any, timeout: float) -> Any:
        async with self._session() as session:
            return await self._retried(session, method, path, body, timeout)

    async def _guarded(
        self,
        requests: Sequence[tuple[str, Any]],
        timeout: float | None,
        sign: _Sign,
        arrived: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """The answers to requests that take long; ends once there is no sign of life any more."""
        places = asyncio.Semaphore(_CONCURRENT)

        async def one(session: Any, place: int, path: str, body: Any) -> Any:
            async with places:
                answer = await self._retried(session, "POST", path, body, timeout)
            if arrived is not None:
                arrived(place, answer)
            return answer

        try:
            async with self._session() as session, asyncio.TaskGroup() as group:
                pulse = group.create_task(self._pulse(session, sign))
                jobs = [
                    group.create_task(one(session, place, *request))
                    for place, request in enumerate(requests)
                ]
                answers = [await job for job in jobs]
                pulse.cancel()
                return answers
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _pulse(self, session: Any, sign: _Sign) -> None:
        """Ask for a sign of life now and then; raises when there is none."""
        timeout = self._settings.timeout
        while True:
            await asyncio.sleep(min(_HEARTBEAT, timeout))
            await self._retried(session, *sign, timeout)

    async def _retried(
        self, session: Any, method: str, path: str, body: Any, timeout: float | None
    ) -> Any:
        import aiohttp

        settings = self._settings
        pause = settings.backoff
        for attempt in range(settings.retries + 1):
            try:
                return await self._attempt(session, method, path, body, timeout)
            except (aiohttp.ClientError, TimeoutError, _Failed) as error:
                out_of_time = (
                    isinstance(error, TimeoutError) and timeout == _LONG * settings.timeout
                )
                if attempt == settings.retries or out_of_time:
                    raise RunError(self._dead(error, attempt + 1)) from error
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

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
            raise _Failed(f"HTTP {answer.status}: {shown}")
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
        if find_key(self.url) is None:
            return (
                f"the server at {self.url} needs a key, and none is set. Set {KEY_VARIABLE} in the "
                "environment to the key that `rlobj serve` was started with."
            )
        return (
            f"the server at {self.url} refuses the key. Set {KEY_VARIABLE} in the environment to "
            "the key that `rlobj serve` was started with."
        )

    def _dead(self, error: BaseException, attempts: int) -> str:
        silent = isinstance(error, TimeoutError)
        state = "does not answer" if silent else "cannot be reached"
        reason = getattr(error, "os_error", None) or error  # without aiohttp's words around it
        detail = "" if silent else f" ({reason})"
        port = urlsplit(self.url).port or 80
        return (
            f"the server at {self.url} {state}{detail}; {attempts} attempts. "
            f"Start one with: rlobj serve MODEL --port {port}"
        )

    @staticmethod
    def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine to its end, also where an event loop runs already (a notebook)."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, work).result()
