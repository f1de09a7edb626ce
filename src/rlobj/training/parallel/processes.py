"""Open the strategy and the process group that this process belongs to."""

import contextlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError, Setting
from rlobj.base.launched import absent_variables
from rlobj.base.seeds import seed_generators
from rlobj.settings.starting import require_extras
from rlobj.training.parallel.fsdp2 import FullySharded
from rlobj.training.parallel.strategies import Parallel, Replicated

DEEPSPEED_MINIMUM = "0.19.2"
"""The oldest tested version with which ZeRO's updates equal those of one process."""
_ZERO = ("zero2", "zero3")


def open_parallel(
    strategy: str,
    *,
    max_grad_norm: float,
    autocast: torch.dtype | None,
    seed: int,
    offload: bool = False,
    accelerator: Any = None,
) -> Parallel:
    """Connect to the other processes of the run.

    Args:
        strategy: of the training; one of the four.
        max_grad_norm: the gradient is clipped to this norm.
        autocast: dtype of the caller's forward passes under `torch.autocast`; None = float32.
        seed: seed of the global generators, the same on every rank.
        offload: moments, and the weights that are updated, are in the memory of the CPU.
        accelerator: result of `open_processes`, which `close` leaves open; every strategy but ddp
            needs `grouped=True`. None = the processes are opened here.

    Raises:
        ConfigError: the strategy has no offload, DeepSpeed is too old, or environment variables for
            several processes are missing.
        MissingExtra: a zero strategy is requested, and DeepSpeed is not installed.
    """
    if offload and strategy not in _ZERO:
        zero2 = Setting("training.strategy", "zero2")
        raise ConfigError(f"training.strategy={strategy} has no training.offload. Use ", zero2)
    if strategy in _ZERO:
        from accelerate.utils import compare_versions

        require_extras(strategy)
        if compare_versions("deepspeed", "<", DEEPSPEED_MINIMUM):
            raise ConfigError(
                f"found deepspeed {importlib.metadata.version('deepspeed')}, which sums gradients "
                f"incorrectly. Update it with: pip install 'deepspeed>={DEEPSPEED_MINIMUM}'"
            )
    with contextlib.ExitStack() as stack:
        if accelerator is None:
            accelerator = open_processes(stack, launched(os.environ) or strategy != "ddp")
        seed_generators(seed)
        parallel: Parallel
        if strategy in _ZERO:
            from rlobj.training.parallel.zero import Zero

            parallel = Zero(
                accelerator,
                strategy,
                max_grad_norm=max_grad_norm,
                autocast=autocast,
                offload=offload,
            )
        else:
            kind = FullySharded if strategy == "fsdp2" else Replicated
            parallel = kind(accelerator, strategy, max_grad_norm=max_grad_norm)
        parallel.on_close(stack.pop_all().close)
    return parallel


def launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process, alone or with others."""
    return int(environment.get("WORLD_SIZE", "1")) > 1 or "LOCAL_RANK" in environment


def open_processes(stack: contextlib.ExitStack, grouped: bool, timeout: float = 3600.0) -> Any:
    """Create Accelerate's Accelerator and, if `grouped`, the default process group.

    Gradient accumulation is 1 and precision is float32. The DeepSpeed and FSDP variables that
    `accelerate launch` sets are off until `stack` closes, because rlobj configures both itself.

    Args:
        stack: receives the actions that undo all changes.
        grouped: open a process group, also for a single process.
        timeout: seconds that ranks wait for each other: one may still sample or grade when others
            have finished.

    Raises:
        ConfigError: environment variables for several processes are missing, or `accelerate launch`
            has set up DeepSpeed or FSDP.
    """
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed prints a message
    from accelerate import Accelerator, utils
    from accelerate.state import AcceleratorState

    handlers: list[Any] = [utils.DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    if grouped:
        backend = "nccl" if gpu else "gloo"
        limit = timedelta(seconds=timeout)
        handlers.append(utils.InitProcessGroupKwargs(backend=backend, timeout=limit))
    stack.enter_context(utils.patch_environment(**_launch_variables(grouped)))
    accelerator = Accelerator(
        cpu=not gpu,
        mixed_precision="no",
        gradient_accumulation_plugin=utils.GradientAccumulationPlugin(num_steps=1),
        kwargs_handlers=handlers,
    )
    if grouped:
        stack.callback(AcceleratorState._reset_state, reset_partial_state=True)
        stack.callback(_close_group)
    return accelerator


def _close_group() -> None:
    """Close the process group, through DeepSpeed if DeepSpeed uses it."""
    if torch.distributed.is_initialized():
        # This avoids a deadlock: gloo's thread needs the interpreter lock to free its last
        # callback, while the destructor of the group holds the lock and waits for the thread.
        time.sleep(0.1)
    deepspeed = sys.modules.get("deepspeed")
    if deepspeed is not None and deepspeed.comm.is_initialized():
        deepspeed.comm.destroy_process_group()
    elif torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _launch_variables(grouped: bool) -> dict[str, str]:
    """Return the environment variables to set."""
    changes = {"ACCELERATE_USE_DEEPSPEED": "false", "ACCELERATE_USE_FSDP": "false"}
    for name, strategy in zip(changes, ("zero2", "fsdp2"), strict=True):
        if os.environ.get(name, "false").lower() in ("true", "1"):
            use = Setting("training.strategy", strategy)
            raise ConfigError(f"accelerate launch has set {name}: start without it, and use ", use)
    missing = absent_variables()
    if grouped:  # otherwise Accelerate sets the number of threads and warns
        threads = str(torch.get_num_threads())
        changes["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", threads)
    if grouped and missing:
        port = str(free_port())
        changes |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        changes |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return changes
