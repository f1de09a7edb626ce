"""The key of a server, and the HTTP connection: what is repeated, and error messages."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers.types import Feed, WaitEnded, WeightsLost
from rlobj.samplers.vllm import ServerSettings, auth, extension, installed
from rlobj.samplers.vllm.auth import KEY_VARIABLE, RequireKey, find_key, key_file
from rlobj.samplers.vllm.client import VllmServerSampler
from rlobj.samplers.vllm.connection import HEALTH, Connection, ServerGone
from rlobj.samplers.vllm.server import Server, command

# The key.


def answer_of(guard: RequireKey, scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(guard(scope, None, send))
    return sent


@pytest.fixture
def guard(monkeypatch):
    async def inside(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "inside"})

    monkeypatch.setenv(KEY_VARIABLE, "secret")
    return RequireKey(inside)


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
def test_requests_without_the_key_are_rejected(guard, headers):
    scope = {"type": "http", "method": "OPTIONS", "path": "/anything", "headers": headers}
    first, _ = answer_of(guard, scope)
    assert first["status"] == 401
    assert [each["type"] for each in answer_of(guard, {**scope, "type": "websocket"})] == [
        "websocket.close"
    ]


def test_requests_and_websockets_with_the_key_are_accepted(guard):
    headers = [(b"authorization", b"Bearer secret")]
    for kind in ("http", "websocket"):
        assert answer_of(guard, {"type": kind, "headers": headers}) == [{"type": "inside"}]
    assert answer_of(guard, {"type": "lifespan"}) == [{"type": "inside"}]


def test_a_server_without_a_key_does_not_start(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="does not start without a key"):
        RequireKey(lambda *_: None)  # pyright: ignore[reportArgumentType]


def test_the_key_is_found_in_the_environment_or_in_the_users_file(monkeypatch, tmp_path):
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


def test_the_command_line_of_the_server_holds_no_key(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "very-secret")
    given = {"enable-prefix-caching": False, "max_num_seqs": 8}
    words = command("folder", "127.0.0.1", 8000, given)
    assert not [word for word in words if "very-secret" in word]
    assert f"--middleware={auth.__name__}.RequireKey" in words
    assert "--no-enable-prefix-caching" in words
    assert "--max-num-seqs=8" in words
    with pytest.raises(ConfigError, match="rlobj sets: middleware"):
        command("folder", "127.0.0.1", 8000, {"middleware": "other"})


@pytest.mark.skipif(installed.installed_vllm() is None, reason="vLLM is not installed")
def test_a_server_does_not_start_on_a_port_in_use(flaky, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = Server("folder", port=flaky.server_port)
    with pytest.raises(ConfigError, match=r"in use.*; use another port"):
        server.__enter__()
    assert flaky.seen == []  # so it has not received the key


# HTTP.


class Flaky(ThreadingHTTPServer):
    """It speaks as a server of `rlobj serve` does, with given statuses first. No engine runs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.seen: list[str] = []
        self.version, self.loads, self.number = -1, 1, "0.32.0"
        self.page = ""
        self.about: dict[str, Any] = {}
        self.slow = threading.Event()
        self.slow.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


SHAPE = {"vocab_size": 32, "hidden_size": 8}
ABOUT = {"logprobs_mode": "processed_logprobs", "dtype": "float32", "max_model_len": 64}
MODEL = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**SHAPE))


class Handler(BaseHTTPRequestHandler):
    server: Flaky

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        asked = json.loads(body) if body else {}
        method = asked.get("method", self.path)
        results = {
            "rlobj_describe": [
                {**ABOUT, "shape": dict.fromkeys(extension.SHAPE) | SHAPE, **self.server.about}
            ],
            "rlobj_status": [{"version": self.server.version, "loads": self.server.loads}],
        }
        answer: Any = {"results": results.get(method, [1])}
        if self.path == "/version":
            answer = {"version": self.server.number}
        elif self.path == "/v1/completions":
            self.server.slow.wait(20)
            answer = {"seed": asked.get("seed")}
        if method not in ("/version", "/health", "rlobj_describe"):
            self.server.seen.append(method)
            status = self.server.statuses.pop(0) if self.server.statuses else 200
        else:
            status = 200
        self.reply(status, (self.server.page or json.dumps(answer)).encode())

    do_GET = do_POST

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def flaky():
    pytest.importorskip("aiohttp")
    with Flaky() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield server
        server.slow.set()
        server.shutdown()
        thread.join()


def connected(server: Flaky, **settings: Any) -> Connection:
    return Connection(ServerSettings(url=server.url, **settings))


