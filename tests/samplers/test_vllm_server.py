"""`rlobj serve` with a real server: the key, both transports, and servers that end or hang."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from forked import wait_until
from screens import shows
from served import ONE_PROCESS, READY, Served, command_line, gone, model_to_serve, serving, session
from vllm_tools import (
    NEEDS_VLLM,
    TOLERANCE,
    InFlight,
    check_syncs_in_flight,
    draw,
    gap,
    jitter,
    named,
    prompts,
    push,
)

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers import Sent
from rlobj.samplers.syncing import compare_live
from rlobj.samplers.types import WeightsLost
from rlobj.samplers.vllm import ServerSettings, VllmServerSampler
from rlobj.samplers.vllm.auth import find_key, key_file
from rlobj.samplers.vllm.scoring import ServerScorer
from rlobj.samplers.vllm.server import Server

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(**NEEDS_VLLM)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with model_to_serve(tmp_path_factory.mktemp("served")) as model:
        yield model


@pytest.fixture(scope="module")
def served(folder):
    """A server whose engine has two workers, which take half a minute to start."""
    two = {"arguments": {"tensor_parallel_size": 2}, "VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    with serving(folder, **two) as server:
        yield server


@pytest.fixture(scope="module")
def small(folder):
    """A server in one process."""
    with serving(folder, arguments={**ONE_PROCESS, "max_num_seqs": 256}, fork=True) as server:
        yield server


@pytest.fixture
def model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def sampler_for(served: Served, model: Any, **settings: Any) -> VllmServerSampler:
    primary = settings.pop("primary", True)
    settings = {"url": served.url, **settings}
    return VllmServerSampler(
        ServerSettings(**settings),
        build_tokenizer(),
        eos=[build_tokenizer().eos_token_id],
        model_config=model.config,
        primary=primary,
    )


def synced(served: Served, model: Any, version: int, **settings: Any) -> VllmServerSampler:
    """A sampler that has sent the weights of the model."""
    sampler = sampler_for(served, model, **settings)
    push(sampler, model, version)
    return sampler


def status_of(method: str, url: str, key: str | None = None, body: Any = None) -> int:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, headers, method=method), timeout=30) as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


# The screen and the key.


@pytest.mark.slow
def test_the_screen_shows_the_settings_for_a_trainer(served, folder):
    screen = served.screen()
    for part in (
        f"rlobj train --preset stapo --model {folder} --sampler vllm-server",
        f"--set sampling.server.url={served.url}",
        key_file(served.port),
    ):
        assert shows(part, screen)
    assert key_file(served.port).stat().st_mode & 0o777 == 0o600
    key = find_key(served.url)
    assert key is not None
    assert key not in screen
    running = [served.process.pid, *served.server_processes()]
    assert len(running) > 2
    assert not [pid for pid in running if key in command_line(pid)]


@pytest.mark.slow
def test_no_endpoint_answers_without_the_key(served, model):
    sampler = synced(served, model, 5)
    before = sampler.received()
    key = find_key(served.url)
    request = Request(f"{served.url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
    with urlopen(request, timeout=30) as answer:
        paths = json.load(answer)["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    known = ("/collective_rpc", "/pause", "/resume", "/reset_prefix_cache", "/v1/completions")
    assert {("POST", path) for path in known} <= routes
    routes |= {
        ("GET", path) for path in ("/docs", "/redoc", "/openapi.json", "/metrics", "/health")
    }
    routes |= {(method, "/collective_rpc") for method in ("GET", "OPTIONS", "PUT", "DELETE")}
    routes |= {("GET", "/nowhere"), ("OPTIONS", "/v1/completions"), ("GET", "//health")}
    load = {"method": "rlobj_load_files", "args": ["/nowhere", 6]}
    for wrong in (None, "", "wrong", f"{key}x", key[:-1] if key else ""):
        answers = {
            (method, path): status_of(method, served.url + path, wrong, load)
            for method, path in routes
        }
        assert {route: status for route, status in answers.items() if status != 401} == {}
    assert sampler.received() == before
    assert gap(model, draw(sampler)) < TOLERANCE


# Sampling and weights.


def test_a_server_samples_from_the_trainers_weights(small, model):
    check_syncs(small, model, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "broadcast"])
def test_logprobs_equal_the_trainers_after_each_sync(served, model, transport):
    check_syncs(served, model, transport)


def check_syncs(served: Served, model: Any, transport: str) -> None:
    sampler = sampler_for(served, model, transport=transport)
    assert sampler.dtype == torch.float32
    for version in (10, 11, 12):
        jitter(model, seed=version)
        push(sampler, model, version)
        samples = draw(sampler)
        assert gap(model, samples) < TOLERANCE
        assert {sample.weight_version for sample in samples} == {version}
    sent, others = Sent(named(model)), Sent((name, x + 1) for name, x in named(model))
    assert len(dict(sent)) == len(dict(others))
    live = sampler.live()
    compare_live(sent.digests, live, 12)
    with pytest.raises(RunError, match="has other values"):
        compare_live(others.digests, live, 12)
    log = key_file(served.port).with_suffix(".log").read_text(encoding="utf-8")
    assert "Failed to load weights" not in log  # the tied head has no weights of its own
    left = f"rlobj-{os.getuid()}-*/*.safetensors"  # a trainer beside this test deletes its own
    wait_until(lambda: not list(Path("/dev/shm").glob(left)))


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["file", "broadcast"])
def test_a_server_continues_after_a_failed_sync(served, model, transport):
    sampler = sampler_for(served, model, transport=transport)
    wrong = [("nowhere.weight", torch.zeros(2)), *named(model)]
    with pytest.raises(RunError, match=r"a worker of the server at .* failed: .*nowhere"):
        sampler.sync(iter(wrong), 40)
    with pytest.raises(WeightsLost, match="has no weights of this run"):
        sampler.received()

    def breaks() -> Iterator[tuple[str, torch.Tensor]]:
        yield named(model)[0]
        raise ValueError("of the trainer")

    with pytest.raises(ValueError, match="of the trainer"):
        sampler.sync(breaks(), 41)
    push(sampler, model, 42)
    assert gap(model, draw(sampler)) < TOLERANCE


@pytest.mark.slow
def test_a_server_continues_after_a_failed_sync_of_responses_in_flight(small, model):
    sampler = sampler_for(small, model, patience=0)
    sampler._eos = []
    drawing = InFlight(sampler, model)
    drawing.ask(40)
    wrong = [("nowhere.weight", torch.zeros(2)), *named(model)]
    with pytest.raises(RunError, match=r"a worker of the server at .* failed: .*nowhere"):
        sampler.sync(iter(wrong), 101)
    with pytest.raises(WeightsLost):
        drawing.end()
    with pytest.raises(ConfigError, match="has weights that a trainer sent"):
        sampler_for(small, model).require_model(str(small.folder))
    push(sampler, model, 102)
    assert gap(model, draw(sampler)) < TOLERANCE


@pytest.mark.slow
def test_other_ranks_leave_sending_to_the_primary(served, model):
    first, other = sampler_for(served, model), sampler_for(served, model, primary=False)
    other.sync(iter(named(model)), 50)
    assert first.received().version != 50
    push(first, model, 50)
    assert gap(model, draw(other)) < TOLERANCE
    assert {sample.weight_version for sample in draw(other)} == {50}


@pytest.mark.slow
def test_scores_are_read_while_a_run_trains_with_the_server(served, model):
    sampler = synced(served, model, 65)
    samples, scorer = draw(sampler), ServerScorer(served.url, name="sage", temperature=1.0)
    scorer.check(sampler.tokenizer)
    sequences = [(each.prompt, each.tokens) for each in samples]
    for sample, values in zip(samples, scorer.logprobs(sequences), strict=True):
        assert values == pytest.approx(list(sample.logprobs), abs=TOLERANCE)
    assert sampler.received().version == 65
    with pytest.raises(ConfigError, match="weights that a trainer sent"):
        sampler_for(served, model).require_model(str(served.folder))


@pytest.mark.slow
def test_weights_of_another_run_that_come_while_this_one_samples_are_found(served, model):
    first, second = synced(served, model, 66), sampler_for(served, model)
    push(second, model, 66)
    with pytest.raises(WeightsLost, match="or another run uses it"):
        draw(first)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["file", "broadcast"])
def test_responses_that_cross_syncs_have_the_log_probs_of_their_tokens_versions(
    small, model, transport
):
    check_syncs_in_flight(sampler_for(small, model, transport=transport), model)


@pytest.mark.slow
def test_other_ranks_draw_on_while_the_primary_syncs(small, model):
    first, other = sampler_for(small, model), sampler_for(small, model, primary=False)
    first._eos = other._eos = []
    drawing = InFlight(first, model)
    other.sync(iter(()), 100)
    beside = InFlight(other, model, primary=False)
    drawing.ask(40)
    beside.ask(40)
    while not (drawing.responses and beside.responses):  # then all 40 of each are in flight
        time.sleep(0.01)
    drawing.sync(101)
    other.sync(iter(()), 101)
    drawing.end()
    beside.end()
    beside.weights = drawing.weights
    assert max(drawing.gaps() + beside.gaps()) < TOLERANCE
    assert max(len(each.versions) for each in beside.responses) == 2


@pytest.mark.slow
def test_another_runs_sync_ends_a_stream(small, model):
    first, second = sampler_for(small, model), sampler_for(small, model)
    first._eos = []
    drawing = InFlight(first, model)
    drawing.ask(20)
    push(second, model, 101)
    with pytest.raises(WeightsLost, match="or another run uses it"):
        drawing.end()


@pytest.mark.slow
def test_a_server_that_starts_again_during_a_stream_has_lost_its_weights(folder, model, tmp_path):
    with serving(folder, arguments=ONE_PROCESS, fork=True) as server:
        sampler = sampler_for(server, model)
        sampler._eos = []
        drawing = InFlight(sampler, model)
        drawing.ask(100)
        server.kill_server()
        server.process.wait(60)
    with serving(folder, arguments=ONE_PROCESS, fork=True, port=server.port):
        with pytest.raises(WeightsLost):
            drawing.end()
        drawing = InFlight(sampler, model)
        drawing.ask(12)
        drawing.sync(102)
        drawing.end()
        assert max(drawing.gaps()) < TOLERANCE


# Servers that hang or end. The last test ends the server of this file.


@pytest.mark.slow
def test_a_hung_server_is_waited_for_and_used_again(served, model):
    sampler = synced(served, model, 70, timeout=3.0, patience=120)
    before = draw(sampler)
    running = served.server_processes()
    for pid in running:
        os.kill(pid, signal.SIGSTOP)

    def again() -> None:
        for pid in running:
            os.kill(pid, signal.SIGCONT)

    threading.Timer(15, again).start()
    with pytest.raises(WeightsLost, match="does not answer"):
        draw(sampler)
    push(sampler, model, 71)  # it waits
    assert [each.tokens for each in draw(sampler)] == [each.tokens for each in before]


def draw_again_and_again(sampler: VllmServerSampler) -> None:
    while True:
        draw(sampler, prompts(100), max_tokens=400)


@pytest.mark.slow
def test_a_killed_server_raises_an_error_when_patience_ends(served, model):
    sampler = synced(served, model, 80, timeout=5.0, patience=2)
    running = served.server_processes()
    leader = session(running[0])
    assert leader is not None
    killer = threading.Timer(0.5, lambda: os.kill(leader, signal.SIGKILL))
    killer.start()
    with pytest.raises(WeightsLost, match="the server at"):
        draw_again_and_again(sampler)
    with pytest.raises(RunError, match=r"cannot be reached.*rlobj serve MODEL --port"):
        push(sampler, model, 81)
    assert served.process.wait(300) == 1  # `rlobj serve` also fails
    assert "the server ended" in served.screen()
    wait_until(lambda: gone(running))  # no process is left
    assert not key_file(served.port).exists()


def test_the_key_can_be_read_before_the_server_answers(folder):
    """A trainer that waits for a server asks as soon as something listens on its port."""
    with Server(str(folder), port=free_port()) as server:
        with pytest.raises(URLError):
            urlopen(f"{server.url}/health")
        assert find_key(server.url)
    assert find_key(server.url) is None


@pytest.mark.slow
def test_a_server_that_starts_ends_with_ctrl_c(folder, tmp_path):
    served = Served(folder, tmp_path)
    try:
        wait_until(served.server_processes, READY)
        running = served.server_processes()
        os.kill(served.process.pid, signal.SIGINT)
        assert served.process.wait(300) == 0
        wait_until(lambda: gone(running))
    finally:
        served.end()
