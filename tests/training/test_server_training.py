"""The program against a server of `rlobj serve`: evaluating, and training while it dies."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from forked import wait_until
from runs import finish, metrics, program, ranks, wait_for_step, write_config
from tiny import save_tiny_policy, tiny_config
from vllm_tools import NEEDS_VLLM

from rlobj.base.ports import free_port
from rlobj.training import RunDirectory

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.skipif(**NEEDS_VLLM)]

KEY = {"RLOBJ_API_KEY": "a key of the tests"}


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def serve(policy, port, tmp_path_factory):
    """Starts servers, one after another, and stops the last."""
    folder, started = tmp_path_factory.mktemp("servers"), []

    def start():
        log = folder / f"server-{len(started)}"
        server = program(["serve", policy, "--port", port], log, **KEY)
        started.append(server)
        wait_until(lambda: "Ready after" in log.read_text(), 240, server, log)
        return server

    yield start
    started[-1].terminate()
    assert started[-1].wait(60) == 0


@pytest.fixture(scope="module")
def server(serve):
    """The first of them; the last test of this file kills it."""
    return serve()


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


@pytest.mark.usefixtures("server")
def test_an_evaluation_asks_the_server_whether_it_holds_the_model(policy, port, tmp_path):
    log, file, out = tmp_path / "log", tmp_path / "sums.jsonl", tmp_path / "out"
    rows = [{"problem": f"{a}+1+1=", "answer": str(a + 2)} for a in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = ["--sampler", "vllm-server", "--set", f"sampling.server.url=http://127.0.0.1:{port}"]
    asked = ["--on", file, "--template", "{prompt}", "-n", "8", "--max-tokens", "24", *engine]
    finish(program(["eval", policy, *asked, "--out", out], log, **KEY), log)
    assert len((out / "samples.jsonl").read_text().splitlines()) == 40
    other = save_tiny_policy(tmp_path / "other", seed=1)
    command = ["eval", other, *asked, "--out", tmp_path / "none"]
    assert f"not {other}" in finish(program(command, log, **KEY), log, code=2)


def test_a_run_needs_the_key_and_survives_the_death_of_its_server(
    policy, port, server, serve, tmp_path
):
    file = write_config(config_of(policy, port, depth=1), tmp_path / "run.yaml")
    run, log = tmp_path / "run", tmp_path / "log"
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
    ranks(["train", "--resume", run], **KEY)
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for step in range(1, 13):
        # The rollout that was being drawn when the server died is drawn anew, and its weights are
        # gone: it is then from those of the checkpoint.
        redrawn = [{done}] if step == done + 1 else []
        assert versions(run, step) in [{max(0, step - 2)}, *redrawn]
