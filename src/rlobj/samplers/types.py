"""The interface of samplers: their settings, the requests that they take, and their methods."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

import torch
from pydantic import Field, StringConstraints

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.validation import Model
from rlobj.samplers.response import Response
from rlobj.samplers.weights import Live, Received

Item = TypeVar("Item")


def derive_seed(*parts: int | str) -> int:
    """Hash all parts to a seed in [0, 2^62), which is the same on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


NOT_FINITE = "The model's logits are not finite: lower training.learning_rate, or see model.dtype."


def check_prompts(
    prompts: Sequence[Sequence[int]], max_tokens: int, context: int | None, engine: str
) -> None:
    """Refuse prompts that are empty, or too long with `max_tokens`.

    Args:
        prompts: token ids.
        max_tokens: of a response.
        context: largest number of tokens in prompt and response together; None = no limit.
        engine: what has this limit, for the message.

    Raises:
        ConfigError: a prompt does not fit.
    """
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise ConfigError(f"Prompt {index} has no tokens.")
        if context is not None and len(prompt) + max_tokens > context:
            raise ConfigError(
                f"Prompt {index} has {len(prompt)} tokens. With sampling.max_tokens={max_tokens} "
                f"they exceed the {context} positions of this {engine}."
            )


class Distribution(Model):
    """The distribution that tokens are sampled from. The default is the model's own."""

    temperature: float = Field(default=1.0, ge=0.0)
    """logits are divided by this; 0 = the most likely token (greedy)"""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """sample from the most likely tokens with this probability; 1 = all"""
    top_k: int = Field(default=0, ge=0)
    """sample from the k most likely tokens; 0 = all"""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """sample from tokens with at least this share of the largest probability; 0 = all"""


class SamplingSettings(Distribution):
    """How responses are sampled."""

    max_tokens: int = Field(ge=1)
    """largest number of tokens in a response, with the EOS token"""
    stop: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    """a response ends when it contains one of these texts"""
    rollout_tokens: int | None = Field(default=None, ge=1)
    """largest number of tokens that the policy writes in a conversation of several rows, such as
    after a restart or by sub-agents; null = `max_tokens`, which each row has anyway"""

    @property
    def longest_rollout(self) -> int:
        """`rollout_tokens`, or `max_tokens` where it is null."""
        return self.rollout_tokens or self.max_tokens


Done = Callable[[int, list[Response]], None]
"""Called with the index of a prompt and its finished samples."""


class WeightsLost(RunError):
    """The engine was restarted without the weights of the last `sync`; it needs them again."""


class Abandoned(RunError):
    """Nobody wants what is being drawn any more; see `Feed.abandon`."""


class WaitEnded(RunError):
    """The process was asked to end (`base.progress.ENDING`) while it waited for the engine."""


@dataclass(frozen=True)
class Request:
    """A response to be drawn, which may become known while others are drawn.

    Attributes:
        place: among the requests that are drawn together, in an engine that draws them so.
        key: whose response it is.
        prompt: token ids.
        seed: of the response, or of all responses to the prompt.
        max_tokens: of the response.
        index: of the response among those with this seed.
    """

    place: tuple[int, ...]
    key: Any
    prompt: array[int]
    seed: int
    max_tokens: int
    index: int = 0


