"""Several servers as one: prompts dealt by load, and waiting for a server that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, RunError, warn_once
from rlobj.base.progress import ENDING
from rlobj.samplers.types import Feed, WaitEnded, WeightsLost
from rlobj.samplers.vllm.connection import Connection, Result, ServerGone, ServerRefuses, run
from rlobj.samplers.vllm.settings import ServerSettings

logger = logging.getLogger(__name__)

_CONCURRENT = 256
"""Largest number of simultaneous requests to one server."""
_PAUSE = 1.0
"""Seconds between two attempts to reach a server that is gone."""
_SAID = 60.0
"""Seconds between two warnings while the trainer waits."""


class Fleet:
    """The servers of a trainer.

    Args:
        settings: addresses and patience.
        model_config: configuration of the trainer's model, to be compared with the servers'.
        kind: class of the connections.

    Attributes:
        nodes: all servers.
        living: the state of those that hold the expected weights; none = they must be asked.

    Raises:
        ConfigError: a server refuses the key, or cannot sample for this model.
        RunError: no server answers.
    """

    def __init__(
        self, settings: ServerSettings, model_config: Any, kind: type[Connection] = Connection
    ) -> None:
        self.nodes = [kind(url, settings.timeout) for url in settings.urls]
        self._patience = settings.patience
        self._model_config, self._dtype = model_config, ""
        self._errors: dict[Connection, ServerGone] = {}
        self.living: dict[Connection, tuple[int, int]] = {}
        self.living = self.each(self.join(first=True), state)

    def join(self, *, first: bool = False) -> list[Connection]:
        """Return the servers that answer and fit the model; wait until there is one.

        Args:
            first: the trainer starts, so a refusal is an error of its settings.

        Raises:
            ConfigError: a server refuses a trainer that starts, or does not fit its model.
            RunError: none answers in time.
        """

        def attempt() -> list[Connection]:
            joined = self._answers(self.nodes, lambda x: x.join(self._model_config, self._dtype))
            nodes = list(joined)
            refusals = [e for e in self._errors.values() if isinstance(e, ServerRefuses)]
            if first and refusals:
                raise ConfigError(str(refusals[0]))
            dtypes = {node.about[0]["dtype"] for node in nodes}
            if len(dtypes) > 1:
                raise ConfigError("the servers have different dtypes; expected one dtype")
            self._dtype = self._dtype or "".join(dtypes)
            for error in self._errors.values() if nodes else ():
                warn_once(f"{error}. The run goes on with the other servers.")
            return nodes

        return self._wait(attempt)

    def ask(self, version: int) -> None:
        """Find the servers that hold these weights, if none is known; wait until one answers.

        Raises:
            WeightsLost: servers answer, but none holds them.
            RunError: none answers in time.
        """

        def attempt() -> list[Connection]:
            states = self._answers(self.nodes, state)
            self.living = {node: it for node, it in states.items() if it[0] == version}
            if states and not self.living:
                raise self.lost(states)
            return list(self.living)

        if not self.living:
            self._wait(attempt)

    def each(
        self, nodes: Iterable[Connection], work: Callable[[Connection], Result]
    ) -> dict[Connection, Result]:
        """Return the results of work with several servers at once.

        Raises:
            WeightsLost: a server is gone.
            Exception: of the work.
        """
        nodes = list(nodes)
        results = self._answers(nodes, work)
        if len(results) < len(nodes):
            raise WeightsLost(self._why())
        return results

    def lost(self, nodes: Iterable[Connection]) -> WeightsLost:
        """Return the error for servers that have other weights than this run's."""
        urls = ", ".join(node.url for node in nodes)
        return WeightsLost(
            f"the server at {urls} has no weights of this run: it was restarted, or another run "
            "uses it"
        )

    def _answers(
        self, nodes: Iterable[Connection], work: Callable[[Connection], Result]
    ) -> dict[Connection, Result]:
        """Return the results of those servers that are not gone."""
        results: dict[Connection, Result] = {}
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for node, job in [(node, pool.submit(work, node)) for node in nodes]:
                try:
                    results[node] = job.result()
                    if self._errors.pop(node, None):
                        logger.warning("the server at %s answers again", node.url)
                except ServerGone as error:
                    self._drop(node, error)
        return results

    def _drop(self, node: Connection, error: ServerGone) -> None:
        node.about, self._errors[node] = [], error
        self.living = {}

    def _wait(self, attempt: Callable[[], list[Connection]]) -> list[Connection]:
        """Repeat an attempt until it finds servers.

        Raises:
            WaitEnded: the process is asked to end.
            RunError: it finds none in time.
        """
        began = time.monotonic()
        said = began - _SAID + 2 * _PAUSE  # a short failure is not worth a warning
        start = f"Start one: rlobj serve MODEL --port {urlsplit(self.nodes[0].url).port or 80}"
        while not (nodes := attempt()):
            now = time.monotonic()
            left = self._patience - (now - began)
            if left <= 0:
                raise RunError(f"{self._why()}. Waited {now - began:.0f} s. {start}")
            if now - said >= _SAID:
                said = now
                logger.warning(
                    "%s. Waiting for it, up to %.0f s more. %s", self._why(), left, start
                )
            if ENDING.wait(_PAUSE):
                raise WaitEnded(self._why())
        return nodes

    def _why(self) -> str:
        """Return what is wrong with the servers that are gone."""
        return "; ".join(map(str, self._errors.values()))

    # Completions.

    def complete(
        self, feed: Feed[dict[str, Any]], arrived: Callable[[int, Any], None], version: int
    ) -> None:
        """Send completion requests to the servers that hold a version of the weights.

        All servers begin with equally many; one that answers takes the next.

        Args:
            feed: JSON bodies, which may come while others are answered.
            arrived: called with a request's number and response as soon as it arrives. An
                exception in it ends the call.
            version: of the weights.

        Raises:
            WeightsLost: a server is gone, or got other weights meanwhile.
            RunError: no server answers in time.
        """
        self.ask(version)
        before = self.living
        run(self._deal([*before], feed, arrived))
        after = self.each(before, state)
        if wrong := [node for node in before if after[node] != before[node]]:
            self.living = {}
            raise self.lost(wrong)

    async def _deal(
        self,
        nodes: Sequence[Connection],
        feed: Feed[dict[str, Any]],
        arrived: Callable[[int, Any], None],
    ) -> None:
        """Send the requests.

        Raises:
            WeightsLost: a server is gone.
        """
        queue = _Queue(feed)
        share = min(_CONCURRENT, -(-feed.sources // len(nodes)))

        async def slot(node: Connection, session: Any) -> None:
            while (request := await queue.next()) is not None:
                number, body = request
                arrived(number, await node.send(session, "POST", "/v1/completions", body, None))

        async def serve(node: Connection) -> None:
            async with node.session() as session:
                watching = asyncio.create_task(node.watch(session, *node.pulse))
                slots = [asyncio.create_task(slot(node, session)) for _ in range(share)]
                slotted = asyncio.gather(*slots)
                try:
                    await asyncio.wait([slotted, watching], return_when=asyncio.FIRST_COMPLETED)
                    (slotted if slotted.done() else watching).result()
                except ServerGone as error:
                    self._drop(node, error)
                    raise WeightsLost(str(error)) from error
                finally:
                    for task in (watching, *slots):
                        task.cancel()
                    await asyncio.gather(watching, slotted, *slots, return_exceptions=True)

        tasks = [asyncio.create_task(serve(node)) for node in nodes]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def state(node: Connection) -> tuple[int, int]:
    """The version of a server's weights, and how often some came."""
    return node.state()


class _Queue:
    """The requests of a feed, by number, for the slots of one event loop."""

    def __init__(self, feed: Feed[dict[str, Any]]) -> None:
        self._feed, self._open, self._count = feed, True, 0
        self._bodies: deque[dict[str, Any]] = deque()
        self._came, loop = asyncio.Semaphore(0), asyncio.get_running_loop()

        def woken() -> None:  # a change wakes one of the slots that wait
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._came.release)

        feed.woken = woken

    async def next(self) -> tuple[int, dict[str, Any]] | None:
        """The next request and its number; None if no more will come."""
        while True:
            new = self._feed.take() if self._open else None
            self._open = new is not None
            self._bodies.extend(new or ())
            if self._bodies:
                self._count += 1
                return self._count - 1, self._bodies.popleft()
            if not self._open:
                self._came.release()  # the others that wait end, too
                return None
            await self._came.acquire()
