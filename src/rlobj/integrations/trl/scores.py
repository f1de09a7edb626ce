"""Scores in TRL: frozen models and servers that score each rollout once."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError
from rlobj.integrations.trl.rollout import sequences, trained
from rlobj.models.score_sources import resolved_score
from rlobj.models.scores import frozen, load_score, with_end
from rlobj.samplers.vllm.scoring import ServerScorer
from rlobj.scoring import PolicyScorer, score_samples
from rlobj.scoring.cutting import cut_sequences
from rlobj.settings.run_config import ModelConfig
from rlobj.settings.scores import ScoreConfig

_BUDGET = 16384
"""Prompt and response tokens that go through a score's model at once."""


class TrlScore:
    """A score of a run in TRL.

    Args:
        name: of the score.
        settings: `model`, `run` or `server`, and `end` and `dtype`.
        tokenizer: the policy's.
        temperature: of the rollout.
        device: of the model.

    Raises:
        ConfigError: the model cannot be loaded or reads other tokens, or needs the trainer of
            `rlobj train`.
    """

    def __init__(
        self, name: str, settings: Any, tokenizer: Any, temperature: float, device: Any
    ) -> None:
        if name == "reference":
            raise ConfigError("scores.reference: in TRL the reference is that of beta")
        if not isinstance(settings, ScoreConfig) or settings.is_policy or settings.prompt:
            what = "in TRL a score is a frozen model with the same prompt: model, run or server"
            raise ConfigError(f"scores.{name}: {what}")
        self._settings = resolved_score(name, settings)
        self._temperature, self._end = temperature, tokenizer.eos_token_id
        self._server = self._scorer = None
        if settings.server is not None:
            self._server = ServerScorer(settings.server, name=name, temperature=temperature)
            self._server.check(tokenizer, settings.end)
            return
        model = load_score(name, self._settings, ModelConfig(), tokenizer)
        self._scorer = PolicyScorer(frozen(model, settings, device))

    @torch.no_grad()
    def logprobs(self, inputs: Mapping[str, Any]) -> Tensor:
        """log π_NAME of the tokens of a rollout of TRL, [B, T]; 0 at padding and tool output."""
        end = self._settings.end
        values = self._scored([(p, with_end(r, self._end, end)) for p, r in sequences(inputs)])
        mask = trained(inputs).bool()
        flat = torch.cat([torch.as_tensor(row) for row in values]).to(mask.device, torch.float32)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, flat)

    def _scored(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Sequence[Any]:
        if self._server is not None:
            return self._server.logprobs(sequences)
        assert self._scorer is not None
        logprobs: list[Any] = [()] * len(sequences)
        shared = self._scorer.unshareable is None and not self._scorer.packed
        cut = cut_sequences(sequences, _BUDGET, packed=self._scorer.packed, shared=shared)
        for part in cut.parts:
            chosen = [sequences[i] for i in part]
            scores = score_samples(
                self._scorer, chosen, shared_prompts=shared, temperature=self._temperature
            ).logprobs
            for i, chunk in zip(part, scores.split([len(t) for _, t in chosen]), strict=True):
                logprobs[i] = chunk
        return logprobs
