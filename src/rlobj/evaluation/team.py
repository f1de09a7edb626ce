"""The processes of one evaluation: each has its share of the responses.

`torchrun` and other launchers that set its variables start them, and end all when one has ended.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

from rlobj.base.errors import RunError, reported
from rlobj.base.launched import absent_variables, started_processes

WAIT = timedelta(days=1)
"""How long a process waits for others that are slower. It does not wait for one that has ended."""
_Key = TypeVar("_Key")


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
        if alone or started_processes() == 1:
            return
        from accelerate import PartialState
        from accelerate.utils import patch_environment

        absent_variables()  # refuses processes that cannot find each other
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # Otherwise Accelerate opens DeepSpeed where its launcher names it, and sets the threads.
        threads = torch.get_num_threads()
        with patch_environment(ACCELERATE_USE_DEEPSPEED="false", OMP_NUM_THREADS=threads):
            # They meet on CPUs: Gloo notices at once when one of them has ended.
            self._state: Any = PartialState(cpu=True, timeout=WAIT)
        self.rank, self.size = self._state.process_index, self._state.num_processes

    def meet(self) -> None:
        """Wait until all processes are here.

        Raises:
            RunError: one of them has ended.
        """
        if self.size > 1:
            what = "another process of the evaluation has ended: start all of them again"
            with reported(RunError, what, RuntimeError):
                self._state.wait_for_everyone()

    def share(self, keys: Sequence[_Key]) -> Sequence[_Key]:
        """Those for this process: one of `size` neighbours, so that all take equally long."""
        if self.size == 1:
            return keys
        dealt = [key for first in range(self.size) for key in keys[first :: self.size]]
        with self._state.split_between_processes(dealt) as own:
            return own
