"""The key of a server, and the HTTP connection: retries and error messages."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers.vllm import ServerSettings, auth, versions
from rlobj.samplers.vllm.auth import KEY_VARIABLE, RequireKey, find_key, key_file
from rlobj.samplers.vllm.connection import Connection
from rlobj.samplers.vllm.server import Server, command

# The key.


def answer_of(guard: RequireKey, scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(guard(scope, None, send))
    return sent


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> RequireKey:
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "inside"})

    monkeypatch.setenv(KEY_VARIABLE, "secret")
    return RequireKey(inside)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"Bearer secret2")],
        [(b"authorization", b"secret")],
        [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer secret")],
        [(b"x-api-key", b"secret")],
    ],
    ids=str,
)
def test_requests_without_the_key_are_rejected(
    guard: RequireKey, method: str, headers: Any
) -> None:
    scope = {"type": "http", "method": method, "path": "/anything", "headers": headers}
    first, _ = answer_of(guard, scope)
    assert first["status"] == 401
    assert [each["type"] for each in answer_of(guard, {**scope, "type": "websocket"})] == [
        "websocket.close"
    ]


def test_requests_and_websockets_with_the_key_are_accepted(guard: RequireKey) -> None:
    headers = [(b"authorization", b"Bearer secret")]
    for kind in ("http", "websocket"):
        assert answer_of(guard, {"type": kind, "headers": headers}) == [{"type": "inside"}]
    assert answer_of(guard, {"type": "lifespan"}) == [{"type": "inside"}]


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="does not start without a key"):
        RequireKey(lambda *_: None)  # pyright: ignore[reportArgumentType]


def test_the_key_is_found_in_the_environment_or_in_the_users_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert find_key("http://127.0.0.1:8000") is None
    key_file(8000).write_text("from-the-file\n", encoding="ascii")
    assert find_key("http://127.0.0.1:8000") == "from-the-file"
    assert find_key("http://localhost:8000") == "from-the-file"
    assert find_key("http://127.0.0.1:8001") is None
    assert find_key("http://10.0.0.1:8000") is None  # key files are for this machine only
    assert stat.S_IMODE(key_file(8000).parent.stat().st_mode) == 0o700
    monkeypatch.setenv(KEY_VARIABLE, "from-the-environment")
    assert find_key("http://127.0.0.1:8000") == "from-the-environment"


def test_the_command_line_of_the_server_holds_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "very-secret")
    words = command(
        "folder", "127.0.0.1", 8000, "float32", {"enable-prefix-caching": False, "max_num_seqs": 8}
    )
    assert not [word for word in words if "very-secret" in word]
    assert f"--middleware={auth.__name__}.RequireKey" in words
    assert "--no-enable-prefix-caching" in words
    assert "--max-num-seqs=8" in words
    with pytest.raises(ConfigError, match="rlobj sets middleware itself"):
        command("folder", "127.0.0.1", 8000, "float32", {"middleware": "other"})


@pytest.mark.skipif(versions.installed() is None, reason="vLLM is not installed")
def test_a_server_does_not_start_on_a_port_in_use(
    flaky: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = Server("folder", port=flaky.server_port)
    with pytest.raises(ConfigError, match="Choose another --port"):
        server.__enter__()
    assert flaky.seen == []  # so it has not received the key


# HTTP.


class Flaky(ThreadingHTTPServer):
    """A server that answers with the given statuses in order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.seen: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Flaky)
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.seen.append(self.path)
        body = b'{"results": [1]}'
        self.send_response(self.server.statuses.pop(0))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def flaky() -> Iterator[Flaky]:
    with Flaky() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def connect(server: Flaky, **settings: Any) -> Connection:
    pytest.importorskip("aiohttp")
    url = f"http://127.0.0.1:{server.server_port}"
    return Connection(ServerSettings(url=url, backoff=0.01, **settings))


def test_temporary_failures_are_retried(flaky: Flaky) -> None:
    flaky.statuses = [503, 502, 200]
    assert connect(flaky, retries=2).call("rlobj_status") == [1]
    flaky.statuses = [500, 200]
    assert connect(flaky, retries=1).complete([{}]) == [{"results": [1]}]


def test_error_after_the_last_retry_shows_the_command_to_type(flaky: Flaky) -> None:
    flaky.statuses = [503] * 3
    with pytest.raises(
        RunError, match=r"(?s)cannot be reached.*3 attempts.*rlobj serve MODEL --port"
    ):
        connect(flaky, retries=2).call("rlobj_status")
    assert len(flaky.seen) == 3


def test_a_command_that_failed_in_the_server_is_not_retried(flaky: Flaky) -> None:
    flaky.statuses = [500]
    with pytest.raises(RunError, match="answered /collective_rpc with 500"):
        connect(flaky).call("rlobj_load_files", "folder", 1)


def test_a_refused_key_is_a_config_error(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    flaky.statuses = [401]
    with pytest.raises(ConfigError, match=f"needs a key.*{KEY_VARIABLE}"):
        connect(flaky).call("rlobj_status")
    monkeypatch.setenv(KEY_VARIABLE, "other")
    flaky.statuses = [401]
    with pytest.raises(ConfigError, match="refuses the key"):
        connect(flaky).call("rlobj_status")


def test_error_names_the_command_for_a_server_without_control_endpoints(flaky: Flaky) -> None:
    flaky.statuses = [404]
    with pytest.raises(ConfigError, match=r"does not know /collective_rpc.*rlobj serve MODEL"):
        connect(flaky).call("rlobj_status")
