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

    Sets the number of torch's threads; on a CPU the default is one, which is the fastest.

    Args:
        config: the run.
        model: the model, if it is in memory already.
        stored: as in `choose_settings`.
        stack: closes the processes.

    Returns:
        The configuration without `auto`, what was chosen for it, and the processes.
    """
    usual = torch.get_num_threads() if torch.cuda.is_available() else 1
    threads = config.training.threads
    torch.set_num_threads(usual if threads == "auto" else threads)
    environment = dict(os.environ)  # open processes have other variables
    accelerator = open_processes(stack, grouped=True) if launched(environment) else None
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
