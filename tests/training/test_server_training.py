"""The program against a server of `rlobj serve`: evaluating, and training while it dies."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from forked import wait_until
from runs import (
    distance,
    finish,
    metrics,
    program,
    ranks,
    steps,
    wait_for_step,
    weights,
    write_config,
)
from served import ONE_PROCESS, Served, gone
from tiny import save_tiny_policy, tiny_config
from vllm_tools import NEEDS_VLLM

from rlobj.runs.checkpoints import newest_checkpoint

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.skipif(**NEEDS_VLLM)]


@pytest.fixture(scope="module")
def servers(policy, tmp_path_factory):
    """A list with one, which the tests of this file kill and start again."""
    started = [start(policy, tmp_path_factory.mktemp("servers"))]
    try:
        started[0].await_text("Ready.")
        yield started
    finally:
        started[0].end()


def start(policy, folder, **settings):
    cache = str(folder / "cache")
    return Served(
        policy, folder, fork=True, arguments=ONE_PROCESS, XDG_CACHE_HOME=cache, **settings
    )


def config_of(policy, url, depth=0, patience=500.0):
    return tiny_config(
        policy,
        "stapo",
        objective={"mismatch": {"kind": "truncate"}},
        sampling={
            "engine": "vllm-server",
            "max_tokens": 3,
            "async_depth": depth,
            "server": {"url": url, "patience": patience},
        },
        training={"steps": 12, "updates_per_step": 2},
        checkpoint={"every": 50},
    )


def versions(run: Path, step: int) -> set[int]:
    file = run / "samples" / f"step-{step:06d}.parquet"
    return set(parquet.read_table(file)["weight_version"].to_pylist())


def test_an_evaluation_asks_the_server_whether_it_holds_the_model(policy, servers, tmp_path):
    log, file, out = tmp_path / "log", tmp_path / "sums.jsonl", tmp_path / "out"
    rows = [{"problem": f"{a}+1+1=", "answer": str(a + 2)} for a in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    engine = ["--sampler", "vllm-server", "--set", f"sampling.server.url={servers[0].url}"]
    asked = ["--on", file, "-n", "8", *engine]
    asked += ["--set", "data.template={prompt}", "--set", "sampling.max_tokens=24"]
    environment = servers[0].environment
    finish(program(["eval", policy, *asked, "--out", out], log, **environment), log)
    assert len((out / "samples.jsonl").read_text().splitlines()) == 40
    other = save_tiny_policy(tmp_path / "other", seed=1)
    command = ["eval", other, *asked, "--out", tmp_path / "none"]
    assert f"not {other}" in finish(program(command, log, **environment), log, code=2)


def test_a_run_waits_for_its_server_and_ends_with_the_same_weights(policy, servers, tmp_path):
    """In the second run it dies, and is started again with another key."""
    [server] = servers
    file = write_config(config_of(policy, server.url), tmp_path / "run.yaml")
    words = {name: ["train", "--config", file, "--out", tmp_path / name] for name in ("1", "2")}
    log = tmp_path / "log"
    finish(program(words["1"], log, **server.environment), log)
    process = program(words["2"], log, **server.environment)
    wait_for_step(tmp_path / "2", 2, process, log)
    server.kill_server()
    assert server.process.wait(60) == 1
    servers[0] = start(policy, server.log.parent, port=server.port)
    assert "Waiting for it" in finish(process, log, seconds=500)
    assert [line["step"] for line in metrics(tmp_path / "2")] == list(range(1, 13))
    # A server batches requests as they arrive, and a sum over another batch rounds differently.
    assert distance(weights(tmp_path / "1"), weights(tmp_path / "2")) < 1e-5


def test_a_run_needs_the_key_and_survives_the_death_of_its_server(policy, servers, tmp_path):
    """`rlobj serve` is killed, and no process of its server outlives it."""
    server, run, log = servers[0], tmp_path / "run", tmp_path / "log"
    config = config_of(policy, server.url, depth=1, patience=3.0)
    file = write_config(config, tmp_path / "run.yaml")
    words = ["train", "--config", file, "--out", run, "--set", "training.steps=999"]
    wrong = {**server.environment, "RLOBJ_API_KEY": "another"}
    assert "RLOBJ_API_KEY" in finish(program(words, log, **wrong), log, code=2)
    assert not run.exists()
    running = server.server_processes()

    def kill():
        wait_until(lambda: run.exists() and len(steps(run)) >= 3)
        server.process.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    output = ranks(words, code=1, **server.environment)
    assert "rlobj serve" in output, output
    assert len(running) > 1
    wait_until(lambda: gone(running))
    done = steps(run)[-1]
    assert newest_checkpoint(run).name == f"step-{done:06d}"
    rest = ["--sampler", "transformers", "--set", f"training.steps={done + 4}"]
    finish(program(["resume", run, *rest], log), log)
    assert steps(run) == list(range(1, done + 5))
    for step in steps(run):
        # The rollout that was being drawn when the server died is drawn anew, and its weights are
        # gone: it is then from those of the checkpoint.
        redrawn = [{done}] if step == done + 1 else []
        assert versions(run, step) in [{max(0, step - 2)}, *redrawn]
