"""What the divergences of a step read of their teachers, until the last update of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import RunError
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.samplers.vllm.scoring import ServerScore
from rlobj.scoring import PolicyScorer
from rlobj.scoring.divergences import Comparison, States, TopTokens
from rlobj.scoring.token_scores import head_of
from rlobj.training.loop.forward import ForwardPasses
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.strategies import whole


class Teachers:
    """Keeps hidden states, or the most likely tokens, of the scores that divergences read.

    Args:
        divergences: columns of the table; the score and the divergence of each.
        parallel: the processes.
        policy: the policy's scorer.
        forward: makes the forward passes.
    """

    def __init__(
        self,
        divergences: Mapping[str, tuple[str, DivergenceSettings]],
        parallel: Parallel,
        policy: PolicyScorer,
        forward: ForwardPasses,
    ) -> None:
        self._divergences, self._parallel = divergences, parallel
        self._policy, self._forward = policy, forward
        self._kept: dict[str, TopTokens | States] = {}

    def __bool__(self) -> bool:
        return bool(self._divergences)

    @property
    def vocabulary(self) -> int:
        """Tokens of the policy's head."""
        return self._policy.model.get_output_embeddings().out_features

    def top(self, name: str) -> int:
        """The number of most likely tokens that divergences read of a score; 0 = none."""
        tops = [d.top or 0 for score, d in self._divergences.values() if score == name]
        return max(tops, default=0)

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of `PolicyScorer.forward` with which a score gives what divergences read."""
        tops = [d.top for score, d in self._divergences.values() if score == name]
        settings: dict[str, Any] = {"hidden_states": True} if None in tops else {}
        return settings | ({"top": (self.top(name), self.vocabulary)} if any(tops) else {})

    def keep(
        self,
        name: str,
        columns: Mapping[str, Tensor],
        model: PolicyScorer | None,
        ends: tuple[int | None, int | None],
    ) -> None:
        """Keep what a forward pass of a score gave.

        Args:
            name: of the score.
            columns: of the pass.
            model: the score's; None = the policy, whose weights at this moment are kept.
            ends: ids of the end token, the policy's and the score's; None = the same token.
        """
        states = self._states(columns["hidden"], model, ends) if "hidden" in columns else None
        for column, (score, divergence) in self._divergences.items():
            if score != name:
                continue
            if divergence.top is None and states is not None:
                self._kept[column] = states
                continue
            ids = _with_ends(columns["top_ids"], ends)
            kept, size = slice(divergence.top), self.vocabulary
            size = size if model is None else model.model.get_output_embeddings().out_features
            top = TopTokens(ids[:, kept], columns["top_logprobs"][:, kept], size)
            self._kept[column] = top

    def keep_answers(
        self,
        name: str,
        scores: Sequence[ServerScore],
        like: Tensor,
        ends: tuple[int | None, int | None],
    ) -> None:
        """Keep the most likely tokens that a server gave.

        Raises:
            RunError: one of them is no token of the policy.
        """
        if not self.top(name):
            return
        count = min(self.top(name), self.vocabulary)
        if short := [len(score.ids) for score in scores if len(score.ids) < count]:
            raise RunError(
                f"scores.{name}: the server gave {short[0]} of the {count} most likely tokens of a "
                "position. Use a smaller `top` of the divergence"
            )
        size = len(scores), count
        ids = torch.tensor([score.ids for score in scores], device=like.device).long().view(size)
        logprobs = torch.tensor([score.logprobs for score in scores]).to(like).view(size)
        if ids.numel() and int(ids.max()) >= self.vocabulary:
            raise RunError(
                f"scores.{name}: token {int(ids.max())} is among the most likely ones of the "
                f"server's model, and the policy has {self.vocabulary}. Use a smaller `top` of the "
                "divergence, or a teacher with the policy's vocabulary"
            )
        self.keep(name, {"top_ids": ids, "top_logprobs": logprobs}, None, ends)

    def at(self, rows: Tensor) -> dict[str, Comparison]:
        """The divergences at some rows of the step's table, each with its teacher.

        Args:
            rows: int [M].
        """
        return {
            column: (divergence, self._kept[column].rows(rows))
            for column, (_, divergence) in self._divergences.items()
        }

    @torch.no_grad()
    def _states(
        self, hidden: Tensor, model: PolicyScorer | None, ends: tuple[int | None, int | None]
    ) -> States:
        scorer = model or self._policy
        layer = scorer.model.get_output_embeddings()
        parameters = [layer.weight, *([] if layer.bias is None else [layer.bias])]
        if model is not None:
            parameters = [whole(p.detach()) for p in parameters]
        elif layer.weight.requires_grad:  # the next update moves the policy
            parameters = [self._parallel.full(p).clone() for p in parameters]
        else:
            parameters = [self._parallel.full(p) for p in parameters]
        if None not in ends:
            order = _with_ends(torch.arange(len(parameters[0]), device=hidden.device), ends)
            parameters = [p[order] for p in parameters]
        weight, bias = (*parameters, None)[:2]
        assert weight is not None
        with self._forward.arithmetic():  # as the policy's head multiplies
            head = head_of(hidden, weight, self._forward.temperature, **vars(scorer.shape))
        return States(hidden, head(weight, bias))


def _with_ends(ids: Tensor, ends: tuple[int | None, int | None]) -> Tensor:
    """Token ids with the policy's end token and the score's exchanged."""
    ours, theirs = ends
    if ours is None or theirs is None:
        return ids
    return torch.where(ids == theirs, ours, torch.where(ids == ours, theirs, ids))
