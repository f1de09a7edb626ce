"""Check that the weights a sampler received are those the trainer sent.

sent = Sent(weights)
sampler.sync(sent, version)
compare(sent.checksums, version, sampler.received())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.base.errors import RunError

_BLOCKS = {"cpu": 1 << 16}
"""Values per block on a CPU (fits its cache). Other devices use 2^24, for few kernel launches."""
_SHOWN = 5


def checksum(tensor: Tensor) -> int:
    """Compute Σ_i (b_i + 1)·(2i + 1) mod 2^64, b_i the bits of value i read as an integer.

    Integer sums do not depend on the order of addition, so every device gives the same result. A
    change of one value always changes the checksum; an exchange of values almost always does. The
    shape does not matter.
    """
    flat = tensor.detach().reshape(-1)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    size = _BLOCKS.get(flat.device.type, 1 << 24)
    odd = 2 * torch.arange(min(size, flat.numel()), device=flat.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), size):
        block = flat[start : start + size].view(bits).long() + 1
        total += (block * odd[: len(block)]).sum() + 2 * start * block.sum()
    return int(total)


@dataclass(frozen=True)
class Received:
    """The weights that a sampler reports.

    Attributes:
        version: version of the weights; -1 if the sampler has received none.
        checksums: checksum of every received tensor, by name; None if the sampler uses the
            trainer's own module.
    """

    version: int
    checksums: Mapping[str, int] | None


class Sent:
    """An iterator over weights that casts them to the sampler's dtype and records checksums.

    Args:
        weights: (name, tensor) pairs.
        dtype: dtype of floating-point tensors; None = unchanged.
    """

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None
    ) -> None:
        self._weights = iter(weights)
        self._dtype = dtype
        self.checksums: dict[str, int] = {}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            sent = tensor.detach()
            if self._dtype is not None and sent.is_floating_point():
                sent = sent.to(self._dtype)
            self.checksums[name] = checksum(sent)
            yield name, sent

    def drain(self) -> None:
        """Consume the remaining weights, because getting a tensor may need all ranks."""
        for _ in self._weights:
            pass


def compare(sent: Mapping[str, int], version: int, received: Received) -> None:
    """Check that a sampler has the weights that were sent to it.

    Raises:
        RunError: the version differs, or tensors are missing, unknown or different (by name).
    """
    if received.version != version:
        held = "no weights" if received.version < 0 else f"version {received.version}"
        raise RunError(
            f"the sampler has {held}, the trainer has version {version}: a weight sync was "
            "skipped or lost, or the sampling server was restarted.",
            finding="sampler-drift",
        )
    if received.checksums is None:
        return
    problems = {
        "did not arrive": sent.keys() - received.checksums.keys(),
        "was never sent": received.checksums.keys() - sent.keys(),
        "arrived with other values": {
            name
            for name in sent.keys() & received.checksums.keys()
            if sent[name] != received.checksums[name]
        },
    }
    lines = [_line(sorted(names), what) for what, names in problems.items() if names]
    if lines:
        raise RunError(
            f"the sampler does not have the trainer's weights of version {version}:\n"
            + "\n".join(lines),
            finding="sampler-drift",
        )


def _line(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"  {', '.join(names[:_SHOWN])}{more}: {what}"
