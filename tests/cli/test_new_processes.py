"""Every command, started once as a new process: other tests fork theirs, with torch imported."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import README, commands
from forked import wait_until
from screens import COMMANDS
from served import READY
from tiny import save_tiny_policy

from rlobj.base.addresses import free_port

pytestmark = pytest.mark.slow

SHORT = {"training.steps": 1, "sampling.prompts_per_step": 4, "training.updates_per_step": 1}
"""Settings of trainings."""
TINY = {"sampling.max_tokens": 16}
"""Settings of trainings of the tiny policy, whose context has 128 tokens."""
SERVE = "serve Qwen/Qwen3-1.7B-Base"
TRAIN = "train --preset stapo --model Qwen/Qwen3-1.7B-Base --data problems.jsonl"
OTHERS = """
presets list
presets show stapo
presets diff dapo stapo
presets check my.yaml
presets schema
doctor
resume RUN --set training.steps=2
eval RUN -n 2 --out evals/one
eval RUN -n 2 --out evals/two
eval show evals/one
eval regrade evals/one
eval compare evals/one evals/two
"""
"""Command lines that the README does not show, in the order in which they can run."""


def readme_lines() -> list[list[str]]:
    """The words after `rlobj` in the README's blocks, and in its table of commands."""
    table = re.findall(r"^\| `rlobj (.+?)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    return [*commands(README), *map(shlex.split, table)]


LINES = readme_lines() + [line.split() for line in OTHERS.split("\n") if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the files that the command lines name, and the run `RUN`."""
    folder = tmp_path_factory.mktemp("new")
    save_tiny_policy(folder / "policy")
    problem = {"problem": "1+2+3+4=", "answer": "10"}
    (folder / "problems.jsonl").write_text((json.dumps(problem) + "\n") * 8)
    (folder / "my.yaml").write_text("base: dapo\nobjective:\n  drop: prob < 0.01\n")
    (folder / "data").mkdir()
    for benchmark in ("aime24", "math500"):
        (folder / "data" / f"{benchmark}.jsonl").write_text(json.dumps(problem) + "\n")
    run(folder, ["train", "--preset", "stapo", "--out", "RUN"])
    return folder


def adapted(words: list[str]) -> list[str]:
    """A command line with the tiny policy in the place of a published model, and little work."""
    words = ["policy" if word.startswith("Qwen/") else word for word in words]
    if words[0] in ("train", "estimate"):
        settings = SHORT | (TINY if "policy" in words else {})
        words = [*words, *(f"--set={name}={value}" for name, value in settings.items())]
    if words[0] == "eval" and "--on" in words:
        words += ["-n", "1", "--set=sampling.max_tokens=8", "--set=data.template={prompt}"]
    return words


def run(folder: Path, words: list[str]) -> str:
    """What a new process prints; it must succeed."""
    command = [sys.executable, "-m", "rlobj_cli", *adapted(words)]
    variables = {**os.environ, "RLOBJ_DATA_DIR": "data"}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=READY
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_succeeds_in_a_new_process(words: list[str], folder: Path) -> None:
    assert run(folder, words)


@pytest.mark.vllm
def test_a_server_and_its_trainer_are_new_processes(folder: Path) -> None:
    """Serve the model, train with the server, and stop the server by a signal."""
    train = [*TRAIN.split(), "--sampler", "vllm-server"]
    port = str(free_port())
    serve = [*adapted(SERVE.split()), "--port", port, "--set", f"kv_cache_memory_bytes={64 << 20}"]
    log = folder / "serve.txt"
    with log.open("w") as output:
        command = [sys.executable, "-m", "rlobj_cli", *serve]
        server: Any = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        wait_until(lambda: "Ready." in log.read_text(), READY, server, log)
        run(folder, [*train, "--set", f"sampling.server.url=http://127.0.0.1:{port}"])
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait(READY) == 0, log.read_text()
        assert "Stopping the server." in log.read_text()
    finally:
        server.kill()


def test_every_command_is_started() -> None:
    started = {tuple(words[:size]) for words in [*LINES, ["serve"]] for size in (1, 2)}
    assert set(COMMANDS) <= started
