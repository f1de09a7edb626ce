"""Learner: scores rollouts and makes the optimizer updates of an objective."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlobj.config.run_config import RunConfig
from rlobj.models import lora
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import ProxyKL
from rlobj.objectives.plan import LossOutput, Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.scoring import PolicyScorer
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.cutting import cut
from rlobj.training.loop.gradient_rows import GradientRows, depends_on_sequence_length
from rlobj.training.loop.metrics import Sequences, Tally, token_count
from rlobj.training.loop.schedule import learning_rate
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.agreement import any_rank, largest
from rlobj.training.rollouts.synchronizer import check_gap, sampler_gap

__all__ = ["SKIPPED", "Learner"]

OnPlan = Callable[[TokenBatch, Plan], None]

_SCORED = {"logprobs", "old_logprobs", "entropy", "old_entropy", "collision", "proxy_logprobs"}
_CURRENT = {"logprobs", "entropy", "collision"}
_MEANS = ("policy/entropy", "policy/kl_old", "policy/ratio")

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
        clock: where the time goes; None = a new one.
    """

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        parallel: Parallel,
        scorer: PolicyScorer,
        reference: PolicyScorer | None,
        autocast: torch.dtype | None,
        clock: Clock | None = None,
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
        self._collate, self._packed = scorer.collate, scorer.packed
        self._cut = not depends_on_sequence_length(self.model.config)
        self.scorer, _ = parallel.prepare(scorer, optimizer)
        self.reference = reference
        self.comm = parallel.comm
        self.device = parallel.device
        self.autocast = autocast
        self.clock = clock or Clock(device=parallel.device)
        self.fresh = not config.sampling.async_depth  # samples come from the weights that score
        self.tally = Tally()
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
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.clock.inside("forward") if shared else torch.no_grad())
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
        return len(self._pack(sequences)) == 1

    def _pack(self, sequences: Sequences) -> list[list[int]]:
        """Micro-batches, as many as the rank with the most has: a forward may be an exchange.

        At least one, perhaps of nothing.
        """
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        budget = self.config.training.micro_batch_tokens
        # Rules and loss would share its forward: 3 parts of the work (1 there, 2 back) and not 4.
        single = 1 / 3 if self._single and self._wanted else 0.0
        parts = cut(lengths, budget, self._packed, single=single)
        most = max(int(largest(len(parts), self.comm)), 1)
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

    def _score_part(
        self, scorer: Any, sequences: Sequences, rows: Tensor | None = None, **settings: Any
    ) -> dict[str, Tensor]:
        """Score the response tokens of a micro-batch, or those of `rows` only."""
        temperature = self.config.sampling.temperature
        input_ids, attention_mask, response_mask, *rest = self._collate(sequences, self.device)
        assert input_ids is not None
        assert response_mask is not None
        self.tally.real += token_count(sequences)
        self.tally.padded += input_ids.numel()
        if rows is not None:
            response_mask = response_mask.masked_scatter(response_mask, rows)
        inputs = (input_ids, attention_mask, response_mask, *rest)
        enabled = self.autocast is not None
        with torch.autocast(self.device.type, self.autocast, enabled=enabled):
            scores = scorer(*inputs, temperature=temperature, **settings)
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
        on_plan: OnPlan | None = None,
    ) -> dict[str, float]:
        """One optimizer update of one phase on one mini-batch; its metrics.

        Where log-probs, the loss or the gradient are not finite on any rank, nothing changes on
        any: `train/skipped_updates` is 1 and `train/grad_norm` NaN.

        Args:
            objective: the phase.
            table: the mini-batch, with advantages and the scoring pass's columns.
            sequences: its token ids.
            stale: the weights have moved since the scoring pass.
            on_plan: shown the mini-batch as the rules read it, and the plan.

        Raises:
            SamplerGap: fresh samples that do not come from the policy.
        """
        table, known = table.replace(index=None), bool(self._wanted) and not stale
        if stale and self._reread:
            table, known = self._read_again(table, sequences), True
            if not self.finite(table):
                return SKIPPED
        with self.clock.inside("planning"):
            plan = objective.plan([table], self.state, self.comm)
            rows = self._gradient_rows(objective, table, plan, known)
        if on_plan is not None:
            on_plan(table, plan)
        self.state["update"] += 1
        outputs, gap = self._passes(objective, sequences, plan, rows)
        with self.clock.inside("forward"), torch.no_grad():
            left = rows.left()
            if known:  # a loss without a gradient may still have a value
                outputs.append(objective.loss(table.select(left, 0), plan.part(table.rows(left))))
            seen = None if known else int(table.decided[table.rows(rows.trained())].sum())
            metrics = {**plan.metrics, **self._combine(outputs, plan, seen), **gap}
        return {**metrics, **self._step(plan, metrics["loss/total"])}

    def _read_again(self, table: TokenBatch, sequences: Sequences) -> TokenBatch:
        """The table with the columns of the policy as it is now."""
        with self.clock.inside("scoring"), torch.no_grad():
            settings = {"entropy": True, "collision": "collision" in self._wanted}
            return table.replace(**self._forward(self.scorer, sequences, **settings))

    def _gradient_rows(
        self, objective: Objective, table: TokenBatch, plan: Plan, known: bool
    ) -> GradientRows:
        """The rows that go through the model.

        If the log-probs are known, these are the tokens with gradient; else all tokens of the
        responses that may have one. All rows go through if rules and loss share one forward, and
        if nothing was scored and no response has a gradient: fresh samples are always scored once.
        """
        every = torch.ones_like(table.logprobs, dtype=torch.bool)
        everything = GradientRows(table, every, known, self._cut)
        if table.logprobs.requires_grad or not self.config.training.skip_inactive:
            return everything
        if known:
            return replace(everything, rows=objective.tokens_with_gradient(table, plan))
        found = objective.responses_with_gradient(table, plan)
        if not self._wanted and not any_rank(bool(found.any()), self.comm):
            return everything
        return replace(everything, rows=table.spread(found))

    def _passes(
        self, objective: Objective, sequences: Sequences, plan: Plan, rows: GradientRows
    ) -> tuple[list[LossOutput], dict[str, float]]:
        """Forward and backward of the rows with gradient, by micro-batches.

        Returns:
            what the loss measured, and, where no scoring pass came before, the sampler's gap.
        """
        outputs, logprobs = [], []
        trained, spans, table = rows.trained(), rows.spans(), rows.table
        batch = [(sequences[i][0], sequences[i][1][: spans[i]]) for i in trained]
        self.tally.update(sequences, batch, rows.rows)
        parts = self._pack(batch)
        for index, places in enumerate(parts):
            part = [trained[place] for place in places]
            with self.clock.inside("forward"):
                few = rows.part(part)
                micro, share = few.table, plan.part(table.rows(part))
                if not micro.logprobs.requires_grad:
                    inputs = [batch[place] for place in places]
                    scores = self._score_part(self.scorer, inputs, few.mask(), entropy=True)
                    micro = few.filled(scores)
                output = objective.loss(micro, share)
            with self.clock.inside("backward"):
                self.parallel.backward(output.loss, last=index + 1 == len(parts))
            outputs.append(_detached(output))
            logprobs.append((micro.logprobs.detach(), micro.sampler_logprobs))
        if self._wanted:
            return outputs, {}
        trainer, sampler = map(torch.cat, zip(*logprobs, strict=True))
        if any_rank(not bool(torch.isfinite(trainer).all()), self.comm):
            return outputs, {}
        return outputs, self.gap(trainer, sampler, self.fresh)  # before the policy moves

    def _step(self, plan: Plan, loss: float) -> dict[str, float]:
        """Clip and step, unless nothing counted or something is not finite."""
        with self.clock.inside("optimizer"):
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

    def _combine(
        self, outputs: Sequence[LossOutput], plan: Plan, seen: int | None
    ) -> dict[str, float]:
        """Contributions summed and extremes maximised, over micro-batches and ranks.

        Args:
            outputs: of micro-batches.
            plan: the update's.
            seen: tokens of this rank that they are about, of decided responses; policy/... are then
                means over these, and absent where there are none. None = all of the update's.
        """
        names = self._names()
        sums = torch.zeros(len(names) + 1, dtype=torch.float64)
        for output in outputs:
            values = {**output.metrics, "loss/total": output.loss}
            sums[:-1] += torch.stack(
                [values.get(name, output.loss * 0).double().cpu() for name in names]
            )
        sums[-1] = seen or 0
        *values, total = self.comm.sum(sums).tolist()
        combined = dict(zip(names, values, strict=True))
        ratios = [float(output.extremes["policy/ratio_max"]) for output in outputs]
        combined["policy/ratio_max"] = largest(max(ratios, default=0.0), self.comm)
        if seen is not None and not total:
            return {name: combined[name] for name in names if name not in _MEANS}
        if seen is not None:
            for name in _MEANS:
                combined[name] *= plan.tokens / total
        return combined

    def _names(self) -> list[str]:
        """Metric names, known also to a rank without micro-batches."""
        losses = ["loss/policy", *(f"loss/{penalty.name}" for penalty in self.objective.penalties)]
        return [*dict.fromkeys(losses), "objective/clip_fraction", *_MEANS, "loss/total"]

    def sampler_gap(self, table: TokenBatch) -> dict[str, float]:
        """The sampler's log-probs beside the trainer's; {} where `update` is the first to know."""
        if not self._wanted:
            return {}
        sampler = table.column("sampler_logprobs", "the sampler's gap")
        return self.gap(table.logprobs, sampler, self.fresh)

    def gap(self, logprobs: Tensor, sampler: Tensor, fresh: bool) -> dict[str, float]:
        """The gap between trainer and sampler on some samples.

        Args:
            logprobs: by the trainer [N].
            sampler: by the sampler [N].
            fresh: they were drawn from the weights that the trainer scores with, as those of a
                rollout are where `self.fresh`.

        Raises:
            SamplerGap: fresh samples that do not come from the policy.
        """
        gap = sampler_gap(logprobs, sampler, self.comm)
        if fresh:
            check_gap(gap, self.config.sampling.max_logprob_gap, self.autocast)
        return gap


def _detached(output: LossOutput) -> LossOutput:
    return LossOutput(output.loss.detach(), output.weights, output.metrics, output.extremes)
