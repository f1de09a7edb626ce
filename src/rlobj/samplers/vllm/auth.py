"""The key of a server: who has it, where it lies, and the guard that asks for it.

vLLM's own --api-key guards the paths under /v1 alone. The control endpoints, which can replace the
weights, lie outside it; `RequireKey` lets nothing pass.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["KEY_VARIABLE", "RequireKey", "find_key", "is_local", "key_file", "new_key", "state_dir"]

KEY_VARIABLE = "RLOBJ_API_KEY"
"""Environment variable with the key, on both sides. A command line would show it to everyone."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class RequireKey:
    """ASGI middleware: without `Authorization: Bearer KEY` no path, method or websocket answers.

    Raises:
        RuntimeError: there is no key in the environment; the server does not start.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise RuntimeError(f"{KEY_VARIABLE} is not set; a server does not start without a key")
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on what has the key, and the server's own start and stop."""
        if scope["type"] == "lifespan" or self._allows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "key required"})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b'{"error": "a key is required: Authorization: Bearer KEY"}'
            await send({"type": "http.response.body", "body": body})

    def _allows(self, scope: Any) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


def new_key() -> str:
    """256 random bits, as text."""
    return secrets.token_urlsafe(32)


def state_dir() -> Path:
    """Where keys and logs of this user's servers are, readable by the user alone."""
    from platformdirs import user_cache_path

    folder = user_cache_path("rlobj", appauthor=False) / "servers"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def key_file(port: int) -> Path:
    """The file with the generated key of the server on a port of this machine."""
    return state_dir() / f"{port}.key"


def is_local(host: str | None) -> bool:
    """Whether only this machine reaches this address."""
    return host in _LOOPBACK


def find_key(url: str) -> str | None:
    """The key for a server: from the environment, else for this machine from its file."""
    key = os.environ.get(KEY_VARIABLE)
    if key:
        return key
    parts = urlsplit(url)
    if is_local(parts.hostname):
        with contextlib.suppress(OSError):
            return key_file(parts.port or 80).read_text("ascii").strip()
    return None
