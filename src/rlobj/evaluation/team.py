"""The processes of one evaluation: they wait for each other and divide the work.

`torchrun` and other launchers that set its variables start them. There is no process group: a store
of the first process counts who has arrived and which block of work is next.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch

from rlobj.base.errors import ConfigError, counted

JOIN = timedelta(minutes=10)
"""How long the processes wait for the last one to start."""
POLL = 0.2
"""Seconds between two looks at what the other processes have done."""
_NUMBERS = itertools.count()
_Block = TypeVar("_Block")


class Team:
    """This process, and the others that a launcher has started with it.

    Args:
        alone: this process evaluates alone, whatever has started it.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.

    Raises:
        ConfigError: the other processes are not there.
    """

    def __init__(self, alone: bool) -> None:
        self.rank, self.size = 0, 1
        if not alone and os.environ.get("WORLD_SIZE", "1") != "1":
            store, self.rank, self.size = _joined()
            name = f"evaluation-{next(_NUMBERS)}"
            self._store: Any = torch.distributed.PrefixStore(name, store)  # pyright: ignore

    def meet(self, place: str) -> None:
        """Wait until all processes are at a place; the first one leaves last, as the store is its.

        Args:
            place: its name; every place has another one.
        """
        for name, waits in ((place, True), (f"{place}: left", self.rank == 0)):
            if self.size > 1:
                self._store.add(name, 1)
                while waits and self._store.add(name, 0) < self.size:
                    time.sleep(POLL)

    def share(self, name: str, blocks: Iterable[_Block]) -> Iterator[_Block]:
        """Yield the blocks for this process: a process that is free takes the next one.

        Args:
            name: of the work.
            blocks: all of it, the same in every process.
        """
        mine = 0
        for number, block in enumerate(blocks, 1):
            if mine < number:
                mine = number if self.size == 1 else self._store.add(name, 1)
            if mine == number:
                yield block

    def take_gpu(self) -> None:
        """Make a GPU of its own the default of this process, if there are GPUs.

        Raises:
            ConfigError: there are more processes than GPUs on this machine.
        """
        if self.size == 1 or not torch.cuda.is_available():
            return
        place, gpus = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if place >= gpus:
            raise ConfigError(
                f"this machine has {counted(gpus, 'GPU')}, and process {place + 1} on it needs one "
                f"of its own. Set processes={gpus}"
            )
        torch.cuda.set_device(place)


@functools.cache
def _joined() -> tuple[Any, int, int]:
    """The store, the number of this process, and the number of processes."""
    try:
        return next(torch.distributed.rendezvous("env://", timeout=JOIN))  # pyright: ignore
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and this process does not find the others: "
            f"{error}. Start them with processes=K, torchrun or accelerate launch. To evaluate in "
            "this process alone, set processes=1"
        ) from error
