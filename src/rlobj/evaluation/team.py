"""The processes of one evaluation: they wait for each other and divide the work.

`torchrun` and other launchers that set its variables start them. There is no process group: a store
of the first process counts who has arrived and which block of work is next. In it, a thread of each
process also counts on, as a sign that its process lives.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch

from rlobj.base.errors import Argument, ConfigError, RunError, counted

JOIN = timedelta(minutes=10)
"""How long the processes wait for the last one to start."""
POLL = 0.2
"""Seconds between two looks at what the other processes have done."""
BEAT, SILENT = 10.0, 120.0
"""Seconds between two signs of life of a process, and the longest time without one."""
_AGAIN = "Start the same command again: no stored response is sampled twice"
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
        self._looked, self._heard = time.monotonic(), dict[int, tuple[int, float]]()
        if not alone and os.environ.get("WORLD_SIZE", "1") != "1":
            store, self.rank, self.size = _joined()
            name = f"evaluation-{next(_NUMBERS)}"
            self._shared: Any = store
            self._store: Any = torch.distributed.PrefixStore(name, store)  # pyright: ignore

    def meet(self, place: str) -> None:
        """Wait until all processes are at a place; the first one leaves last, as the store is its.

        Args:
            place: its name; every place has another one.

        Raises:
            RunError: a process has died.
        """
        for name, waits in ((place, True), (f"{place}: left", self.rank == 0)):
            if self.size > 1:
                _add(self._store, name, 1)
                while waits and _add(self._store, name, 0) < self.size:
                    self.pause()

    def pause(self) -> None:
        """Wait for a moment for the other processes.

        Raises:
            RunError: one of them has died.
        """
        time.sleep(POLL)
        now = time.monotonic()
        if self.size == 1 or now < self._looked + BEAT:
            return
        self._looked = now
        for rank in range(self.size):
            beats = _add(self._shared, f"beats of {rank}", 0)
            if beats != self._heard.get(rank, (-1, now))[0]:
                self._heard[rank] = beats, now
            silent = now - self._heard[rank][1]
            if silent > (SILENT if beats else JOIN.total_seconds()):
                raise RunError(
                    f"rank {rank} of {self.size} processes has shown no sign of life for "
                    f"{silent:.0f} s, so it has ended or its machine is gone. {_AGAIN}"
                )

    def share(self, name: str, blocks: Iterable[_Block]) -> Iterator[_Block]:
        """Yield the blocks for this process: a process that is free takes the next one.

        Args:
            name: of the work.
            blocks: all of it, the same in every process.

        Raises:
            RunError: the first process has died.
        """
        mine = 0
        for number, block in enumerate(blocks, 1):
            if mine < number:
                mine = number if self.size == 1 else _add(self._store, name, 1)
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
                "of its own. Use ",
                Argument("processes", gpus),
            )
        torch.cuda.set_device(place)


@functools.cache
def _joined() -> tuple[Any, int, int]:
    """The store, the number of this process, and the number of processes."""
    try:
        processes = torch.distributed.rendezvous("env://", timeout=JOIN)  # pyright: ignore
        store, rank, size = next(processes)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and this process does not find the others: "
            f"{error}. Start them with ",
            Argument("processes", "K"),
            ", torchrun or accelerate launch. To evaluate in this process alone, use ",
            Argument("processes", 1),
        ) from error
    ended = threading.Event()
    thread = threading.Thread(target=_beat, args=(store, rank, ended), name="beat", daemon=True)
    thread.start()
    atexit.register(thread.join, 5)  # after the next one
    atexit.register(ended.set)
    return store, rank, size


def _beat(store: Any, rank: int, ended: threading.Event) -> None:
    """Show that this process lives, for as long as there is a store."""
    try:
        store.add(f"beats of {rank}", 1)
        while not ended.wait(BEAT):
            store.add(f"beats of {rank}", 1)
    except torch.distributed.DistError:  # pyright: ignore
        return


def _add(store: Any, name: str, count: int) -> int:
    """Add to a number in the store, and return the sum."""
    try:
        return store.add(name, count)
    except torch.distributed.DistError as error:  # pyright: ignore
        raise RunError(
            f"the store of rank 0, which has ended or is out of reach, does not answer: {error}. "
            f"{_AGAIN}"
        ) from error
