"""Training against a server of `rlobj serve`, through the program; the server dies on the way."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from runs import finish, metrics, program, wait_for_step, write_config
from tiny import save_tiny_policy, tiny_config

from rlobj.training import RunDirectory

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

KEY = {"RLOBJ_API_KEY": "a key of the tests"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def serve(policy, port, tmp_path):
    """Starts servers, one after another, and stops the last."""
    started = []

    def start():
        log = tmp_path / f"server-{len(started)}"
        server = program(["serve", policy, "--port", port], log, **KEY)
        started.append(server)
        deadline = time.monotonic() + 240
        while "Ready after" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return server

    yield start
    started[-1].terminate()
    assert started[-1].wait(60) == 0


def config_of(policy, port, depth):
    return tiny_config(
        policy,
        "stapo",
        objective={"mismatch": {"kind": "truncate"}},
        sampling={
            "engine": "vllm-server",
            "max_tokens": 3,
            "async_depth": depth,
            "server": {"url": f"http://127.0.0.1:{port}", "retries": 2, "backoff": 0.1},
        },
        training={"steps": 12, "updates_per_step": 2},
        checkpoint={"every": 50},
    )


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    below = [int(child) for child in children.read_text().split()] if children.exists() else []
    os.kill(pid, signal.SIGKILL)
    for child in below:
        kill_tree(child)


def versions(run: Path, step: int) -> set[int]:
    file = run / "samples" / f"step-{step:06d}.parquet"
    return set(parquet.read_table(file)["weight_version"].to_pylist())


def test_a_run_needs_the_key_and_survives_the_death_of_its_server(policy, port, serve, tmp_path):
    file = write_config(config_of(policy, port, depth=1), tmp_path / "run.yaml")
    run, log = tmp_path / "run", tmp_path / "log"
    server = serve()
    words = ["train", "--config", file, "--out", run]
    refused = finish(program(words, log, RLOBJ_API_KEY="another"), log, code=2)
    assert "RLOBJ_API_KEY" in refused
    assert not run.exists()
    process = program(words, log, **KEY)
    wait_for_step(run, 3, process, log)
    kill_tree(server.pid)
    server.wait()
    text = finish(process, log, code=1)
    assert "rlobj serve" in text
    done = metrics(run)[-1]["step"]
    newest = RunDirectory(run).latest()
    assert newest is not None, text
    assert done < 12
    serve()
    words = ["train", "--resume", run, "--processes", "2"]
    finish(program(words, log, **KEY), log)
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for step in range(1, 13):
        # The rollout that was being drawn when the server died is drawn anew, and its weights are
        # gone: it is then from those of the checkpoint.
        redrawn = [{done}] if step == done + 1 else []
        assert versions(run, step) in [{max(0, step - 2)}, *redrawn]
