"""Weight synchronization from the trainer to the sampler, and the checks of its weights.

Digests compare every tensor that was sent with the tensor that arrived, and with the tensor that
the engine computes with. They work at any learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from rlobj.samplers import Held, Live, Sampler, Sent, compare, compare_live


class Synchronizer:
    """Pushes weights and checks what the sampler holds.

    Args:
        sampler: receives the weights. If it has a method `live`, the weights that it computes with
            are checked, too.
        weights: returns the policy's weights of this moment; every rank iterates over all of them.
        exact: the sampler computes with exactly the weights that it received.
    """

    def __init__(
        self,
        sampler: Sampler,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        *,
        exact: bool = True,
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._exact = exact
        self._sent = Sent(())
        self._version = -1
        self._held: Held | None = None

    def push(self, version: int) -> None:
        """Give the sampler the policy's weights.

        Raises:
            RunError: it does not hold them afterwards.
        """
        sent = Sent(self._weights(), self._sampler.dtype)
        try:
            self._sampler.sync(sent, version)
        finally:
            sent.drain()
        self._sent, self._version = sent, version
        self.check()

    def check(self) -> None:
        """Does the sampler still hold, and compute with, what was sent last?

        Raises:
            RunError: it does not.
        """
        compare(self._sent.digests, self._version, self._sampler.received())
        live: Callable[[], Live] | None = getattr(self._sampler, "live", None)
        if live is None:
            return
        now = Held(self._version, self._sent.digests, live())
        compare_live(now, self._held, exact=self._exact)
        self._held = now
