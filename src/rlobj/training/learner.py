"""Learner: scores rollouts and makes the optimizer updates of an objective."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj import functional
from rlobj.config import RunConfig
from rlobj.errors import RunError
from rlobj.objective import Objective
from rlobj.penalties import ProxyKL
from rlobj.plan import LossOutput, Plan
from rlobj.scoring import PolicyScorer, micro_batches, pad_sequences
from rlobj.tokens import TokenBatch
from rlobj.training.comm import ProcessGroup
from rlobj.training.schedule import learning_rate

__all__ = ["Learner", "backward"]

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
Witness = Callable[[list[TokenBatch], list[list[int]], Plan], None]

_SCORED = {"logprobs", "old_logprobs", "entropy", "old_entropy", "collision", "proxy_logprobs"}
_CURRENT = {"logprobs", "entropy", "collision"}


def backward(accelerator: Any, scorer: Any, loss: Tensor, last: bool) -> None:
    """Add a micro-batch's gradient; the one place where gradients are scaled.

    Micro-batch losses over all ranks SUM to the objective, data parallelism averages over ranks:
    so × the number of ranks, and no division by the number of micro-batches. Gradients travel
    between ranks once, with the last micro-batch.
    """
    with contextlib.nullcontext() if last else accelerator.no_sync(scorer):
        accelerator.backward(loss * accelerator.num_processes)


class Learner:
    """The policy's trainable side: scoring passes, updates, the learning rate.

    Args:
        config: the run's.
        objective: resolved; its phases are run one after another.
        accelerator: Accelerate's, with gradient accumulation 1.
        scorer: the policy as a `PolicyScorer`, not yet prepared.
        reference: the reference policy's scorer, where a KL term needs one.
        autocast: arithmetic of the forward pass; None = the weights' own.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        accelerator: Any,
        scorer: PolicyScorer,
        reference: PolicyScorer | None,
        autocast: torch.dtype | None,
    ) -> None:
        training = config.training
        optimizer = torch.optim.AdamW(
            scorer.parameters(),
            lr=training.learning_rate,
            betas=training.betas,
            weight_decay=training.weight_decay,
        )
        self.config = config
        self.objective = objective
        self.accelerator = accelerator
        self.scorer, self.optimizer = accelerator.prepare(scorer, optimizer)
        self.reference = reference
        self.comm = ProcessGroup(accelerator.device)
        self.autocast = autocast
        self.state: dict[str, Any] = {**objective.init(), "update": 0}
        self.skipped_in_a_row = 0
        self._min_p = next((p.min_p for p in objective.penalties if isinstance(p, ProxyKL)), 0.02)
        needs = objective.needs
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
        if self.reference is not None:
            with torch.no_grad():
                scores = self._forward(self.reference, sequences)
            table = table.replace(ref_logprobs=scores["logprobs"])
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

    def _one_micro_batch(self, sequences: Sequences) -> bool:
        """On every rank."""
        several = torch.tensor(int(len(self._pack(sequences)) > 1))
        return int(self.comm.sum(several)) == 0

    def _pack(self, sequences: Sequences) -> list[list[int]]:
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        return micro_batches(lengths, self.config.training.micro_batch_tokens)

    def _forward(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        """Score all response tokens, by micro-batches, in the sequences' order."""
        chunks: dict[str, list[Any]] = {}
        for part in self._pack(sequences):
            scores = self._score_part(scorer, [sequences[i] for i in part], **settings)
            lengths = [len(sequences[i][1]) for i in part]
            for name, values in scores.items():
                rows = chunks.setdefault(name, [None] * len(sequences))
                for i, chunk in zip(part, values.split(lengths), strict=True):
                    rows[i] = chunk
        return {name: torch.cat(rows) for name, rows in chunks.items()}

    def _score_part(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        temperature = self.config.sampling.temperature
        padded = pad_sequences(sequences, self.accelerator.device)
        enabled, device = self.autocast is not None, self.accelerator.device.type
        with torch.autocast(device, self.autocast, enabled=enabled):
            scores = scorer(*padded, temperature=temperature, **settings)
        return {name: values for name, values in vars(scores).items() if values is not None}

    # Updating.

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

        Args:
            objective: the phase.
            table: the mini-batch, with advantages and the scoring pass's columns.
            sequences: its token ids.
            stale: the weights have moved since the scoring pass.
            witness: shown the micro-batches' tables, their places in `table`, and the plan.
        """
        if stale and self._reread:
            with torch.no_grad():
                settings = {"entropy": True, "collision": "collision" in self._wanted}
                table = table.replace(**self._forward(self.scorer, sequences, **settings))
        parts = self._pack(sequences)
        tables = [table.select(part, index) for index, part in enumerate(parts)]
        start = time.perf_counter()
        plan = objective.plan(tables, self.state, self.comm)
        planning = time.perf_counter() - start
        if witness is not None:
            witness(tables, parts, plan)
        self.state["update"] += 1
        outputs = []
        for index, part in enumerate(parts):
            micro = tables[index]
            if not micro.logprobs.requires_grad:
                batch = [sequences[i] for i in part]
                micro = micro.replace(**self._score_part(self.scorer, batch, entropy=True))
            output = objective.loss(micro, plan)
            backward(self.accelerator, self.scorer, output.loss, last=index + 1 == len(parts))
            outputs.append(_detached(output))
        metrics = {**plan.metrics, **self._combine(outputs), **self._step(plan)}
        return {**metrics, "time/planning": planning}

    def _step(self, plan: Plan) -> dict[str, float]:
        """Clip and step, unless nothing counted or the gradient is not finite."""
        training = self.config.training
        norm = self.accelerator.clip_grad_norm_(self.scorer.parameters(), training.max_grad_norm)
        norm = float(norm) if norm is not None else 0.0
        finite = bool(torch.isfinite(torch.tensor(norm)))
        if finite and not plan.empty:
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= training.max_skipped:
            raise RunError(
                f"the gradient was not finite in {self.skipped_in_a_row} updates in a row. Lower "
                "training.learning_rate, or look at the last token table for the tokens at fault."
            )
        return {
            "train/grad_norm": norm if finite else float("nan"),
            "train/skipped_updates": float(not finite or plan.empty),
        }

    def set_learning_rate(self, step: int) -> float:
        """The learning rate of a step (from 0), by schedule; set on the optimizer."""
        rate = learning_rate(self.config.training, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _combine(self, outputs: Sequence[LossOutput]) -> dict[str, float]:
        """Contributions summed and extremes maximised, over micro-batches and ranks."""
        names = self._names()
        sums = torch.zeros(len(names), dtype=torch.float64)
        for output in outputs:
            values = {**output.metrics, "loss/total": output.loss}
            sums += torch.stack([values[name].double().cpu() for name in names])
        combined = dict(zip(names, self.comm.sum(sums).tolist(), strict=True))
        largest = torch.zeros(self.comm.size, dtype=torch.float64)
        ratios = [float(output.extremes["policy/ratio_max"]) for output in outputs]
        largest[self.comm.rank] = max(ratios, default=0.0)
        combined["policy/ratio_max"] = float(self.comm.sum(largest).max())
        return combined

    def _names(self) -> list[str]:
        """Metric names, known also to a rank without micro-batches."""
        means = ["objective/clip_fraction", "policy/entropy", "policy/kl_old", "policy/ratio"]
        losses = ["loss/policy", *(f"loss/{penalty.name}" for penalty in self.objective.penalties)]
        return [*dict.fromkeys(losses), *means, "loss/total"]

    def sampler_gap(self, table: TokenBatch) -> dict[str, float]:
        """Mean k3 and largest ratio between the trainer's and the sampler's log-probs."""
        if table.old_logprobs is None and not self._wanted:
            return {}
        decided = table.decided
        trainer = table.column("old_logprobs", "metrics").detach()[decided]
        sampler = table.column("sampler_logprobs", "metrics")[decided]
        ratio = functional.log_ratio(trainer, sampler).exp()
        return {
            "sampler/kl": float(functional.k3(sampler, trainer).mean()) if len(ratio) else 0.0,
            "sampler/ratio_max": float(ratio.max()) if len(ratio) else 1.0,
        }


def _detached(output: LossOutput) -> LossOutput:
    return LossOutput(output.loss.detach(), output.weights, output.metrics, output.extremes)
