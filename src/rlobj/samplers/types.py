"""What a sampler is asked for and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import torch
from pydantic import ConfigDict, Field, StringConstraints
from torch import Tensor

from rlobj.samplers.weights import Received
from rlobj.validation import Model

__all__ = ["Sample", "Sampler", "SamplingSettings"]


@dataclass(frozen=True)
class Sample:
    """One response to one prompt.

    Example: prompt "1+1=" and response "2" then end of text, at version 3 of the weights
        Sample(prompt_ids=[5, 10, 5, 12], token_ids=[6, 1], logprobs=[-0.7, -0.1], text="2",
               finish="stop", weight_version=3)
    """

    prompt_ids: list[int]
    token_ids: list[int]
    """The response. It ends in the EOS token if the model gave one: a token to be trained on."""
    logprobs: list[float]
    """ln of each token's probability under the distribution it was drawn from, in nats: after the
    temperature, and renormalised over what top-k, top-p and min-p left. Greedy choices have 0."""
    text: str
    """`token_ids` decoded, without special tokens; a stop string stays in it."""
    finish: Literal["stop", "length"]
    """stop: an EOS token or a stop string; length: `max_tokens` were reached."""
    weight_version: int
    """The version given with the last `sync`; 0 before the first."""


class SamplingSettings(Model):
    """How responses are drawn. The defaults sample from the model itself, untruncated."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """Logits are divided by it; 0 takes the likeliest token (greedy)."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Keep the smallest set of likeliest tokens whose probability reaches this; 1 keeps all."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    max_tokens: int = Field(ge=1)
    """Longest response, in tokens, the EOS token included."""
    stop: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = ()
    """Texts that end a response as soon as it contains one of them."""


class Sampler(Protocol):
    """Draws responses from the current policy."""

    dtype: torch.dtype | None
    """What it wants weights in; None = as the trainer has them."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
    ) -> list[list[Sample]]:
        """`count` responses for each prompt, in the prompts' order.

        A response depends on the weights, its prompt, the prompt's seed and its place among the
        prompt's responses: not on the other prompts of the call.
        """
        ...

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Sample from these weights from now on, and mark samples with this version.

        Args:
            weights: (name in a Hugging Face checkpoint, whole tensor), one at a time. Every rank
                takes all of them: getting one may be an exchange between ranks.
            version: of the weights.
        """
        ...

    def received(self) -> Received:
        """What the engine itself holds, asked of it anew."""
        ...

    def sleep(self) -> None:
        """Give accelerator memory to the trainer until the next `sync`, where that is possible."""
        ...

    def close(self) -> None:
        """Free what the sampler holds. It cannot sample any more."""
        ...
