"""vLLM's server, and `rlobj serve` whose servers are forked from it: they start in seconds.

    forked_server.py serve MODEL ...
    forked_server.py -m vllm.entrypoints.openai.api_server ...

Run it as `forked.Forked(..., env=WITH_VLLM)`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from types import SimpleNamespace
from typing import IO, Any

import torch._dynamo.config
import vllm.v1.engine.utils

from rlobj.samplers.vllm import server
from rlobj_cli.app import main


class Child(ForkProcess):
    """What `Server` uses of `subprocess.Popen`."""

    def __init__(self, command: list[str], env: dict[str, str], stdout: IO[Any], **_: Any) -> None:
        super().__init__(target=serve, args=(command, env, stdout.fileno()))
        self.start()

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self.join(timeout)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired("the server", timeout or 0)
        return self.exitcode


def serve(command: list[str], environment: dict[str, str], log: int) -> None:
    """Become the server; its engine is forked as well, where vLLM starts a new interpreter."""
    os.setsid()
    os.dup2(log, 1), os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(environment)
    torch._dynamo.config.disable = True  # it was imported without TORCHDYNAMO_DISABLE
    vllm.v1.engine.utils.get_mp_context = lambda: get_context("fork")
    module = command.index("-m") + 1
    sys.argv = command[module:]
    runpy.run_module(command[module], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "-m":
        serve(sys.argv[1:], {**os.environ}, 1)
        sys.exit()
    server.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Child})
    main()
