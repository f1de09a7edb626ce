"""Check that the weights a sampler received, and those it computes with, are those that were sent.

sent = Sent(weights)
sampler.sync(sent, version)
compare(sent.digests, version, sampler.received())
compare_live(sent.digests, version, sampler.live())
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import RunError, Setting

_BLOCKS = {"cpu": 1 << 16}
"""Values per block on a CPU (fits its cache). Other devices use 2^24, for few kernel launches."""
_SHOWN = 5


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
    return Digest(flat.numel(), *(each % 2**64 for each in sums.tolist()))


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
        return [f"{above}{dot}{each}.{leaf}" for each in self.fused.get(module, [module])]


class Sent:
    """An iterator over weights that casts them to the sampler's dtype and records their digests.

    Args:
        weights: (name, tensor) pairs.
        dtype: dtype of floating-point tensors; None = unchanged.
    """

    def __init__(
        self, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype | None = None
    ) -> None:
        self._weights = iter(weights)
        self._dtype = dtype
        self.digests: dict[str, Digest] = {}

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            sent = tensor.detach()
            if self._dtype is not None and sent.is_floating_point():
                sent = sent.to(self._dtype)
            self.digests[name] = digest(sent)
            yield name, sent

    def drain(self) -> None:
        """Consume the remaining weights, because getting a tensor may need all ranks."""
        for _ in self._weights:
            pass


def compare(sent: Mapping[str, Digest], version: int, received: Received) -> None:
    """Check that a sampler has the weights that were sent to it.

    Raises:
        RunError: the version differs, or tensors are missing, unknown or different (by name).
    """
    if received.version != version:
        weights = "no weights" if received.version < 0 else f"version {received.version}"
        raise RunError(
            f"the sampler has {weights}, the trainer has version {version}: a weight sync was "
            "skipped or lost, or the sampling server was restarted.",
            finding="sampler-drift",
        )
    if received.digests is None:
        return
    arrived = received.digests
    both = sent.keys() & arrived.keys()
    problems = {
        "did not arrive": sent.keys() - arrived.keys(),
        "was never sent": arrived.keys() - sent.keys(),
        "arrived with other values": {name for name in both if sent[name] != arrived[name]},
    }
    _refuse(f"the sampler does not have the trainer's weights of version {version}:", problems)


@dataclass(frozen=True)
class Held:
    """What the trainer sent in a sync, and what the engine computes with.

    Attributes:
        version: the version of the weights.
        sent: digest of each tensor that was sent.
        live: those of the engine.
    """

    version: int
    sent: Mapping[str, Digest]
    live: Live

    def pairs(self) -> Iterator[tuple[str, Digest, Digest, bool]]:
        """Yield (name, engine's digest, trainer's digest, fused) of what can be compared.

        Tensors of the engine whose parts were not sent under these names are added up by layer,
        "layer N", and so are the sent tensors that are left over.
        """
        left, others = dict(self.sent), dict[str, Digest]()
        for name, (source, found) in self.live.tensors.items():
            parts = self.live.parts(source)
            if self.sent.keys() >= set(parts):
                yield name, found, reduce(add, [self.sent[each] for each in parts]), len(parts) > 1
                for each in parts:  # a packed copy has the same parts
                    left.pop(each, None)
            else:
                place = _layer(name)
                others[place] = others[place] + found if place in others else found
        for place, found in others.items():
            mine = [own for name, own in left.items() if _layer(name) == place]
            if mine:
                yield place, found, reduce(add, mine), False


def compare_live(held: Held, before: Held | None, *, exact: bool = True) -> None:
    """Check that an engine computes with the weights that it received.

    - A tensor whose parts are known has the digest of what was sent. An engine may transpose a
      tensor that is not fused; if it kept the order before, it keeps it now.
    - Anything else must change where the trainer's weights of the same layer have changed, and only
      there: tensors in shards, with padding or under other names.

    Args:
        held: what was sent last, and the engine's weights now.
        before: the same when this was checked last; None = never.
        exact: False = all tensors are held to the second rule.

    Raises:
        RunError: it computes with others (by name).
    """
    past = {name: (theirs, mine) for name, theirs, mine, _ in before.pairs()} if before else {}
    homes = {mine.unordered: name for name, _, mine, _ in held.pairs()}
    problems: dict[str, set[str]] = {}
    for name, theirs, mine, fused in held.pairs():
        exactly = exact and held.live.whole and name in held.live.tensors
        old_theirs, old_mine = past.get(name, (None, mine))
        what = ""
        if not exactly or theirs.length != mine.length:
            if before is not None and (mine == old_mine) != (theirs == old_theirs):
                what = "did not change" if theirs == old_theirs else "changed without a reason"
        elif theirs.unordered != mine.unordered:
            home = homes.get(theirs.unordered)
            if before is not None and theirs.unordered == old_mine.unordered:
                what = f"still has the values of version {before.version}"
            else:
                what = f"has the values of {home}" if home else "has other values"
        elif theirs != mine and (fused or (before is not None and old_theirs == old_mine)):
            what = "has its values in another order"
        if what:
            problems.setdefault(what, set()).add(name)
    _refuse(
        f"the engine received the weights of version {held.version} and computes with others:",
        problems,
        "\nSo its samples do not come from the policy. Restart the engine, then resume the run. An "
        "engine that transforms weights as it loads them is no fault: then use ",
        Setting("sampling.max_logprob_gap", "NUMBER"),
        ".",
    )


def _layer(name: str) -> str:
    """Return the layer of a tensor: the first number in its name."""
    match = re.search(r"\.(\d+)\.", name)
    return f"layer {match[1]}" if match else "outside the layers"


def _refuse(head: str, problems: Mapping[str, set[str]], *advice: str | Setting) -> None:
    """Raise an error with a line for each problem that some tensors have, and advice behind it."""
    lines = [_line(sorted(names), what) for what, names in problems.items() if names]
    if lines:
        raise RunError("\n".join([head, *lines]), *advice, finding="sampler-drift")


def _line(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"  {', '.join(names[:_SHOWN])}{more}: {what}"
