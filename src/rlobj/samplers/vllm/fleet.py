"""Several servers as one: prompts dealt by load, servers that die, and waiting for their return."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.progress import ENDING
from rlobj.samplers.types import Feed, WaitEnded, WeightsLost
from rlobj.samplers.vllm.connection import Connection, Result, ServerGone, ServerRefuses, run
from rlobj.samplers.vllm.settings import ServerSettings
from rlobj.samplers.vllm.work import Work

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
        holder: id and name of the run that takes the servers' leases; "" = it only reads.
        kind: class of the connections.

    Attributes:
        nodes: all servers.
        living: those that hold the expected weights, as far as is known.

    Raises:
        ConfigError: a server refuses the key or this run, or cannot sample for this model.
        RunError: no server answers.
    """

    def __init__(
        self,
        settings: ServerSettings,
        model_config: Any,
        holder: str,
        kind: type[Connection] = Connection,
    ) -> None:
        self.nodes = [kind(url, settings.timeout, holder) for url in settings.urls]
        self.living: list[Connection] = []
        self._patience = settings.patience
        self._model_config, self._dtype = model_config, ""
        self._errors: dict[Connection, ServerGone] = {}
        try:
            self.living = self.join(first=True)
        except BaseException:  # a trainer that does not start leaves no lease
            for node in self.nodes:
                node.release()
            raise

    def join(self, *, first: bool = False) -> list[Connection]:
        """Return the servers that answer and fit the model; wait until there is one.

        Args:
            first: the trainer starts, so a refusal is an error of its settings.

        Raises:
            ConfigError: a server refuses a trainer that starts, or does not fit its model.
            RunError: none answers in time.
        """

        def attempt() -> list[Connection]:
            joined = self.each(self.nodes, lambda node: node.join(self._model_config, self._dtype))
            nodes = list(joined)
            refusals = [e for e in self._errors.values() if isinstance(e, ServerRefuses)]
            if first and refusals:
                raise ConfigError(str(refusals[0]))
            dtypes = {node.about[0]["dtype"] for node in nodes}
            if len(dtypes) > 1:
                raise ConfigError("the servers have different dtypes; expected one dtype")
            self._dtype = self._dtype or "".join(dtypes)
            return nodes

        return self._wait(attempt)

    def holding(self, version: int) -> list[Connection]:
        """Return the servers that hold these weights; wait until a server answers.

        Raises:
            WeightsLost: servers answer, but none holds them.
            RunError: none answers in time.
        """

        def attempt() -> list[Connection]:
            versions = self.each(self.nodes, lambda node: node.version())
            right = [node for node in versions if versions[node] == version]
            if versions and not right:
                raise self.lost(versions)
            return right

        return self._wait(attempt)

    def each(
        self, nodes: Iterable[Connection], work: Callable[[Connection], Result]
    ) -> dict[Connection, Result]:
        """Return the results of work with several servers at once; leave out those that are gone.

        Raises:
            Exception: of the work, other than `ServerGone`.
        """
        results: dict[Connection, Result] = {}
        errors: list[Exception] = []
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for node, job in [(node, pool.submit(work, node)) for node in nodes]:
                try:
                    results[node] = job.result()
                    if self._errors.pop(node, None):
                        logger.warning("the server at %s answers again", node.url)
                except ServerGone as error:
                    self._drop(node, error)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return results

    def lost(self, nodes: Iterable[Connection] = ()) -> WeightsLost:
        """Return the error for servers that were restarted, or else for those that are gone."""
        urls = ", ".join(node.url for node in nodes)
        why = f"the server at {urls} has no weights of this run: it was restarted"
        return WeightsLost(why if urls else self._why())

    def _drop(self, node: Connection, error: ServerGone) -> None:
        node.about = []
        if node in self.living:
            self.living.remove(node)
        repeated = isinstance(self._errors.get(node), type(error))
        self._errors[node] = error
        if not repeated and len(self._errors) < len(self.nodes):
            logger.warning("%s. The run goes on with the other servers.", error)

    def _wait(self, attempt: Callable[[], list[Connection]]) -> list[Connection]:
        """Repeat an attempt until it finds servers.

        Raises:
            WaitEnded: the process is asked to end.
            RunError: it finds none in time.
        """
        began = time.monotonic()
        said = began - _SAID + 2 * _PAUSE  # a short failure is not worth a warning
        while not (nodes := attempt()):
            now = time.monotonic()
            if now - began >= self._patience:
                raise self._unanswered(now - began)
            if now - said >= _SAID:
                said, left = now, self._patience - (now - began)
                logger.warning(
                    "%s. Waiting for it, up to %.0f s more. %s",
                    self._why(),
                    left,
                    self._how_to_start(),
                )
            self._pause()
        return nodes

    def _unanswered(self, seconds: float) -> RunError:
        """Return the error for servers that did not do the work in the time that a run waits."""
        return RunError(f"{self._why()}. Waited {seconds:.0f} s. {self._how_to_start()}")

    def _why(self) -> str:
        """Return what is wrong with the servers that are gone."""
        return "; ".join(map(str, self._errors.values()))

    def _how_to_start(self) -> str:
        return f"Start one: rlobj serve MODEL --port {urlsplit(self.nodes[0].url).port or 80}"

    def _pause(self) -> None:
        """Wait for the next attempt.

        Raises:
            WaitEnded: the process is asked to end.
        """
        if ENDING.wait(_PAUSE):
            raise WaitEnded(self._why())

    # Completions.

    def complete(
        self, feed: Feed[dict[str, Any]], arrived: Callable[[int, Any], None], version: int
    ) -> None:
        """Send completion requests to the servers that hold a version of the weights.

        All servers begin with equally many; one that answers takes the next. What a server that
        dies leaves goes to the others, or to itself when it is back with its weights.

        Args:
            feed: JSON bodies, which may come while others are answered.
            arrived: called with a request's number and response as soon as it arrives. An
                exception in it ends the call.
            version: of the weights.

        Raises:
            WeightsLost: a server no longer holds these weights.
            RunError: no server answers in time.
        """
        work, stuck = Work(feed), 0.0
        work.refill()
        while work.left or work.open:
            self.living = self.living or self.holding(version)
            before = work.answered
            if nodes := list(self.living):  # another thread may drop one
                run(self._deal(nodes, work, arrived))
            stuck = 0.0 if work.answered > before else stuck or time.monotonic()
            silence = time.monotonic() - stuck if stuck else 0.0
            if silence > self._patience:  # it answers, but not with completions
                raise self._unanswered(silence)
            if work.left or work.open:
                self._pause()
        versions = self.each(list(self.living), lambda node: node.version())
        wrong = [node for node in versions if versions[node] != version]
        if wrong:
            self.living = [node for node in self.living if node not in wrong]
            raise self.lost(wrong)

    async def _deal(
        self, nodes: Sequence[Connection], work: Work, arrived: Callable[[int, Any], None]
    ) -> None:
        """Send the requests; servers that die in it leave theirs to the others."""
        work.begin()
        share = min(_CONCURRENT, -(-work.feed.sources // len(nodes)))

        async def serve(node: Connection) -> None:
            async with node.session() as session:
                watch = node.watch(session, *node.pulse)
                slots = [asyncio.create_task(slot(node, session)) for _ in range(share)]
                watching, slotted = asyncio.create_task(watch), asyncio.gather(*slots)
                try:
                    await asyncio.wait([slotted, watching], return_when=asyncio.FIRST_COMPLETED)
                    (slotted if slotted.done() else watching).result()
                except ServerGone as error:
                    self._drop(node, error)
                finally:
                    for task in (watching, *slots):
                        task.cancel()
                    await asyncio.gather(watching, *slots, return_exceptions=True)

        async def slot(node: Connection, session: Any) -> None:
            while (index := await work.next()) is not None:
                try:
                    body = work.bodies[index]
                    answer = await node.send(session, "POST", "/v1/completions", body, None)
                except BaseException:
                    work.again(index)
                    raise
                work.settle(index)
                arrived(index, answer)

        await asyncio.gather(*map(serve, nodes))
