"""Open the processes of a run, when the settings that are `auto` have their values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from rlobj.models.loading import arithmetic
from rlobj.ranks import ProcessGroup
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.choosing import choose_together, settled
from rlobj.sizing.fitting import Choice
from rlobj.training.parallel import Parallel, open_parallel, open_processes
from rlobj.training.parallel.environment import launched


def open_hardware(
    config: RunConfig, model: Any, stored: Mapping[str, Any] | None, stack: ExitStack
) -> tuple[RunConfig, list[Choice], Parallel]:
    """Open the processes of a run, with its settings.

    Processes of one machine share its cores, unless OMP_NUM_THREADS is set. torch has its number of
    threads again when the stack closes.

    Args:
        config: the run.
        model: the model, if it is in memory already.
        stored: as in `choose_settings`.
        stack: closes the processes.

    Returns:
        The configuration without `auto`, what was chosen for it, and the processes.
    """
    environment = dict(os.environ)  # open processes have other variables
    threads = torch.get_num_threads()
    stack.callback(torch.set_num_threads, threads)
    if "OMP_NUM_THREADS" not in environment:
        processes = environment.get("LOCAL_WORLD_SIZE") or environment.get("WORLD_SIZE") or "1"
        torch.set_num_threads(max(1, threads // int(processes)))
    accelerator = None
    if launched(environment):
        accelerator = open_processes(stack, grouped=True, timeout=config.training.hang_timeout)
    comm = ProcessGroup("cpu" if accelerator is None else accelerator.device)
    choices = choose_together(config, comm, environment, model, stored)
    config = settled(config, choices)
    parallel = open_parallel(
        config.training.strategy,
        max_grad_norm=config.training.max_grad_norm,
        autocast=arithmetic(config.model),
        seed=config.seed,
        offload=config.training.offload == "cpu",
        accelerator=accelerator,
    )
    stack.callback(parallel.close)
    return config, choices, parallel
