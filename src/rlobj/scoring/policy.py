"""Scoring with a causal language model: its trunk, then its head on the response rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.errors import ConfigError
from rlobj.scoring.packing import pad_sequences
from rlobj.scoring.tokens import TokenScores, score_tokens

log = logging.getLogger(__name__)

SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)


@dataclass(frozen=True)
class LogitShape:
    """What a model does to its raw logits: softcap·tanh(scale·raw / softcap), or scale·raw."""

    scale: float
    softcap: float | None


def logit_shape(config: Any) -> LogitShape:
    """Read the shape from a model's config (Gemma 2 has a cap; Cohere and Granite a scale)."""
    config = config.get_text_config()
    scale = 1.0
    for name in MULTIPLIERS:
        scale *= getattr(config, name, None) or 1.0
    for name in DIVISORS:
        scale /= getattr(config, name, None) or 1.0
    caps = [cap for name in SOFTCAPS if (cap := getattr(config, name, None))]
    return LogitShape(scale, caps[0] if caps else None)


class PolicyScorer(nn.Module):
    """A causal language model that answers with `TokenScores` instead of logits.

    Trunk and head run in one `forward`, so that DDP can wrap the scorer as it would the model;
    every parameter of the model takes part. Build it before wrapping or sharding: `forward` reads
    the head's weight, so whoever shards the model has to have that weight whole around it, as
    `rlobj.training.parallel` does. The model is kept as it is, under `.model`.

    Args:
        model: A transformers causal language model whose head is a linear layer on the last
            hidden states.

    Raises:
        ConfigError: A head that is no plain linear layer, or logits that scoring would not
            reproduce: the model's own logits for two tokens are compared once, here.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model
        head = model.get_output_embeddings()  # pyright: ignore[reportCallIssue]
        if getattr(type(head), "forward", None) is not nn.Linear.forward:
            raise ConfigError(
                f"the head of {type(model).__name__} is a {type(head).__name__}; expected a torch "
                "linear layer. Merge adapters on the head into it first."
            )
        self.shape = logit_shape(self.model.config)
        self._check_logits(head)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        response_mask: Tensor,
        **settings: Any,
    ) -> TokenScores:
        """Score the tokens under `response_mask`, row after row.

        Logits exist only for those tokens, tile by tile. The batch is padded on the right, so the
        positions that the model counts by itself are the true ones.

        Args:
            input_ids: [B, T].
            attention_mask: 1 at real tokens, [B, T].
            response_mask: True at the tokens to score, [B, T]; never in the first column.
            **settings: Of `score_tokens`: temperature, entropy, min_p, collision, sensitivity,
                chunk_bytes.

        Returns:
            TokenScores with one row per True of `response_mask`.
        """
        trunk = self.model.get_decoder()
        outputs = trunk(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        predicted = response_mask[:, 1:].bool()
        head = self.model.get_output_embeddings()
        return score_tokens(
            outputs[0][:, :-1][predicted],
            head.weight,
            input_ids[:, 1:][predicted],
            bias=head.bias,
            scale=self.shape.scale,
            softcap=self.shape.softcap,
            **settings,
        )

    @torch.no_grad()
    def _check_logits(self, head: nn.Linear) -> None:
        """Compare the model's logits for two tokens with what its last hidden states give here."""
        if head.weight.is_meta or not head.weight.numel():
            log.warning("The weights are not on this process: the model's logits go unchecked.")
            return
        seen = []
        hook = self.model.get_decoder().register_forward_hook(
            lambda *call: seen.append(call[-1][0])
        )
        try:
            input_ids = torch.tensor([[0, 1]], device=head.weight.device)
            logits = self.model(input_ids=input_ids, use_cache=False).logits[0, -1].float()
        finally:
            hook.remove()
        ours = head(seen[0][0, -1].to(head.weight.dtype)).float() * self.shape.scale
        if self.shape.softcap:
            ours = self.shape.softcap * torch.tanh(ours / self.shape.softcap)
        error = float((ours - logits).abs().max()) if ours.shape == logits.shape else float("inf")
        tolerance = 1e-4 if head.weight.dtype in (torch.float32, torch.float64) else 2e-2
        if not error <= tolerance * float(logits.abs().max()):
            raise ConfigError(_unknown_head(self.model, self.shape, error))


def _unknown_head(model: Any, shape: LogitShape, error: float) -> str:
    config = model.config.get_text_config().to_dict()
    words = ("logit", "scal", "multiplier", "cap")
    suspects = [
        f"{name}={value}"
        for name, value in config.items()
        if value and any(word in name for word in words) and not isinstance(value, dict | list)
    ]
    return (
        f"{type(model).__name__} makes its logits in a way that scoring does not know: its own "
        f"differ by {error:.3g} from those of its last hidden states with scale {shape.scale:g} "
        f"and soft cap {shape.softcap}. Settings of its config that may be the reason: "
        f"{', '.join(suspects) or 'none'}."
    )


def score_samples(
    model: nn.Module,
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    **settings: Any,
) -> TokenScores:
    """Score every response token of some sequences in one padded batch.

    Args:
        model: A `PolicyScorer`, wrapped or not, or a causal language model. In a loop pass a
            scorer: building one runs the model once on two tokens.
        sequences: `ScoredSequence`s, or pairs of prompt and response token ids. See `micro_batches`
            for how many to pass at once. An empty response gives no row, no sequences no rows.
        **settings: Of `score_tokens`: temperature, entropy, min_p, collision, sensitivity,
            chunk_bytes.

    Returns:
        TokenScores of all response tokens, response after response.

    Raises:
        BatchError: A response without a prompt, or a token outside the vocabulary.
        ConfigError: A model whose logits are not known, or a setting outside its range.
    """
    scorer = PolicyScorer(model) if hasattr(model, "get_output_embeddings") else model
    device = next(scorer.parameters()).device
    return scorer(*pad_sequences(sequences, device), **settings)
