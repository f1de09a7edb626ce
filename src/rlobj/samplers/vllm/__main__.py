"""`python -m rlobj.samplers.vllm`: vLLM's API server; it ends when its parent process ends.

The arguments are vLLM's. Use `rlobj serve` instead: it adds the key and the required arguments.
"""

import os
import runpy
import signal
import threading
import time

from rlobj.samplers.vllm.server import STOPPING, kill_group


def _end_with(parent: int) -> None:
    """Wait until the parent has ended, then end this process group."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpid(), signal.SIGTERM)
    time.sleep(STOPPING)
    kill_group(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
