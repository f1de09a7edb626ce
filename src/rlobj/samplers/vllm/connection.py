"""HTTP connection to one server: the key, what each answer means, and its model."""

import asyncio
import json
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rlobj.base.errors import ConfigError, MissingExtra, RlobjError, RunError
from rlobj.installation import check_version
from rlobj.samplers.vllm.auth import KEY_VARIABLE, find_key
from rlobj.samplers.vllm.installed import SUPPORTED

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
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


_AGAIN = "If it does not recover, start another one: rlobj serve MODEL"


class ServerGone(RunError):
    """The server does not answer, or cannot do its work at the moment."""


class ServerRefuses(ServerGone):
    """The server refuses the key, has another model, or is another program."""


class Connection:
    """Connection to one server. Each request is sent once.

    Args:
        url: address of the server.
        timeout: seconds to wait for an answer.

    Attributes:
        about: what the server's workers say about themselves; empty before `join`.

    Raises:
        MissingExtra: aiohttp is not installed.
    """

    pulse: tuple[str, str, Any] = ("POST", "/collective_rpc", {"method": "rlobj_status"})
    """Request that shows, during completions, that the server still works."""

    def __init__(self, url: str, timeout: float) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError:
            raise MissingExtra("aiohttp", "vllm-server", "sampling from a vLLM server") from None
        self.url, self.timeout = url, timeout
        self.about: list[dict[str, Any]] = []

    def join(self, model_config: Any) -> None:
        """Check that the server answers and, if it is new or was gone, that it fits the model.

        Args:
            model_config: configuration of the trainer's model.

        Raises:
            ServerGone: it does not answer, or does not fit.
        """
        try:
            self._check(model_config)
        except ServerGone:
            raise
        except RlobjError as error:
            kind = ServerRefuses if isinstance(error, ConfigError) else ServerGone
            raise kind(error) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # another program
            raise ServerRefuses(
                f"the server at {self.url} gave an answer that `rlobj serve` does not give "
                f"({error!r}). Start it with: rlobj serve MODEL"
            ) from error

    def _check(self, model_config: Any) -> None:
        version = self.ask("GET", "/version")["version"]
        if self.about:
            return
        check_version("vllm", version, SUPPORTED, f"the server {self.url}")
        workers = self.call("rlobj_describe")
        about, text = workers[0], model_config.get_text_config()
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

    def state(self) -> tuple[int, int]:
        """Return the version of the workers' weights (-1: none sent), and how often some came."""
        workers = self.call("rlobj_status")
        version = min(int(status["version"]) for status in workers)
        return version, sum(int(status["loads"]) for status in workers)

    def call(self, method: str, *arguments: Any, long: bool = False) -> list[Any]:
        """Call a method of all workers, and return one result per worker.

        Raises:
            RunError: a worker failed.
        """
        body = {"method": method, "args": list(arguments)}
        results = self.ask("POST", "/collective_rpc", body, long=long)["results"]
        for result in results:
            if isinstance(result, dict) and "error" in result:
                raise RunError(
                    f"a worker of the server at {self.url} failed: {result['error']}. {_AGAIN}"
                )
        return results

    def ask(self, method: str, path: str, body: Any = None, *, long: bool = False) -> Any:
        """Send one request, and return the JSON response.

        Args:
            method: GET or POST.
            path: path with query.
            body: JSON body.
            long: allow ten times the timeout, and check the server's health meanwhile.

        Raises:
            ServerGone: the server does not answer.
            ConfigError: the server refuses the request.
            RunError: the command failed.
        """
        timeout = self.timeout * (_LONG if long else 1)

        async def work() -> Any:
            async with self.session() as session:
                tasks = [asyncio.create_task(self.send(session, method, path, body, timeout))]
                if long:
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
        if status == 404:
            raise ServerRefuses(
                f"the server at {self.url} does not know {path}. Start it with: rlobj serve MODEL"
            )
        if status == 401:
            problem = "refuses the key" if find_key(self.url) else "needs a key, and none is set"
            raise ServerRefuses(
                f"the server at {self.url} {problem}. Set {KEY_VARIABLE} in the environment to the "
                "key that the server was started with."
            )
        if status in (502, 503, 504) or (status >= 500 and path == "/v1/completions"):
            raise ServerGone(shown)
        if status >= 500 and path != "/health":
            await self.send(session, "GET", "/health", None, self.timeout)  # fails if it has ended
        if status >= 500:
            raise RunError(f"{shown}. {_AGAIN}")
        raise ConfigError(shown)


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end, also if an event loop is already running (in a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
