"""The key of a server: how it is created, stored, found and checked.

vLLM's own --api-key protects only the paths under /v1, but not the control endpoints, which can
replace the weights. `RequireKey` protects all paths.
"""

import contextlib
import hmac
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

KEY_VARIABLE = "RLOBJ_API_KEY"
"""Environment variable with the key, for server and client. Command lines are visible to all."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RequireKey:
    """ASGI middleware that rejects requests and websockets without `Authorization: Bearer KEY`.

    Raises:
        RuntimeError: the environment has no key; the server does not start.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set; a server does not start without a key")
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on requests with the key, and the server's start and stop events."""
        if scope["type"] == "lifespan" or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "key required"})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            body = b'{"error": "a key is required: Authorization: Bearer KEY"}'
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _allows(self, scope: Any) -> bool:
        keys = [value for name, value in scope.get("headers", ()) if name == b"authorization"]
        return len(keys) == 1 and hmac.compare_digest(keys[0], self._expected)


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
