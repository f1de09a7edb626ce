"""The policy and server that the tests with verifiers share. Run them by .ci/verifiers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVING = ROOT / os.environ.get("RLOBJ_VENV", ".venv") / "bin" / "python"
"""The environment with vLLM, which verifiers' has not."""
if find_spec("verifiers") is None:
    collect_ignore_glob = ["test_*.py"]  # they need an environment of their own


@pytest.fixture(scope="session")
def chat_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from chatting import save_chat_policy

    return save_chat_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def server(chat_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `rlobj serve` with the policy; its key is where a trainer finds it."""
    from rlobj.base.addresses import free_port

    if not SERVING.exists():
        pytest.skip(f"no environment with vLLM in {SERVING.parent.parent}: type .ci/run")
    port, log = free_port(), tmp_path_factory.mktemp("served") / "log"
    cache = {"XDG_CACHE_HOME": str(log.parent), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'cli'}"}
    os.environ["XDG_CACHE_HOME"] = str(log.parent)
    os.environ.pop("RLOBJ_API_KEY", None)
    one = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    words = [f"distributed_executor_backend={one}", f"kv_cache_memory_bytes={64 << 20}"]
    command = [str(SERVING), "-m", "rlobj_cli", "serve", str(chat_policy), f"--port={port}"]
    command += [f"--set={word}" for word in words]
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **cache}
        )
    try:
        while "Ready" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)
