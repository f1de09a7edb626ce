"""Find a process that hangs: the others would wait for it without end."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any, Self

import torch

from rlobj.base.errors import Message, Setting
from rlobj.base.progress import signs
from rlobj.ranks import ProcessGroup, any_rank

logger = logging.getLogger(__name__)

_OFTEN = 5.0
"""Largest number of seconds between two looks at the other processes."""


class HangWatch:
    """A context manager in which a process without progress ends the run on all processes.

    A thread of each process publishes its progress and its stage in the store of the process group,
    and reads those of the others. A process that waits for the others makes progress.

    Args:
        comm: the process group.
        limit: seconds without progress.
        stage: what this process is doing, in a word.
        note: is called with the message before this process ends.
    """

    def __init__(
        self,
        comm: ProcessGroup,
        limit: float,
        stage: Callable[[], str],
        note: Callable[[str], None],
    ) -> None:
        self._comm, self._limit, self._stage, self._note = comm, limit, stage, note
        self._interval = min(_OFTEN, limit / 4)
        self._over = threading.Event()
        self._keys = [f"rlobj/progress/{rank}" for rank in range(comm.size)]

    def __enter__(self) -> Self:
        if self._comm.size > 1:
            store: Any = torch.distributed.distributed_c10d._get_default_store()
            self._store = store.clone()  # a connection of its own: another one may wait in it
            self._store.set(self._keys[self._comm.rank], "")
            any_rank(False, self._comm)  # all keys are there
            threading.Thread(target=self._watch, name="hangs", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _exchange(self) -> list[bytes]:
        """Tell of this process, and hear of all."""
        beats, waits = signs()
        # While it waits, only a process that was stopped or killed tells nothing new.
        text = f"{self._stage()} {beats} {time.monotonic() if waits else ''}"
        self._store.set(self._keys[self._comm.rank], text)
        return self._store.multi_get(self._keys)

    def _watch(self) -> None:
        progress: dict[int, tuple[bytes, float]] = {}
        looked, exchange = time.monotonic(), None
        with ThreadPool(1) as thread:  # in a thread: no timeout ends a call of a stopped store
            while not self._over.wait(self._interval):
                if time.monotonic() - looked > self._interval + 2 * _OFTEN:
                    progress.clear()  # this process was stopped itself
                exchange = exchange or thread.apply_async(self._exchange)
                try:
                    texts, exchange = exchange.get(_OFTEN), None
                except (multiprocessing.TimeoutError, RuntimeError):
                    texts = [b""]  # the first process, which has the store, does not answer
                looked = now = time.monotonic()
                for rank, text in enumerate(texts):
                    before, since = progress.get(rank, (text, now))
                    progress[rank] = (text, since if text == before else now)
                silent = [r for r in range(len(texts)) if now - progress[r][1] > self._limit]
                if silent and not self._over.is_set():
                    self._end(silent, progress)

    def _end(self, silent: list[int], progress: dict[int, tuple[bytes, float]]) -> None:
        """Say which processes hang, and end this one."""
        words = {
            rank: progress[rank][0].decode().split() or ["it holds the store"] for rank in silent
        }
        stages = [f"rank {rank} ({first})" for rank, (first, *_) in words.items()]
        message = Message(
            f"no progress for {self._limit:g} s on {', '.join(stages)}: the process hangs, or its "
            "machine has stopped. The other ranks wait for it, so the run ends. If a step of yours "
            "takes that long, use ",
            Setting("training.hang_timeout", "SECONDS"),
        )
        logger.critical(message)
        with contextlib.suppress(Exception):
            self._note(message)
        if self._comm.rank in silent:
            faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        # All have time to find it, and one that hangs ends last: the others would fail at once.
        time.sleep(2 * self._interval + (self._comm.rank in silent))
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)  # the main thread may wait in compiled code, which no exception ends
