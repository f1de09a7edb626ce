"""DAPO's soft overlong punishment: a penalty on responses near the length limit."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from rlobj.base.validation import Model


def overlong_penalty(lengths: Tensor, max_tokens: float, cache: float) -> Tensor:
    r"""Return the length penalty of each response.

    L is the length, L_max the limit and L_c the cache, all in tokens:

                0                        L <= L_max - L_c
        P(L) =  (L_max - L_c - L) / L_c  L_max - L_c < L <= L_max
                -1                       L_max < L

    Args:
        lengths: [B], in tokens.
        max_tokens: L_max, in tokens.
        cache: L_c > 0, in tokens; the penalty grows over the last L_c tokens before the limit.

    Returns:
        [B] float64, between -1 and 0.

    Source:
        DAPO, arXiv:2503.14476, equation 13.

    Example:
        >>> import torch
        >>> overlong_penalty(torch.tensor([80, 90, 100, 120]), max_tokens=100, cache=20).tolist()
        [0.0, -0.5, -1.0, -1.0]
    """
    return ((max_tokens - cache - lengths.double()) / cache).clamp(-1.0, 0.0)


class Overlong(Model):
    """Soft overlong punishment, added to the reward; accuracy does not include it.

    The paper's limit of 20480 tokens with a cache of 4096 is `cache: 0.2`.
    """

    cache: float = Field(gt=0, lt=1, description="L_c as a share of sampling.max_tokens")
    penalty: float = Field(default=1.0, ge=0, description="penalty of a response at the limit")

    def shape(self, rewards: Tensor, lengths: Tensor, max_tokens: int) -> Tensor:
        """Add the penalty to rewards [B]; an undecided reward (NaN) stays undecided.

        Args:
            rewards: [B].
            lengths: [B], in tokens.
            max_tokens: length limit, in tokens.
        """
        shaped = overlong_penalty(lengths, max_tokens, self.cache * max_tokens)
        return rewards + (self.penalty * shaped).to(rewards.dtype)
