"""Learner: the policy in training. It makes the passes through the model that a step asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlobj.config.run_config import RunConfig
from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import ProxyKL
from rlobj.objectives.plan import Plan
from rlobj.objectives.statistics import exact_mean
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import any_rank, largest
from rlobj.records.metrics import MEASURED, PREDICTED, Measured, combine
from rlobj.samplers import Sample
from rlobj.scoring import PolicyScorer, micro_batches
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.gradient_rows import GradientRows, depends_on_sequence_length
from rlobj.training.loop.metrics import Tally
from rlobj.training.loop.micro_batch import MicroBatch
from rlobj.training.loop.schedule import learning_rate
from rlobj.training.parallel import Parallel
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sample_checks import SampleChecks
from rlobj.training.rollouts.sharding import Judge, MiniBatch, Sequences, Share, shard

_CURRENT = {"logprobs", "entropy", "collision"}
_SCORED = {*_CURRENT, *(f"old_{name}" for name in _CURRENT), "proxy_logprobs"}
_ALL = {"entropy": True, "collision": True, "sensitivity": True}

SKIPPED: Mapping[str, float] = {"train/grad_norm": math.nan, "train/skipped_updates": 1.0}
"""The metrics of an update that changed nothing because something in it was not finite."""


class Learner:
    """Passes through the policy, and the optimizer. `train_on` calls the methods in their order.

    Args:
        config: the run.
        objective: resolved; its phases are run one after another.
        parallel: how the policy is spread over processes.
        scorer: the policy as a `PolicyScorer`, before `Parallel.prepare`.
        reference: scorer of the reference policy, if a KL term needs one; with LoRA the policy
            without its adapters is the reference.
        autocast: arithmetic of the forward pass; None = the weights' own.
        clock: measures where the time goes; None = a new one.

    Attributes:
        steps: steps done.
        state: the objective's controllers, and "update", the number of updates done.
        judge: finds spurious tokens, for the record; None = the task cannot say.
        tally: tokens that went through the model since the last step.
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
            eps=training.adam_epsilon,
            fused=training.fused or None,
        )
        self.config = config
        self.objective = objective
        self.parallel = parallel
        self.comm = parallel.comm
        self.model = scorer.model
        self.reference = reference
        self.autocast = autocast
        self.clock = clock or Clock(device=parallel.device)
        self.steps = 0
        self.judge: Judge | None = None
        self.state: dict[str, Any] = {**objective.init(), "update": 0}
        self.tally = Tally()
        self._collate, self._packed = scorer.collate, scorer.packed
        self._can_cut = not depends_on_sequence_length(self.model.config)
        self.scorer, _ = parallel.prepare(scorer, optimizer)
        self._proxy = next((p for p in objective.penalties if isinstance(p, ProxyKL)), ProxyKL())
        needs = objective.needs
        self._reads_reference = "ref_logprobs" in needs.ever
        self._one_update = training.updates * len(objective.phases) == 1
        read = needs.observe | needs.plan | (needs.loss & {"proxy_logprobs"})
        if not self._one_update:  # later updates need l0, if only for their metrics
            read |= {"old_logprobs"}
        self._scored = read & _SCORED  # what the scoring pass is made for; empty: there is none
        self._renews = self._proxy.policy == "current" and "proxy_logprobs" in self._scored
        moved = self._renews or bool(needs.plan & _CURRENT)
        self._rescores = moved and training.selection == "current"
        self._samples_are_fresh = not config.sampling.async_depth
        self._samples = SampleChecks(config.sampling, autocast, self.comm)

    # A rollout.

    def set_learning_rate(self) -> float:
        """Set the learning rate of the next step, and return it."""
        rate = learning_rate(self.config.training, self.steps)
        self.parallel.set_learning_rate(rate)
        return rate

    def shard(self, rollout: Rollout) -> Share:
        """This rank's share of the rollout, in mini-batches of whole groups."""
        self.clock.start("scoring")
        with self.clock.inside("other"):
            return shard(rollout, self.config, self.comm, self.parallel.device, self.judge)

    def score(self, share: Share) -> TokenBatch:
        """The share's table with the columns that the objective reads from the policy.

        If no stage of the objective reads such a column, no forward pass is made.
        """
        table, sequences = share.table, share.sequences
        if self._reads_reference:
            table = table.replace(ref_logprobs=self._reference_logprobs(sequences))
        if not self._scored:
            return table
        keep_graph = self._serves_update(sequences)
        with self.clock.inside("forward") if keep_graph else torch.no_grad():
            scores = self._columns(sequences, proxy="proxy_logprobs" in self._scored)
        if keep_graph:
            return table.replace(**scores)
        old = {f"old_{name}": scores[name] for name in _CURRENT}
        return table.replace(**scores, **old)

    def _serves_update(self, sequences: Sequences) -> bool:
        """Whether the scoring pass serves the update as well: a step of one micro-batch.

        Then its log-probs keep their graph, and `micro_batches` makes no second forward pass.
        """
        return self._one_update and len(self._parts(sequences)) == 1

    def finite(self, table: TokenBatch) -> bool:
        """Whether the policy's columns are finite on all ranks."""
        columns = (table.logprobs, table.entropy, table.collision, table.proxy_logprobs)
        bad = any(x is not None and not bool(torch.isfinite(x.detach()).all()) for x in columns)
        return not any_rank(bad, self.comm)

    def observe(self, table: TokenBatch) -> TokenBatch:
        """The table with advantages; the controllers have seen it."""
        with self.clock.inside("planning"):
            [table] = self.objective.with_advantages([table], self.comm)
            self.state = self.objective.observe([table], self.state, self.comm)
        return table

    # An update.

    def refresh(self, batch: MiniBatch, first: bool) -> MiniBatch:
        """The mini-batch with the policy's columns as the rules read them in this update.

        After the first update of a step the policy has moved. If the rules read the current policy,
        its columns are computed again; else they keep the values of the scoring pass.
        """
        self.clock.start("updating")
        if first:
            return replace(batch, current=bool(self._scored))
        if not self._rescores:
            return replace(batch, current=False)
        with self.clock.inside("scoring"), torch.no_grad():
            scores = self._columns(batch.sequences, proxy=self._renews)
        return replace(batch, table=batch.table.replace(**scores), current=True)

    def plan(self, phase: Objective, batch: MiniBatch) -> Plan:
        """`Objective.plan` for the whole update, over all ranks."""
        with self.clock.inside("planning"):
            plan = phase.plan([batch.table], self.state, self.comm, clauses=True)
        self.state["update"] += 1
        return plan

    def micro_batches(self, phase: Objective, batch: MiniBatch, plan: Plan) -> Iterator[MicroBatch]:
        """The mini-batch in parts that fit in memory, each with its forward pass.

        Tokens without gradient are left out of the forward passes: the plan has counted them. What
        the caller does with a micro-batch counts as time of the forward pass.
        """
        table = batch.table
        if table.logprobs.requires_grad:  # the forward pass of `score` serves the update as well
            self.tally.update(batch.sequences, batch.sequences, len(table))
            [part] = self._parts(batch.sequences)
            with self.clock.inside("forward"):
                own = table.rows(part)
                yield MicroBatch(table.select(part, 0), plan.part(own), own, True, last=True)
            return
        with self.clock.inside("planning"):
            rows = GradientRows(table, self._rows(phase, batch, plan), batch.current, self._can_cut)
        trained, inputs = rows.trained(), rows.inputs(batch.sequences)
        self.tally.update(batch.sequences, inputs, int(rows.rows.sum()))
        parts = self._parts(inputs)
        for number, part in enumerate(parts, 1):
            responses = [trained[i] for i in part]
            with self.clock.inside("forward"):
                few, own = rows.part(responses), table.rows(responses)
                scored = [inputs[i] for i in part]
                asked = {"entropy": True} if batch.current else _ALL  # the others are known
                filled = few.filled(self._score(self.scorer, scored, few.mask(), **asked))
                yield MicroBatch(filled, plan.part(own), own, True, last=number == len(parts))
        skipped = rows.skipped()
        if batch.current and skipped:  # a loss without gradient may still have a value
            with self.clock.inside("forward"):
                own = table.rows(skipped)
                yield MicroBatch(table.select(skipped, 0), plan.part(own), own, False, last=False)

    def _rows(self, phase: Objective, batch: MiniBatch, plan: Plan) -> Tensor:
        """The tokens that go through the model, bool [N].

        If the policy's columns are current, these are the tokens with gradient; else all tokens of
        responses that may have one. If nothing was scored and no response has a gradient, all
        tokens go through: fresh samples are always scored once.
        """
        table = batch.table
        every = torch.ones_like(table.logprobs, dtype=torch.bool)
        if not self.config.training.skip_inactive:
            return every
        if batch.current:
            return phase.tokens_with_gradient(table, plan)
        found = phase.responses_with_gradient(table, plan)
        if not self._scored and not any_rank(bool(found.any()), self.comm):
            return every
        return table.spread(found)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add a micro-batch's gradient to the update's."""
        with self.clock.inside("backward"):
            self.parallel.backward(loss, last=last)

    def step(self, batch: MiniBatch, plan: Plan, measured: Sequence[Measured]) -> dict[str, float]:
        """Clip the gradient and make the optimizer's step; the metrics of the update.

        Nothing changes on any rank if nothing counts, or if the loss or the gradient is not finite:
        then `train/skipped_updates` is 1.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        gap = {} if self._scored else self._compare_measured(batch, measured)
        with self.clock.inside("forward"), torch.no_grad():
            metrics = combine(measured, self.objective, plan, batch.current, self.comm)
        loss = metrics["loss/total"]
        with self.clock.inside("optimizer"):
            norm = self.parallel.step(apply=math.isfinite(loss) and not plan.empty)
        finite = math.isfinite(norm) and math.isfinite(loss)
        done = {
            "train/grad_norm": norm if finite else math.nan,
            "train/skipped_updates": float(not finite or plan.empty),
        }
        return {**gap, **plan.metrics, **metrics, **done}

    def entropy_change(self, table: TokenBatch, predicted: float) -> dict[str, float]:
        """What the updates since the last rollout have done to the mean entropy, and should have.

        The means are over different rollouts, each under the policy at its first update. A resumed
        run remembers the last one.

        Args:
            table: the rollout, with the entropies of its scored tokens.
            predicted: by the updates on this rollout; it is returned with the next one.
        """
        assert table.entropy is not None
        entropy = table.entropy.detach()
        mean = exact_mean(entropy, table.decided & ~entropy.isnan(), self.comm)
        if math.isnan(mean):
            return {}
        before, self.state["entropy"] = self.state.get("entropy"), [mean, predicted]
        return {} if before is None else {MEASURED: mean - before[0], PREDICTED: before[1]}

    # The sampler's log-probs beside the policy's.

    def compare(self, table: TokenBatch) -> dict[str, float]:
        """The gap between sampler and policy on a scored rollout; {} if it was not scored.

        Without a scoring pass, `step` compares the log-probs of the update's own forward passes.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        if not self._scored:
            return {}
        return self._compare(vars(table), table.sampler_logprobs)

    def compare_samples(self, samples: Sequence[Sample], fresh: bool = False) -> dict[str, float]:
        """The gap between sampler and policy on some samples of each rank.

        Args:
            samples: of this rank.
            fresh: they were just drawn from the policy; else they are a selection of a rollout.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        with torch.no_grad():
            sequences = [(s.prompt, s.tokens) for s in samples]
            columns = self._forward(self.scorer, sequences, entropy=True, collision=True)
        sampler = torch.tensor([x for s in samples for x in s.logprobs]).to(columns["logprobs"])
        new = fresh or self._samples_are_fresh
        return self._compare(columns, sampler, fresh=new, whole=fresh)

    def _compare_measured(self, batch: MiniBatch, measured: Sequence[Measured]) -> dict[str, float]:
        read = ("logprobs", "entropy", "collision")
        columns = {name: torch.cat([each.scores[name] for each in measured]) for name in read}
        sampler = torch.cat([each.sampler_logprobs for each in measured])
        if any_rank(not bool(torch.isfinite(columns["logprobs"]).all()), self.comm):
            return {}
        skipped = any_rank(len(sampler) < len(batch.table), self.comm)
        return self._compare(columns, sampler, whole=not skipped)

    def _compare(self, columns: Mapping[str, Any], sampler: Any, **how: bool) -> dict[str, float]:
        how = {"fresh": self._samples_are_fresh, "whole": True, **how}
        return self._samples.compare(columns, sampler, self.state, **how)

    # Forward passes.

    def logprobs(self, sequences: Sequences, **settings: Any) -> Tensor:
        """log π of the response tokens under the present weights [N]."""
        with torch.no_grad():
            return self._forward(self.scorer, sequences, **settings)["logprobs"]

    def _columns(self, sequences: Sequences, *, proxy: bool) -> dict[str, Tensor]:
        """The policy's columns; a proxy may have its own temperature."""
        of = self._proxy.scoring if proxy else {}
        if "temperature" not in of:
            return self._forward(self.scorer, sequences, **_ALL, **of)
        with torch.no_grad():
            own = self._forward(self.scorer, sequences, **of)["proxy_logprobs"]
        return {**self._forward(self.scorer, sequences, **_ALL), "proxy_logprobs": own}

    def _reference_logprobs(self, sequences: Sequences) -> Tensor:
        if self.reference is None:
            with self.model.disable_adapter():
                return self.logprobs(sequences)
        with torch.no_grad():
            return self._forward(self.reference, sequences)["logprobs"]

    def _parts(self, sequences: Sequences) -> list[list[int]]:
        """Micro-batches as indices of sequences, equally many on all ranks; some may be empty.

        A forward pass may be an exchange between ranks, so all ranks must make equally many. One
        micro-batch saves the update its own forward pass, if there is a scoring pass: a quarter of
        the work, so that its padding may be a third of the tokens.
        """
        lengths = [len(prompt) + len(response) for prompt, response in sequences]
        budget, padded = (
            self.config.training.micro_batch_tokens,
            len(lengths) * max(lengths, default=0),
        )
        if self._one_update and self._scored and padded <= min(budget, sum(lengths) * 4 / 3):
            parts = [list(range(len(lengths)))]
        else:
            parts = micro_batches(lengths, budget, packed=self._packed)
        most = max(int(largest(len(parts), self.comm)), 1)
        return parts + [[] for _ in range(most - len(parts))]

    def _forward(self, scorer: Any, sequences: Sequences, **settings: Any) -> dict[str, Tensor]:
        """Score all response tokens by micro-batches; columns in the order of the sequences."""
        chunks: dict[str, list[Any]] = {}
        for part in self._parts(sequences):
            scores = self._score(scorer, [sequences[i] for i in part], **settings)
            lengths = [len(sequences[i][1]) for i in part]
            for name, values in scores.items():
                rows = chunks.setdefault(name, [None] * len(sequences) or [values])
                for i, chunk in zip(part, values.split(lengths) if part else (), strict=True):
                    rows[i] = chunk
        return {name: torch.cat(rows) for name, rows in chunks.items()}

    def _score(
        self, scorer: Any, sequences: Sequences, rows: Tensor | None = None, **settings: Any
    ) -> dict[str, Tensor]:
        """Score the response tokens of one micro-batch, or only those of some rows."""
        input_ids, attention_mask, response_mask, *rest = self._collate(
            sequences, self.parallel.device
        )
        assert input_ids is not None
        assert response_mask is not None
        self.tally.forward(sequences, input_ids.numel())
        if rows is not None:
            response_mask = response_mask.masked_scatter(response_mask, rows)
        inputs = (input_ids, attention_mask, response_mask, *rest)
        device, usual = self.parallel.device.type, {"temperature": self.config.sampling.temperature}
        with torch.autocast(device, self.autocast, enabled=self.autocast is not None):
            scores = scorer(*inputs, **(usual | settings))
        return {name: values for name, values in vars(scores).items() if values is not None}