class Feed(Generic[Item]):
    """Items that may come while earlier ones are worked on. Its methods work in any thread.

    Args:
        items: the first ones.
        sources: how many put items in, one at a time each.
        together: an engine that draws in batches waits for an item of each source, so that the same
            items are drawn together in every run; False = an item joins those that are being drawn.

    Attributes:
        sources: those that may put in another item.
        together: as given.
    """

    def __init__(
        self, items: Iterable[Item] = (), *, sources: int = 1, together: bool = True
    ) -> None:
        self.sources, self.together = sources, together
        self._items, self._closed, self._abandoned = [*items], False, False
        self._changed = threading.Condition()

    @classmethod
    def whole(cls, items: Sequence[Item]) -> Feed[Item]:
        """A feed of these items and no others."""
        feed = cls(items, sources=len(items))
        feed.close()
        return feed

    def put(self, item: Item) -> None:
        """Add an item."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def leave(self, count: int = 1) -> None:
        """So many sources less."""
        with self._changed:
            self.sources -= count
            self._changed.notify_all()

    def close(self) -> None:
        """No more items come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Nobody wants the rest: the next `take` raises, which ends the drawing."""
        with self._changed:
            self._abandoned = self._closed = True
            self._changed.notify_all()

    def take(self, *, wait: bool = False, whole: bool = False) -> list[Item] | None:
        """The items that have come, perhaps none; None if no more will come.

        Args:
            wait: for an item, a second at most: between two calls, a signal is handled.
            whole: as `wait`, for one item of each source.

        Raises:
            Abandoned: nobody wants what is being drawn.
        """
        with self._changed:
            enough = self._changed.wait_for(
                lambda: (
                    self._closed or len(self._items) >= (max(self.sources, 1) if whole else wait)
                ),
                1.0,
            )
            if self._abandoned:
                raise Abandoned("the feed was abandoned")
            if not enough:
                return []
            taken, self._items = self._items, []
            return taken if taken or not self._closed else None


class Between:
    """Lets one thread work in a loop of steps, and another one between two steps, without waiting
    for more than one of them."""

    def __init__(self) -> None:
        self._asked, self._held = threading.RLock(), threading.RLock()

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the loop: it begins when nobody else works, or waits for it."""
        with self._asked:
            pass
        with self._held:
            yield

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Inside, the loop of another thread does not go on."""
        with self._asked, self._held:
            yield


class Sampler(Protocol):
    """Draws responses from the current policy."""

    dtype: torch.dtype | None
    """The dtype in which `sync` expects weights; None = the trainer's dtype."""
    same_tensors: bool
    """Whether `sync` receives the trainer's tensors in the engine's process, and not copies."""
    syncs_in_flight: bool
    """Whether all methods may be called while `stream` draws in another thread. Then `sync` gives
    responses that are being drawn the new weights between two tokens, and they go on; the response
    says in `versions` which tokens are of which weights."""

    @property
    def context(self) -> int | None:
        """The largest number of tokens in prompt and response together; None = no limit."""
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Response]]:
        """Draw `count` responses for each prompt, in the order of the prompts.

        A response depends on the weights, the prompt, the prompt's seed and the response's index
        within the prompt. It does not depend on the other prompts of the call.

        Args:
            prompts: token ids.
            count: responses per prompt.
            settings: how responses are drawn.
            seeds: one per prompt.
            done: called with a prompt's index and samples when they are finished before those of
                other prompts: at most once per prompt, in any order, possibly in another thread.
                A sampler need not call it. An exception in it ends the call.

        Raises:
            WeightsLost: the trainer should call `sync` again and repeat the call.
        """
        ...

    def stream(
        self,
        feed: Feed[Request],
        settings: SamplingSettings,
        done: Callable[[Request, Response], None],
    ) -> None:
        """Draw a response to each request of a feed until it is closed.

        Args:
            feed: has the requests, with their own seeds and `max_tokens`.
            settings: how responses are drawn.
            done: called with each request and its response as soon as the engine has it.

        Raises:
            WeightsLost: the trainer should call `sync` again and repeat the call.
        """
        ...

    def sync(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Load new weights, and mark later samples with their version.

        Args:
            weights: pairs (name in a Hugging Face checkpoint, whole tensor). The next tensor may
                need all ranks, so the caller takes those that the sampler leaves.
            version: version of these weights.
        """
        ...

    def received(self) -> Received:
        """Ask the engine for the version and the digests of its weights."""
        ...

    def live(self, part: int | None = None) -> Live | None:
        """Read the weights that the engine computes with; None if it cannot be asked.

        Args:
            part: of the columns of matrices, see `weights.columns`; None = all.
        """
        ...

    def sleep(self) -> None:
        """Free accelerator memory until the next `sync`, if the sampler supports it."""
        ...

    def close(self) -> None:
        """Free all resources. The sampler cannot be used afterwards."""
        ...
