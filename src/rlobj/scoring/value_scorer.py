"""Values of tokens from a token classification model with one label."""

import math
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError
from rlobj.scoring.policy_scorer import TrunkScorer


class ValueScorer(TrunkScorer):
    """A token classification model with one label that returns `values`: V of the context before
    each token, [N], float32 or float64, with gradient.

    z = w·h + b, where h is the hidden state that predicts the token; V = z, or, between two bounds,
    V = lowest + (highest − lowest)·(½ + arctan(z)/π)

    Source of the bounds: BPCO, arXiv:2608.23566.

    Args:
        model: a transformers token classification model.
        packed: as in `TrunkScorer`.
        bounds: the lowest and the highest value; None = V is z.

    Raises:
        ConfigError: as `TrunkScorer`; or the model has not one label.
    """

    def __init__(
        self,
        model: nn.Module,
        packed: bool | Literal["auto"] = "auto",
        bounds: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(model, packed)
        self._bounds = bounds

    def forward(self, *inputs: Any, temperature: float = 1.0) -> SimpleNamespace:
        """The values of the tokens in the response mask, row after row, at any temperature."""
        hidden, _ = self.predicting(*inputs)
        head = value_head(self.model)
        weight, bias = head.weight, head.bias
        with torch.autocast(hidden.device.type, enabled=False):  # half precision is too coarse
            values = nn.functional.linear(hidden.to(weight.dtype), weight, bias)[:, 0]
        if self._bounds is not None:
            lowest, highest = self._bounds
            values = lowest + (highest - lowest) * (0.5 + values.arctan() / math.pi)
        return SimpleNamespace(values=values)

    def _try_head(self, row: Tensor, hidden: Tensor) -> None:
        if not bool(hidden.isfinite().all()):
            raise ConfigError(f"the hidden states of {type(self.model).__name__} are not finite")
        if (labels := value_head(self.model).out_features) != 1:
            raise ConfigError(f"{type(self.model).__name__} has {labels} labels; expected one")


def value_head(model: Any) -> nn.Linear:
    """The linear layer of a token classification model; its name depends on the architecture.

    Raises:
        ConfigError: it has none.
    """
    heads = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
    if len(heads) != 1:
        raise ConfigError(f"{type(model).__name__} has {len(heads)} linear heads; expected one")
    return heads[0]