def answers(connection: Connection, count: int) -> list[Any]:
    found: dict[int, Any] = {}
    asked = Feed.whole(range(count))
    connection.complete(
        asked, "/v1/completions", lambda seed: {"seed": seed}, found.__setitem__, HEALTH
    )
    return [found[i]["seed"] for i in range(count)]


def sampler_of(server: Flaky, **settings: Any) -> VllmServerSampler:
    address = ServerSettings(url=server.url, **settings)
    return VllmServerSampler(address, None, eos=[], model_config=MODEL)


def test_a_server_that_fails_is_used_again_when_it_answers(flaky):
    connection = connected(flaky, patience=300)
    assert answers(connection, 20) == [*range(20)]
    flaky.statuses = [503]
    with pytest.raises(WeightsLost, match="answered /v1/completions with 503"):
        answers(connection, 3)
    flaky.statuses = [503, 503]
    assert connection.wait(lambda: answers(connection, 1)) == [0]


def test_error_after_the_last_attempt_shows_the_command_to_type(flaky, caplog):
    connection = connected(flaky, patience=3)
    flaky.statuses = [503] * 99
    with pytest.raises(RunError, match=r"with 503.*rlobj serve MODEL --port \d+. Waited \d s"):
        connection.wait(lambda: answers(connection, 1))
    assert "Waiting for it, up to " in caplog.text


def test_a_wait_ends_when_the_process_is_asked_to_end(flaky, monkeypatch):
    connection = connected(flaky, patience=3600)
    flaky.statuses = [503] * 99
    monkeypatch.setattr("rlobj.samplers.vllm.connection.ENDING", ending := threading.Event())
    threading.Timer(0.2, ending.set).start()
    with pytest.raises(WaitEnded, match="with 503"):
        connection.wait(lambda: answers(connection, 1))


@pytest.mark.parametrize(
    ("page", "about", "reason"),
    [
        ("", {"shape": {**SHAPE, "hidden_size": 9}}, "hidden_size is 9 there and 8 here"),
        ("", {"logprobs_mode": "raw_logprobs"}, "returns raw_logprobs"),
        ('{"version": "0.12.0"}', {}, "has vllm 0.12.0; rlobj works with"),
        ("<html>", {}, r"does not know /version.*rlobj serve MODEL"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(flaky, page, about, reason):
    flaky.page, flaky.about = page, about
    with pytest.raises(ConfigError, match=reason):
        sampler_of(flaky)


@pytest.mark.parametrize("change", [{"version": -1}, {"loads": 2}], ids=str)
def test_weights_that_are_lost_or_replaced_while_it_samples_are_found(flaky, change):
    flaky.version, flaky.number = 7, "0.31.0"  # no labels show it
    sampler = sampler_of(flaky)
    assert (sampler.engine, sampler.syncs_in_flight) == ("vLLM 0.31.0", False)

    def send() -> None:
        sampler._send(Feed.whole([]), lambda _: ([], {}), lambda *_: None)

    send()
    vars(flaky).update(change)
    with pytest.raises(WeightsLost, match="has no weights of this run"):
        send()


def test_a_hung_server_is_found_by_its_health_check(flaky):
    connection = connected(flaky, timeout=0.5)
    flaky.slow.clear()
    pulse = "POST", "/collective_rpc", {"method": "rlobj_status"}
    flaky.statuses = [200, 503]  # of the health check, while a completion hangs
    with pytest.raises(ServerGone, match="answered /collective_rpc with 503"):
        connection.complete(Feed.whole([0]), "/v1/completions", lambda _: {}, print, pulse)


def test_a_server_that_takes_weights_for_long_is_not_gone_for_requests_that_join(flaky):
    connection, found = connected(flaky, timeout=0.5), []
    pulse = "POST", "/v1/completions", {}  # waits, as vLLM's workers do for the end of a sync
    flaky.slow.clear()
    threading.Timer(2.0, flaky.slow.set).start()
    feed = Feed([0], together=False)
    feed.close()
    connection.complete(feed, pulse[1], lambda _: {}, lambda item, _: found.append(item), pulse)
    assert found == [0]


def test_a_command_that_failed_in_the_server_is_not_repeated(flaky):
    flaky.statuses = [500]
    with pytest.raises(RunError, match="answered /collective_rpc with 500"):
        connected(flaky).call("rlobj_load_files", "folder", 1)
    assert flaky.seen == ["rlobj_load_files"]


def test_a_wrong_key_is_a_config_error(flaky):
    flaky.statuses = [401]
    with pytest.raises(ConfigError, match=f"with 401.*Set {KEY_VARIABLE}"):
        connected(flaky).call("rlobj_status")
