"""The key of a server: how it is created, stored, found and checked.

vLLM's own --api-key protects only the paths under /v1, but not the control endpoints, which can
replace the weights. `RequireKey` protects all paths. It also keeps the lease of the server.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

KEY_VARIABLE = "RLOBJ_API_KEY"
"""Environment variable with the key, for server and client. Command lines are visible to all."""

RUN_HEADER = "rlobj-run"
"""HTTP header with the id and the name of the run that takes or holds the server's lease."""

SILENCE = 300.0
"""Seconds without a request of its run after which a lease ends."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RequireKey:
    """ASGI middleware that rejects requests and websockets without `Authorization: Bearer KEY`.

    It also keeps the server's lease. A request of a run takes or renews it, a DELETE request ends
    it, and requests of another run are rejected meanwhile. Requests without a run need no lease.

    Raises:
        RuntimeError: the environment has no key; the server does not start.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set; a server does not start without a key")
        self._app = app
        self._expected = f"Bearer {key}".encode()
        self._holder = ""
        self._since = self._until = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on requests with the key, and the server's start and stop events."""
        if scope["type"] == "lifespan" or self._allows(scope):
            lease = self._held_by_another(scope)
            if lease is None:
                await self._app(scope, receive, send)
            else:
                await _reject(send, 423, lease)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "key required"})
        else:
            await _reject(send, 401, {"error": "a key is required: Authorization: Bearer KEY"})

    def _held_by_another(self, scope: Any) -> dict[str, Any] | None:
        """Take or renew the lease for the run of a request; if another run holds it, return it."""
        run = b"".join(_values(scope, RUN_HEADER.encode())).decode("latin-1")
        now = time.monotonic()
        if not run:
            return None
        if run != self._holder:  # a copy of a run's folder has its id
            if now < self._until:
                left = self._until - now
                name = unquote(self._holder.partition(" ")[2])
                return {"name": name, "since": self._since, "free_in": left}
            self._since = time.time()
        self._holder, self._until = run, now + SILENCE * (scope["method"] != "DELETE")
        return None

    def _allows(self, scope: Any) -> bool:
        keys = _values(scope, b"authorization")
        return len(keys) == 1 and hmac.compare_digest(keys[0], self._expected)


def _values(scope: Any, header: bytes) -> list[bytes]:
    return [value for name, value in scope.get("headers", ()) if name == header]


async def _reject(send: Any, status: int, body: Any) -> None:
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def state_dir() -> Path:
    """Return the folder of this user's server keys and logs; only the user can read it."""
    from platformdirs import user_cache_path

    folder = user_cache_path("rlobj", appauthor=False) / "servers"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def key_file(port: int) -> Path:
    """Return the path of the key file for the server on this port of this machine."""
    return state_dir() / f"{port}.key"


def is_local(host: str | None) -> bool:
    """Tell whether the address is reachable from this machine only."""
    return host in _LOOPBACK


def find_key(url: str) -> str | None:
    """Find the key of a server: in the environment or, for a local server, in its key file."""
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return key
    parts = urlsplit(url)
    if is_local(parts.hostname):
        with contextlib.suppress(OSError):
            return key_file(parts.port or 80).read_text("ascii").strip()
    return None
