"""`python -m rlobj.samplers.vllm`: vLLM's API server, which ends when its parent does.

The arguments are vLLM's. Use `rlobj serve`, which adds what makes it safe.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time

from rlobj.samplers.vllm.processes import STOPPING, kill_group


def _follow(parent: int) -> None:
    """End this process and its children, which are one process group, once the parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.getpgrp() != os.getpid():  # started by hand, in somebody else's group
        os.kill(os.getpid(), signal.SIGTERM)
        return
    os.killpg(os.getpid(), signal.SIGTERM)
    time.sleep(STOPPING)
    kill_group(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
