"""Digests of weights: of those that a trainer sends, and of those that a sampler has.

`syncing` compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_BLOCKS = {"cpu": 1 << 16}
"""Values per block on a CPU (fits its cache). Other devices use 2^24, for few kernel launches."""
PARTS = 32
"""Parts of a matrix, see `columns`."""


@dataclass(frozen=True)
class Digest:
    """Sums over the values of a tensor, mod 2^64. b_i are the bits of value i as an integer.

        total = Σ_i b_i    squares = Σ_i b_i²    placed = Σ_i b_i·(2i + 1)

    Integer sums do not depend on the order of addition, so every device gives the same result. A
    change of one value always changes `placed`; an exchange of values almost always does. The
    shape does not matter. `total` and `squares` do not depend on the order of the values either.
    """

    length: int
    total: int
    squares: int
    placed: int

    def __add__(self, other: Digest) -> Digest:
        """Return the digest of other's values after those of this one."""
        placed = self.placed + other.placed + 2 * self.length * other.total
        return Digest(
            self.length + other.length,
            (self.total + other.total) % 2**64,
            (self.squares + other.squares) % 2**64,
            placed % 2**64,
        )

    @property
    def unordered(self) -> tuple[int, int, int]:
        """The sums that a transposed tensor has, too."""
        return self.length, self.total, self.squares


def digest(tensor: Tensor) -> Digest:
    """Compute a tensor's digest. −0 counts as 0, because products with a unit vector lose it."""
    flat = tensor.detach().reshape(-1)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    size = _BLOCKS.get(flat.device.type, 1 << 24)
    odd = 2 * torch.arange(min(size, flat.numel()), device=flat.device) + 1
    sums = torch.zeros(3, dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), size):
        values = flat[start : start + size]
        block = (values + 0.0 if values.is_floating_point() else values).view(bits).long()
        total = block.sum()
        placed = (block * odd[: len(block)]).sum() + 2 * start * total
        sums += torch.stack([total, (block * block).sum(), placed])
    return Digest(flat.numel(), *(value % 2**64 for value in sums.tolist()))


def columns(tensor: Tensor, part: int | None) -> Tensor:
    """One of 32 blocks of a matrix's columns; None = all. Any 32 parts in a row have all columns.

    Stacked matrices have their columns too. A vector is always whole.
    """
    if part is None or tensor.ndim < 2:
        return tensor
    blocks = tensor.flatten(1).chunk(PARTS, 1)
    return blocks[part % len(blocks)]


@dataclass(frozen=True)
class Received:
    """The weights that a sampler reports.

    Attributes:
        version: version of the weights; -1 if the sampler has received none.
        digests: digest of every received tensor, by name; None if the sampler uses the trainer's
            own module.
    """

    version: int
    digests: Mapping[str, Digest] | None

    @staticmethod
    def of_worker(answer: dict[str, Any]) -> Received:
        """Read what `WeightExtension.rlobj_received` returned."""
        digests = {name: Digest(*sums) for name, sums in answer["digests"].items()}
        return Received(answer["version"], digests)


@dataclass(frozen=True)
class Live:
    """The weights that an engine computes with.

    Attributes:
        tensors: by the engine's name, the checkpoint's name of the weight and the digest.
        fused: modules of the engine that hold several of the checkpoint's, one after another, such
            as qkv_proj: [q_proj, k_proj, v_proj].
        whole: whether each tensor is whole; False = it is one of several shards.
    """

    tensors: Mapping[str, tuple[str, Digest]]
    fused: Mapping[str, list[str]] = field(default_factory=dict)
    whole: bool = True

    @staticmethod
    def of_workers(answers: list[dict[str, Any]]) -> Live:
        """Join what `WeightExtension.rlobj_live` returned in each worker."""
        tensors: dict[str, tuple[str, Digest]] = {}
        for answer in answers:
            for name, (source, *sums) in answer["tensors"].items():
                digest = Digest(*sums)
                tensors[name] = (source, tensors[name][1] + digest if name in tensors else digest)
        return Live(tensors, answers[0]["fused"], len(answers) == 1)

    def parts(self, source: str) -> list[str]:
        """Return the checkpoint's names of the tensors that make up one of the engine's."""
        owner, _, leaf = source.rpartition(".")
        above, dot, module = owner.rpartition(".")
        return [f"{above}{dot}{part}.{leaf}" for part in self.fused.get(module, [module])]


class Sent:
    """An iterator over weights that casts them to the sampler's dtype and records their digests.

    Args:
        weights: (name, tensor) pairs.
        dtype: dtype of floating-point tensors; None = unchanged.
        parts: those of which digests are recorded, see `columns`.

    Attributes:
        parts: {part: {name: digest}}.
        first: the first of these parts, which whoever receives the weights in this process reads.
        digests: those of the first part.
    """

    def __init__(
        self,
        weights: Iterable[tuple[str, Tensor]],
        dtype: torch.dtype | None = None,
        parts: Iterable[int | None] = (None,),
    ) -> None:
        self._weights = iter(weights)
        self._dtype = dtype
        self.parts: dict[int | None, dict[str, Digest]] = {part: {} for part in parts}
        self.first, self.digests = next(iter(self.parts.items()))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            sent = tensor.detach()
            if self._dtype is not None and sent.is_floating_point():
                sent = sent.to(self._dtype)
            for part, digests in self.parts.items():
                digests[name] = digest(columns(sent, part))
            yield name, sent

    def drain(self) -> None:
        """Consume the remaining weights, because getting a tensor may need all ranks."""
        for _ in self._weights:
            pass
