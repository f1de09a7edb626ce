"""Send weights from the trainer to a server's workers by broadcast: gloo on CPUs, NCCL on GPUs.

Trainer and workers form their own process group; rank 0 is the trainer. Headers in the stream
describe the tensors, so the workers need no names and shapes in advance:

    header (1 KiB of JSON: name, dtype, shape), tensor, header, tensor, ..., header "end"
"""

import json
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_HEADER = 1024
"""Size of a header in bytes."""


class WeightGroup:
    """A process group that is independent of torch.distributed's default group.

    Args:
        address: address of rank 0 for the other ranks.
        port: port on which rank 0 listens.
        rank: rank of this process; 0 is the trainer.
        size: number of processes in the group.
        device: device of the tensors that are sent and received.
        timeout: longest wait for other ranks, in seconds.
    """

    def __init__(
        self, address: str, port: int, rank: int, size: int, device: torch.device, timeout: float
    ) -> None:
        self.device = device
        self._timeout = timeout
        self._group: Any
        if device.type == "cuda":
            from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
            from vllm.distributed.utils import StatelessProcessGroup

            group = StatelessProcessGroup.create(
                host=address, port=port, rank=rank, world_size=size, store_timeout=int(timeout)
            )
            self._group = PyNcclCommunicator(group, device=device)
            return
        limit = timedelta(seconds=timeout)
        self._store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False
        )
        self._group = dist.ProcessGroupGloo(
            dist.PrefixStore("rlobj", self._store),  # pyright: ignore[reportPrivateImportUsage]
            rank,
            size,
            limit,
        )

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast tensors from rank 0, then the end of the stream.

        If the iterator raises an error, the other ranks are notified and raise an error too.

        Raises:
            RuntimeError: the other ranks do not take part within the timeout.
        """
        remaining = iter(weights)
        while True:
            try:
                item = next(remaining, None)
            except BaseException:
                self._broadcast(self._header("broken off"))
                raise
            if item is None:
                break
            name, value = item[0], item[1].detach().to(self.device).contiguous()
            dtype = str(value.dtype).removeprefix("torch.")
            self._broadcast(self._header([name, dtype, list(value.shape)]))
            self._broadcast(value)
        self._broadcast(self._header("end"))
        self._finish()

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that rank 0 sends, one at a time.

        Raises:
            RuntimeError: rank 0 stopped early, or does not continue within the timeout.
        """
        while True:
            header = self._header(None)
            self._broadcast(header)
            entry = json.loads(bytes(header.tolist()))
            if entry == "end":
                return
            if entry == "broken off":
                raise RuntimeError("the trainer stopped sending in the middle of the weights")
            name, dtype, shape = entry
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self._broadcast(value)
            yield name, value

    def _header(self, entry: Any) -> Tensor:
        """Encode an entry as JSON, padded with spaces: uint8 [1024]."""
        text = json.dumps(entry).encode()
        return torch.tensor(list(text.ljust(_HEADER)), dtype=torch.uint8, device=self.device)

    def _broadcast(self, value: Tensor) -> None:
        """Broadcast in place; every dtype is sent as bytes."""
        if not value.numel():
            return
        flat = value.view(-1).view(torch.uint8)
        if self.device.type == "cuda":
            self._group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
            return
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([flat], options).wait()

    def _finish(self) -> None:
        """Wait until the broadcasts on the GPU are done."""
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._timeout
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"NCCL did not finish within {self._timeout:g} s")
            time.sleep(0.001)
