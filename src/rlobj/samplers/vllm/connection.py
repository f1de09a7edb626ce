"""HTTP connection to one server: the key, what each answer means, and waiting for a server."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, MissingExtra, RunError
from rlobj.base.processes import ENDING
from rlobj.samplers.types import Feed, Item, WaitEnded, WeightsLost
from rlobj.samplers.vllm.auth import KEY_VARIABLE, find_key
from rlobj.samplers.vllm.settings import ServerSettings

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
_HEARTBEAT = 10.0
"""Seconds between health checks."""
_LONG = 10.0
"""Factor on the timeout for long commands."""
_QUICK = 15.0
"""Largest number of seconds to wait for a connection."""
_IDLE = 2.0
"""Seconds after which an idle connection is not used again; vLLM closes it after 5."""
_SHOWN = 500
"""Largest number of characters of a response in an error message."""
_CONCURRENT = 256
"""Largest number of simultaneous requests."""
_PAUSE = 1.0
"""Seconds between two attempts to reach a server that is gone."""
Request = tuple[str, str, Any]
"""Method, path and JSON body."""
NAMING = "/v1/load_lora_adapter"
"""The path that does not answer in JSON."""
HEALTH: Request = ("GET", "/health", None)


class ServerGone(WeightsLost):
    """The server does not answer, or cannot do its work at the moment."""


class Connection:
    """Connection to one server. Each request is sent once.

    Args:
        settings: address, timeout and patience.

    Attributes:
        where: the server, in the words of messages.

    Raises:
        MissingExtra: aiohttp is not installed.
    """

    def __init__(self, settings: ServerSettings) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise MissingExtra("aiohttp", "vllm-server", "sampling from a vLLM server") from None
        self.url, self.timeout = settings.url.rstrip("/"), settings.timeout
        self._patience, self.where = settings.patience, f"the server at {self.url}"

    def wait(self, attempt: Callable[[], Result]) -> Result:
        """Repeat an attempt until the server answers.

        Raises:
            WaitEnded: the process is asked to end.
            RunError: it does not answer in time.
        """
        began, warned = time.monotonic(), False
        while True:
            try:
                return attempt()
            except ServerGone as error:
                waited, port = time.monotonic() - began, urlsplit(self.url).port or 80
                text = f"{error}. Start it with: rlobj serve MODEL --port {port}"
                if waited >= self._patience:
                    raise RunError(f"{text}. Waited {waited:.0f} s.") from error
                if not warned:
                    logger.warning("%s. Waiting for it, up to %.0f s", text, self._patience)
                warned = True
                if ENDING.wait(_PAUSE):
                    raise WaitEnded(str(error)) from error

    def call(self, method: str, *arguments: Any, long: bool = True) -> list[Any]:
        """Call a method of `WeightExtension` in all workers, and return their results.

        Raises:
            ServerGone: the server does not answer.
            RunError: a worker failed.
        """
        body = {"method": method, "args": list(arguments)}
        results = self.ask("POST", "/collective_rpc", body, long=long)["results"]
        for result in results:
            if isinstance(result, dict) and "error" in result:
                raise RunError(f"a worker of {self.where} failed: {result['error']}")
        return results

    def ask(self, method: str, path: str, body: Any = None, *, long: bool = False) -> Any:
        """Send one request, and return the JSON response; check the server's health meanwhile.

        Args:
            method: GET or POST.
            path: path with query.
            body: JSON body.
            long: allow ten times the timeout.

        Raises:
            ServerGone: the server does not answer.
            ConfigError: the server refuses the request.
            RunError: the command failed.
        """

        timeout = self.timeout * (_LONG if long else 1)

        async def work() -> Any:
            async with self._watched(HEALTH, self.timeout) as (session, _):
                return await self._send(session, (method, path, body), timeout)

        return _run(work())

    def complete(
        self,
        feed: Feed[Item],
        path: str,
        body: Callable[[Item], dict[str, Any]],
        arrived: Callable[[Item, Any], None],
        pulse: Request,
    ) -> None:
        """Send requests whose answers take time.

        Args:
            feed: what is asked, which may come while other requests are answered.
            path: of the requests.
            body: gives the JSON body of a request.
            arrived: called with what was asked and the answer as soon as it arrives. An exception
                in it ends the call.
            pulse: a request that shows that the server still works. If items join (`together` is
                False), it may take as long as weights, which come meanwhile.

        Raises:
            ServerGone: the server does not answer.
        """

        async def work() -> None:
            free = asyncio.Semaphore(_CONCURRENT)

            async def complete(item: Item) -> None:
                async with free:
                    request = "POST", path, body(item)
                    arrived(item, await self._send(session, request, None))

            limit = self.timeout * (1 if feed.together else _LONG)
            async with self._watched(pulse, limit) as (session, tasks):
                running: set[asyncio.Task[None]] = set()
                while (items := await asyncio.to_thread(feed.take, wait=True)) is not None:
                    for item in items:
                        running.add(task := tasks.create_task(complete(item)))
                        task.add_done_callback(running.discard)
                await asyncio.gather(*running)

        _run(work())

    @contextlib.asynccontextmanager
    async def _watched(
        self, pulse: Request, limit: float
    ) -> AsyncIterator[tuple[Any, asyncio.TaskGroup]]:
        """An HTTP session and tasks, which end with an error when a regular request fails or takes
        longer than the limit in seconds."""
        import aiohttp

        async def watch() -> None:
            while True:
                await asyncio.sleep(min(_HEARTBEAT, self.timeout))
                await self._send(session, pulse, limit)

        key = find_key(self.url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE)
        try:
            async with (
                aiohttp.ClientSession(headers=headers, connector=connector) as session,
                asyncio.TaskGroup() as tasks,
            ):
                watching = tasks.create_task(watch())
                yield session, tasks
                watching.cancel()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _send(self, session: Any, request: Request, timeout: float | None) -> Any:
        """Send one request, and return the JSON response.

        Raises:
            ServerGone: the server does not answer, or its engine has ended.
            ConfigError: the server refuses the request.
            RunError: the command failed.
        """
        import aiohttp

        method, path, body = request
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(self.timeout, _QUICK))
        try:
            async with session.request(
                method, self.url + path, json=body, timeout=limits
            ) as answer:
                status, text = answer.status, await answer.text()
            if status == 200:
                return json.loads(text) if text and path != NAMING else None
        except TimeoutError as error:
            raise ServerGone(f"{self.where} does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "os_error", None) or error  # the cause without aiohttp's text
            raise ServerGone(f"{self.where} cannot be reached ({reason})") from error
        except ValueError:  # not JSON: another program
            status = 404
        shown = f"{self.where} answered {path} with {status}: {text[:_SHOWN]}"
        if status == 404:
            raise ConfigError(
                f"{self.where} does not know {path}. Start it with: rlobj serve MODEL"
            )
        if status == 401:
            raise ConfigError(f"{shown}. Set {KEY_VARIABLE} to the key of the server.")
        closing = path != "/collective_rpc" or "after shutdown" in text
        if status in (502, 503, 504) or (status >= 500 and closing):
            raise ServerGone(shown)
        if status >= 500:
            await self._send(session, HEALTH, self.timeout)  # fails if it has ended
        raise (RunError if status >= 500 else ConfigError)(shown)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if an event loop is already running (in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
