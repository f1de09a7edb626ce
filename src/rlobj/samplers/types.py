"""What a sampler is asked for and what it gives back."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field, StringConstraints
from torch import Tensor

from rlobj.base.validation import Model
from rlobj.samplers.weights import Received

__all__ = ["Distribution", "Done", "Sample", "Sampler", "SamplingSettings", "packed"]


class Sample:
    """One response to one prompt; immutable. Tokens are kept as arrays of four bytes each.

    Example: prompt "1+1=" and response "2" then end of text, at version 3 of the weights
        Sample(prompt_ids=[5, 10, 5, 12], token_ids=[6, 1], logprobs=[-0.7, -0.1], text="2",
               finish="stop", weight_version=3)

    Args:
        prompt_ids: token ids; an array of int32 is kept as it is, to be shared by a group.
        token_ids: the response. It ends in the EOS token if the model gave one: a token to be
            trained on.
        logprobs: ln of each token's probability under the distribution it was drawn from, in nats:
            after the temperature, and renormalised over what top-k, top-p and min-p left. Greedy
            choices have 0.
        text: `token_ids` decoded, without special tokens; a stop string stays in it.
        finish: "stop": an EOS token or a stop string; "length": `max_tokens` were reached.
        weight_version: the version given with the last `sync`; 0 before the first.

    Attributes:
        prompt: `prompt_ids` as an array of int32.
        tokens: `token_ids` as an array of int32.
        logprobs: `logprobs` as an array of float32.
    """

    __slots__ = ("finish", "logprobs", "prompt", "text", "tokens", "weight_version")

    def __init__(
        self,
        prompt_ids: Iterable[int],
        token_ids: Iterable[int],
        logprobs: Iterable[float],
        text: str,
        finish: Literal["stop", "length"],
        weight_version: int,
    ) -> None:
        self.prompt = packed("i", prompt_ids)
        self.tokens = packed("i", token_ids)
        self.logprobs = packed("f", logprobs)
        self.text = text
        self.finish: Literal["stop", "length"] = finish
        self.weight_version = weight_version

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's token ids, as a new list."""
        return self.prompt.tolist()

    @property
    def token_ids(self) -> list[int]:
        """The response's token ids, as a new list."""
        return self.tokens.tolist()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Sample({self.text!r}, {len(self.prompt)} + {len(self.tokens)} tokens, "
            f"{self.finish!r}, version {self.weight_version})"
        )


def packed(code: Literal["i", "f"], values: Iterable[Any]) -> array[Any]:
    """Values as an array of four bytes each; an array of that kind is given back as it is."""
    if isinstance(values, array) and values.typecode == code:
        return values
    return array(code, values)


class Distribution(Model):
    """The distribution that tokens are sampled from. The default is the model's own."""

    temperature: float = Field(
        default=1.0,
        ge=0.0,
        allow_inf_nan=False,
        description="logits are divided by this; 0 = the most likely token (greedy)",
    )
    top_p: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="sample from the most likely tokens with this probability; 1 = all",
    )
    top_k: int = Field(default=0, ge=0, description="sample from the k most likely tokens; 0 = all")
    min_p: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="sample from tokens with at least this share of the largest probability; "
        "0 = all",
    )


class SamplingSettings(Distribution):
    """How responses are sampled."""

    max_tokens: int = Field(
        ge=1, description="largest number of tokens in a response, with the EOS token"
    )
    stop: tuple[Annotated[str, StringConstraints(min_length=1)], ...] = Field(
        default=(), description="a response ends when it contains one of these texts"
    )


Done = Callable[[int, list[Sample]], None]
"""Called with the place of a prompt and its finished samples."""


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
        done: Done | None = None,
    ) -> list[list[Sample]]:
        """`count` responses for each prompt, in the prompts' order.

        A response depends on the weights, its prompt, the prompt's seed and its place among the
        prompt's responses: not on the other prompts of the call.

        Args:
            prompts: token ids.
            count: responses for each.
            settings: how they are drawn.
            seeds: one a prompt.
            done: told the place of a prompt and its samples where they are finished before others
                are; once a prompt, in any order, perhaps in another thread. A sampler may tell of
                some prompts, or of none. What it raises ends the call.
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
