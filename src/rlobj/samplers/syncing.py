"""A sampler holds the weights that were sent, and computes with them: compared by digests."""

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import add

from torch import Tensor

from rlobj.base.errors import RunError, Setting, counted
from rlobj.samplers.types import Sampler
from rlobj.samplers.weights import PARTS, Digest, Live, Received, Sent

_SHOWN = 5
"""Names of tensors in a message."""
_LARGE = 1 << 24
"""Values of a model whose live weights are checked in parts: a smaller one is quick to read."""


class Synchronizer:
    """Pushes weights and checks what the sampler holds, at any learning rate.

    Digests compare every tensor that was sent with the tensor that arrived, and with the tensor
    that the engine computes with. The first sync compares all, and so does one that repeats a
    version. Else the matrices of a large model are compared in parts, another one after each sync
    and again before the rollout, so that all is read in `PARTS` syncs. If an engine orders or
    splits tensors in its own way, all is read. A tensor that leaves the process is compared whole
    when it arrives.

    Args:
        sampler: receives the weights.
        weights: returns the policy's weights of this moment; every rank iterates over all of them.
        adapter: returns those of the weights that updates change, if the others are frozen and the
            sampler can keep them: only the first sync, and one that repeats a version, brings all.
        exact: the sampler computes with exactly the weights that it received; else only what
            arrives is compared.

    Attributes:
        checks: what is compared with what was sent, in words.
    """

    def __init__(
        self,
        sampler: Sampler,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        adapter: Callable[[], Iterable[tuple[str, Tensor]]] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self._sampler, self._weights, self._exact = sampler, weights, exact
        self._adapter, self._frozen = adapter, Sent(())
        self._sent = Sent(())
        self._version = -1
        self._pushes = 0
        self._in_parts = exact
        self._ordered: set[str] = set()
        self.checks = "nothing was sent"

    def push(self, version: int) -> None:
        """Give the sampler the policy's weights.

        Raises:
            RunError: it does not hold them afterwards.
        """
        self._pushes += 1
        first = self._pushes == 1
        whole = first or version == self._version
        part = None if whole else self._part
        parts = [part if self._sampler.same_tensors else None, part, self._part]
        source = self._adapter if self._adapter and not whole else self._weights
        if self._adapter and whole:  # the frozen weights are read again after later syncs
            parts += range(PARTS)
        sent = Sent(source(), self._sampler.dtype, parts)
        self._version = version
        try:
            self._sampler.sync(sent, version)
        finally:
            sent.drain()
        self._sent, self._frozen = sent, sent if whole else self._frozen
        ordered = self._check(part)
        if first and self._in_parts:
            large = sum(digest.length for digest in sent.digests.values()) >= _LARGE
            self._in_parts = large and ordered and self._check(self._part)

    def check(self) -> None:
        """Does the sampler still hold, and compute with, what was sent last?

        Raises:
            RunError: it does not.
        """
        self._check(self._part)

    @property
    def _part(self) -> int | None:
        """The part of the live weights that is read after this push; None = all."""
        return self._pushes % PARTS if self._in_parts else None

    def _check(self, part: int | None) -> bool:
        """Check what arrived, and a part of what the engine computes with; None = all of it.

        Returns:
            Whether all of it has the order in which it was sent.
        """
        received = self._sampler.received()
        compare({**self._frozen.digests, **self._sent.digests}, self._version, received)
        live = self._sampler.live(part) if self._exact else None
        also = "" if live is None else " and as the engine computes with"
        self.checks = f"weights compared as received{also}"
        if received.digests is None:
            self.checks = "the sampler draws with the policy's own weights"
        if live is None:
            return False
        before = self._ordered
        sent = {**self._frozen.parts.get(part, {}), **self._sent.parts[part]}
        self._ordered = compare_live(sent, live, self._version, before)
        return live.whole and self._ordered == live.tensors.keys()


def compare(sent: Mapping[str, Digest], version: int, received: Received) -> None:
    """Check that a sampler has the weights that were sent to it.

    Raises:
        RunError: the version differs, or tensors are missing, unknown or different (by name).
    """
    if received.version != version:
        raise RunError(
            f"the sampler has weights of version {received.version}, the trainer {version}",
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


def compare_live(
    sent: Mapping[str, Digest], live: Live, version: int, ordered: Iterable[str] = ()
) -> set[str]:
    """Check that an engine computes with the weights that it received.

    A tensor whose parts were sent has the values that were sent. An engine may transpose a tensor
    that is not fused, and may split one over its workers; if it kept the order before, it keeps it
    now. Tensors under other names or of another size, such as padded ones, are not compared.

    Args:
        sent: digest of each tensor that was sent.
        live: those of the engine.
        version: of the weights, for the message.
        ordered: the engine's tensors that had the order in which they were sent.

    Returns:
        Those that have it now.

    Raises:
        RunError: it computes with other weights (by name).
    """
    problems: dict[str, set[str]] = {
        "has other values": set(),
        "has its values in another order": set(),
    }
    same: set[str] = set()
    for name, (source, theirs) in live.tensors.items():
        parts = live.parts(source)
        if not sent.keys() >= {*parts}:
            continue
        mine = reduce(add, [sent[part] for part in parts])
        if theirs == mine:
            same.add(name)
        elif theirs.length == mine.length:
            if theirs.unordered != mine.unordered:
                problems["has other values"].add(name)
            elif live.whole and (len(parts) > 1 or name in ordered):
                problems["has its values in another order"].add(name)
    _refuse(
        f"the engine received the weights of version {version} and computes with others:",
        problems,
        "\nIf the engine transforms weights as it loads them, use ",
        Setting("sampling.max_logprob_gap", "NUMBER"),
    )
    return same


def _refuse(head: str, problems: Mapping[str, set[str]], *advice: str | Setting) -> None:
    """Raise an error with a line for each problem that some tensors have, and advice behind it."""
    lines = [
        f"  {counted(len(names), 'tensor')}, such as {', '.join(sorted(names)[:_SHOWN])}: {what}"
        for what, names in problems.items()
        if names
    ]
    if lines:
        raise RunError("\n".join([head, *lines]), *advice, finding="sampler-drift")
