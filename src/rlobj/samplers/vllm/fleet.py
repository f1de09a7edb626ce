"""Several servers as one: prompts dealt by load, and waiting for a server that is gone."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, RunError, warn_once
from rlobj.base.progress import ENDING
from rlobj.samplers.types import Feed, Item, WaitEnded, WeightsLost
from rlobj.samplers.vllm.connection import Connection, Result, ServerGone, ServerRefuses, run
from rlobj.samplers.vllm.settings import ServerSettings

logger = logging.getLogger(__name__)

_CONCURRENT = 256
"""Largest number of simultaneous requests to one server."""
_PAUSE = 1.0
"""Seconds between two attempts to reach a server that is gone."""


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
        self._model_config = model_config
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
            nodes = list(self._answers(self.nodes, lambda node: node.join(self._model_config)))
            refusals = [e for e in self._errors.values() if isinstance(e, ServerRefuses)]
            if first and refusals:
                raise ConfigError(str(refusals[0]))
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
        began, attempts = time.monotonic(), 0
        start = f"Start one: rlobj serve MODEL --port {urlsplit(self.nodes[0].url).port or 80}"
        while not (nodes := attempt()):
            attempts += 1
            waited = time.monotonic() - began
            if waited >= self._patience:
                raise RunError(f"{self._why()}. Waited {waited:.0f} s. {start}")
            if attempts == 2:  # a short failure is not worth a warning
                left = self._patience - waited
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
        self,
        feed: Feed[Item],
        body: Callable[[Item], dict[str, Any]],
        arrived: Callable[[Item, Any], None],
        version: int,
    ) -> None:
        """Send completion requests to the servers that hold a version of the weights.

        All servers begin with equally many; one that answers takes the next.

        Args:
            feed: what is asked, which may come while other requests are answered.
            body: gives the JSON body of a request.
            arrived: called with what was asked and the answer as soon as it arrives. An exception
                in it ends the call.
            version: of the weights.

        Raises:
            WeightsLost: a server is gone, or got other weights meanwhile.
            RunError: no server answers in time.
        """

        async def complete(node: Connection, session: Any, item: Item) -> None:
            arrived(item, await node.send(session, "POST", "/v1/completions", body(item), None))

        self.ask(version)
        before = self.living
        run(self._deal([*before], feed, complete))
        after = self.each(before, state)
        if wrong := [node for node in before if after[node] != before[node]]:
            self.living = {}
            raise self.lost(wrong)

    async def _deal(
        self,
        nodes: Sequence[Connection],
        feed: Feed[Item],
        work: Callable[[Connection, Any, Item], Coroutine[Any, Any, None]],
    ) -> None:
        """Do the work of each item of a feed with a server that is free.

        Raises:
            WeightsLost: a server is gone.
        """
        queue: asyncio.Queue[Item | None] = asyncio.Queue()
        share = min(_CONCURRENT, -(-feed.sources // len(nodes)))

        async def supply() -> None:
            while (items := await asyncio.to_thread(feed.take, wait=True)) is not None:
                for item in items:
                    queue.put_nowait(item)
            for _ in range(share * len(nodes)):
                queue.put_nowait(None)

        async def slot(node: Connection, session: Any) -> None:
            while (item := await queue.get()) is not None:
                await work(node, session, item)

        async def using(node: Connection, coroutine: Coroutine[Any, Any, None]) -> None:
            try:
                await coroutine
            except ServerGone as error:
                self._drop(node, error)
                raise WeightsLost(str(error)) from error

        async with contextlib.AsyncExitStack() as stack:
            watches: list[asyncio.Task[None]] = []
            slots = [asyncio.create_task(supply())]
            for node in nodes:
                session = await stack.enter_async_context(node.session())
                watch = using(node, node.watch(session, *node.pulse))
                watches.append(asyncio.create_task(watch))
                slots += [
                    asyncio.create_task(using(node, slot(node, session))) for _ in range(share)
                ]
            done = asyncio.gather(*slots)
            try:
                ended, _ = await asyncio.wait([done, *watches], return_when=asyncio.FIRST_COMPLETED)
                ended.pop().result()
            finally:
                for task in (*watches, *slots):
                    task.cancel()
                await asyncio.gather(done, *watches, *slots, return_exceptions=True)


def state(node: Connection) -> tuple[int, int]:
    """The version of a server's weights, and how often some came."""
    return node.state()
