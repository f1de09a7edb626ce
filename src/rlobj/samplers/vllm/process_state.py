"""Restore the process state that vLLM changes in the trainer's process."""

import contextlib
import gc
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist

from rlobj.base.ports import free_port

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the engine in this process
    "VLLM_NO_USAGE_STATS": "1",  # send no usage statistics
}
if sys.version_info < (3, 12):  # setuptools fails if distutils was imported first
    _ENVIRONMENT["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python after the block."""
    import numpy

    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)  # noqa: NPY002


def _launcher_variables() -> dict[str, str]:
    """Return the environment variables that a launcher such as torchrun would set."""
    local = {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}  # the GPU
    if dist.is_initialized():
        return {"RANK": str(dist.get_rank()), **local}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"RANK": "0", "WORLD_SIZE": "1", **address, **local}


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Set the environment for building an engine, and restore the process afterwards.

    Restored: random states, environment, default dtype, number of threads, `torch.set_num_threads`
    (the CPU build of vLLM disables it), warning filters, logging, and garbage collection of the
    objects that vLLM froze. Not restored: torch.distributed's default process group, the binding
    of memory to this CPU's node, and imported modules.

    vLLM logs errors only, unless VLLM_LOGGING_LEVEL is set in the environment.
    """
    environment, dtype = dict(os.environ), torch.get_default_dtype()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    silenced, frozen = logging.root.manager.disable, gc.get_freeze_count()
    os.environ.update({**_ENVIRONMENT, **_launcher_variables()})
    if "VLLM_LOGGING_LEVEL" not in environment:
        os.environ["VLLM_CONFIGURE_LOGGING"] = "0"  # vLLM would close the program's log handlers
        logging.getLogger("vllm").setLevel(logging.ERROR)
        logging.disable(logging.WARNING)
    with random_states_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(silenced)
            os.environ.clear()
            os.environ.update(environment)
            torch.set_default_dtype(dtype)
            torch.set_num_threads = set_num_threads
            torch.set_num_threads(threads)
            if gc.get_freeze_count() > frozen:  # Python 3.12 itself begins with a few hundred
                gc.unfreeze()


@contextlib.contextmanager
def default_group_kept() -> Iterator[None]:
    """Keep the trainer's default process group while vLLM destroys its own groups."""
    destroy = dist.destroy_process_group

    def destroy_own(group: dist.ProcessGroup | None = None) -> None:
        if group not in (None, dist.group.WORLD):
            destroy(group)

    dist.destroy_process_group = destroy_own
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
