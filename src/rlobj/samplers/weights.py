"""Weights on their way from the trainer to a sampler: what was sent, what arrived.

for name, tensor in Sent(weights): ...   # the trainer's side, while the sampler takes them
compare(sent, version, sampler.received())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.base.errors import RunError

__all__ = ["Received", "Sent", "checksum", "compare"]

_BLOCKS = {"cpu": 1 << 16}
"""Values at a time: what stays in a core's cache; elsewhere 2^24, for few launches."""
_SHOWN = 5


def checksum(tensor: Tensor) -> int:
    """Σ_i (b_i + 1)·(2i + 1) mod 2^64 over the bits b_i of a tensor's values, in order.

    Integer sums do not depend on the order of adding: the same on every device. Differs with any
    one value, and (all but surely) with any exchange of values. Shape is not part of it.
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
    """What a sampler says it holds.

    Attributes:
        version: of the weights it samples from; -1 where it was never given any.
        checksums: of every tensor it took, by name; None where it shares the trainer's memory.
    """

    version: int
    checksums: Mapping[str, int] | None


class Sent:
    """Passes weights on, cast to the sampler's dtype, and keeps the checksum of each.

    Args:
        weights: (name, tensor) pairs.
        dtype: what floating-point tensors are sent in; None = as they are.
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
        """Go through what nobody took: getting a tensor may be an exchange between ranks."""
        for _ in self._weights:
            pass


def compare(sent: Mapping[str, int], version: int, received: Received) -> None:
    """Check that a sampler holds what was sent to it.

    Raises:
        RunError: another version, or tensors that are missing, unknown or different, by name.
    """
    if received.version != version:
        held = "no weights" if received.version < 0 else f"version {received.version}"
        raise RunError(
            f"the sampler has {held}, the trainer has version {version}: a weight sync was "
            "skipped or lost, or the sampling server was restarted."
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
            + "\n".join(lines)
        )


def _line(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"  {', '.join(names[:_SHOWN])}{more}: {what}"
