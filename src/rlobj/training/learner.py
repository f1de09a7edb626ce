"""Learner: scores rollouts and makes the optimizer updates of an objective."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.config import RunConfig
from rlobj.objective import Objective
from rlobj.penalties import ProxyKL
from rlobj.plan import LossOutput, Plan
from rlobj.scoring import PolicyScorer, micro_batches, pad_sequences
from rlobj.tokens import TokenBatch
from rlobj.training import lora
from rlobj.training.agreement import any_rank, largest
from rlobj.training.parallel import Parallel
from rlobj.training.schedule import learning_rate
from rlobj.training.synchronizer import check_gap, sampler_gap

__all__ = ["SKIPPED", "Learner"]

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
Witness = Callable[[list[TokenBatch], list[list[int]], Plan], None]

_SCORED = {"logprobs", "old_logprobs", "entropy", "old_entropy", "collision", "proxy_logprobs"}
_CURRENT = {"logprobs", "entropy", "collision"}

SKIPPED = {"train/grad_norm": math.nan, "train/skipped_updates": 1.0}
"""What an update comes to that changed nothing, since something was not finite."""


class Learner:
    """The policy's trainable side: scoring passes, updates, the learning rate.

    Args:
        config: the run's.
        objective: resolved; its phases are run one after another.
        parallel: how the policy is spread over processes.
        scorer: the policy as a `PolicyScorer`, not yet prepared.
        reference: the reference policy's scorer, where a KL term needs one; with LoRA the policy
            without its adapters is the reference.
        autocast: arithmetic of the forward pass; None = the weights' own.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        parallel: Parallel,
        scorer: PolicyScorer,
        reference: PolicyScorer | None,
        autocast: torch.dtype | None,
    ) -> None:
        training = config.training
        optimizer = torch.optim.AdamW(
            [p for p in scorer.parameters() if p.requires_grad],
            lr=training.learning_rate,
            betas=training.betas,
            weight_decay=training.weight_decay,
        )
        self.config = config
        self.objective = objective
        self.parallel = parallel
        self.model = scorer.model
        self.scorer, _ = parallel.prepare(scorer, optimizer)
        self.reference = reference
        self.comm = parallel.comm
        self.device = parallel.device
        self.autocast = autocast
        self.state: dict[str, Any] = {**objective.init(), "update": 0}
        self._min_p = next((p.min_p for p in objective.penalties if isinstance(p, ProxyKL)), 0.02)
        needs = objective.needs
        self._referenced = "ref_logprobs" in needs.plan | needs.loss
        updates = training.updates_per_step * len(objective.phases)
        self._single = updates == 1
        self._wanted = ((needs.observe | needs.plan) | (needs.loss & {"proxy_logprobs"})) & _SCORED
        if not self._single:  # later updates need l0, if only for what is logged
            self._wanted |= {"old_logprobs"}
        self._reread = bool(needs.plan & _CURRENT) and training.selection == "current"

    # Scoring.

    def score(self, table: TokenBatch, sequences: Sequences) -> TokenBatch:
        """The rollout's table with the columns that the objective asks of the policy.

        Where the step is one update in one micro-batch, the log-probs keep their graph and the
        update needs no second forward; where nothing is asked, no forward is made at all.
        """
        if self._referenced:
            table = table.replace(ref_logprobs=self._reference_logprobs(sequences))
        if not self._wanted:
            return table
        shared = self._single and self._one_micro_batch(sequences)
        with contextlib.nullcontext() if shared else torch.no_grad():
            scores = self._forward(
                self.scorer,
                sequences,
                entropy=True,
                min_p=self._min_p if "proxy_logprobs" in self._wanted else None,
                collision="collision" in self._wanted,
            )
        if shared:
            return table.replace(**scores)
        old = {"old_logprobs": scores["logprobs"], "old_entropy": scores["entropy"]}
        return table.replace(**scores, **old)

    def logprobs(self, sequences: Sequences) -> Tensor:
        """log π of the response tokens under the policy as it is [N]."""
        with torch.no_grad():
            return self._forward(self.scorer, sequences)["logprobs"]

    def _reference_logprobs(self, sequences: Sequences) -> Tensor:
        if self.reference is None:
            with lora.without(self.model):
                return self.logprobs(sequences)
        with torch.no_grad():
            return self._forward(self.reference, sequences)["logprobs"]

    def _one_micro_batch(self, sequences: Sequences) -> bool:
        """On every rank."""
        return len(self._pack(sequences)) <= 1

    def _pack(self, sequences: Sequences) -> list[list[int]]:
        """Micro-batches, as many as the rank with the most has: a forward may be an exchange."""
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        parts = micro_batches(lengths, self.config.training.micro_batch_tokens)
        most = int(largest(len(parts), self.comm))
        return parts + [[] for _ in range(most - len(parts))]

    def _forward(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        """Score all response tokens, by micro-batches, in the sequences' order."""
        chunks: dict[str, list[Any]] = {}
        for part in self._pack(sequences):
            scores = self._score_part(scorer, [sequences[i] for i in part], **settings)
            lengths = [len(sequences[i][1]) for i in part]
            for name, values in scores.items():
                rows = chunks.setdefault(name, [None] * len(sequences) or [values])
                for i, chunk in zip(part, values.split(lengths) if part else (), strict=True):
                    rows[i] = chunk
        return {name: torch.cat(rows) for name, rows in chunks.items()}

    def _score_part(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        temperature = self.config.sampling.temperature
        padded = pad_sequences(sequences, self.device)
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, self.autocast, enabled=enabled):
            scores = scorer(*padded, temperature=temperature, **settings)
        return {name: values for name, values in vars(scores).items() if values is not None}

    # Updating.

    def finite(self, table: TokenBatch) -> bool:
        """Did the policy give numbers for every token, on every rank?"""
        columns = (table.logprobs, table.entropy, table.collision, table.proxy_logprobs)
        bad = any(x is not None and not bool(torch.isfinite(x.detach()).all()) for x in columns)
        return not any_rank(bad, self.comm)

    def observe(self, table: TokenBatch) -> None:
        """Let the controllers see the rollout."""
        self.state = self.objective.observe([table], self.state, self.comm)

    def update(
        self,
        objective: Objective,
        table: TokenBatch,
        sequences: Sequences,
        *,
        stale: bool,
        witness: Witness | None = None,
    ) -> dict[str, float]:
        """One optimizer update of one phase on one mini-batch; its metrics.

        Where log-probs, the loss or the gradient are not finite on any rank, nothing changes on
        any: `train/skipped_updates` is 1 and `train/grad_norm` NaN.

        Args:
            objective: the phase.
            table: the mini-batch, with advantages and the scoring pass's columns.
            sequences: its token ids.
            stale: the weights have moved since the scoring pass.
            witness: shown the micro-batches' tables, their places in `table`, and the plan.

        Raises:
            SamplerGap: fresh samples that do not come from the policy.
        """
        if stale and self._reread:
            with torch.no_grad():
                settings = {"entropy": True, "collision": "collision" in self._wanted}
                table = table.replace(**self._forward(self.scorer, sequences, **settings))
            if not self.finite(table):
                return SKIPPED
        parts = self._pack(sequences)
        tables = [table.select(part, index) for index, part in enumerate(parts)]
        start = time.perf_counter()
        plan = objective.plan(tables, self.state, self.comm)
        planning = time.perf_counter() - start
        if witness is not None:
            witness(tables, parts, plan)
        self.state["update"] += 1
        outputs, scored = [], []
        for index, part in enumerate(parts):
            micro = tables[index]
            if not micro.logprobs.requires_grad:
                batch = [sequences[i] for i in part]
                micro = micro.replace(**self._score_part(self.scorer, batch, entropy=True))
            output = objective.loss(micro, plan)
            self.parallel.backward(output.loss, last=index + 1 == len(parts))
            outputs.append(_detached(output))
            scored.append((micro.logprobs.detach(), micro.sampler_logprobs))
        metrics = {**plan.metrics, **self._combine(outputs)}
        if not self._wanted:  # the first look at fresh samples: before they move the policy
            logprobs, sampler = map(torch.cat, zip(*scored, strict=True))
            if not any_rank(not bool(torch.isfinite(logprobs).all()), self.comm):
                metrics |= self.gap(logprobs, sampler, not self.config.sampling.async_depth)
        return {**metrics, **self._step(plan, metrics["loss/total"]), "time/planning": planning}

    def _step(self, plan: Plan, loss: float) -> dict[str, float]:
        """Clip and step, unless nothing counted or something is not finite."""
        norm = self.parallel.step(apply=math.isfinite(loss) and not plan.empty)
        finite = math.isfinite(norm) and math.isfinite(loss)
        return {
            "train/grad_norm": norm if finite else math.nan,
            "train/skipped_updates": float(not finite or plan.empty),
        }

    def set_learning_rate(self, step: int) -> float:
        """The learning rate of a step (from 0), by schedule; set on the optimizer."""
        rate = learning_rate(self.config.training, step)
        self.parallel.set_learning_rate(rate)
        return rate

    def _combine(self, outputs: Sequence[LossOutput]) -> dict[str, float]:
        """Contributions summed and extremes maximised, over micro-batches and ranks."""
        names = self._names()
        sums = torch.zeros(len(names), dtype=torch.float64)
        for output in outputs:
            values = {**output.metrics, "loss/total": output.loss}
            sums += torch.stack([values[name].double().cpu() for name in names])
        combined = dict(zip(names, self.comm.sum(sums).tolist(), strict=True))
        ratios = [float(output.extremes["policy/ratio_max"]) for output in outputs]
        combined["policy/ratio_max"] = largest(max(ratios, default=0.0), self.comm)
        return combined

    def _names(self) -> list[str]:
        """Metric names, known also to a rank without micro-batches."""
        means = ["objective/clip_fraction", "policy/entropy", "policy/kl_old", "policy/ratio"]
        losses = ["loss/policy", *(f"loss/{penalty.name}" for penalty in self.objective.penalties)]
        return [*dict.fromkeys(losses), *means, "loss/total"]

    def sampler_gap(self, table: TokenBatch) -> dict[str, float]:
        """The sampler's log-probs beside the trainer's; {} where `update` is the first to know."""
        if not self._wanted:
            return {}
        sampler = table.column("sampler_logprobs", "the sampler's gap")
        return self.gap(table.logprobs, sampler, not self.config.sampling.async_depth)

    def gap(self, logprobs: Tensor, sampler: Tensor, fresh: bool = True) -> dict[str, float]:
        """The gap between trainer and sampler on some samples.

        Args:
            logprobs: by the trainer [N].
            sampler: by the sampler [N].
            fresh: they were drawn from the weights that the trainer scores with.

        Raises:
            SamplerGap: fresh samples that do not come from the policy.
        """
        gap = sampler_gap(logprobs, sampler, self.comm)
        if fresh:
            check_gap(gap, self.config.sampling.max_logprob_gap, self.autocast)
        return gap


def _detached(output: LossOutput) -> LossOutput:
    return LossOutput(output.loss.detach(), output.weights, output.metrics, output.extremes)
