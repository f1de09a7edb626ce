"""Learner: the policy in training. Its method `train_on` is the walk from a rollout to updates.

    train_on   shard -> score -> advantages and controllers -> one update per phase and mini-batch
               in each pass
    _update    plan -> updates of the value -> loss and backward per micro-batch -> optimizer step

`forward.py` makes the forward passes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from rlobj.objectives.objective import Objective
from rlobj.objectives.penalties import ProxyKL
from rlobj.objectives.plan import Plan
from rlobj.objectives.statistics import exact_mean
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import any_rank
from rlobj.runs.loss_metrics import (
    MEASURED,
    PREDICTED,
    MicroBatchResult,
    average,
    combine,
    sampler_gap,
)
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.token_metrics import token_metrics
from rlobj.samplers import Response
from rlobj.samplers.gap import check_gap
from rlobj.scoring import PolicyScorer
from rlobj.scoring.cutting import Cut
from rlobj.scoring.policy_scorer import depends_on_sequence_length
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scoring_pass import CURRENT, scored_columns
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.critic import Critic
from rlobj.training.loop.forward import ForwardPasses, TeachersOf
from rlobj.training.loop.scores import Score, Scores
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.strategies import adamw
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import MiniBatch, Sequences, StepBatch, shard

Metrics = Mapping[str, float]
OnUpdate = Callable[[int, MiniBatch, ObservedUpdate | None, Metrics], None]

_FEW = 20
"""Known tokens of the present weights below which a step's samples are not checked."""
_ALL = {"entropy": True, "collision": True, "sensitivity": True}

SKIPPED: Metrics = {"train/grad_norm": math.nan, "train/skipped_updates": 1.0}
"""The metrics of an update that changed nothing because something in it was not finite."""


@dataclass(frozen=True)
class GradientRows:
    """The rows of a mini-batch that an update trains on, and the responses they belong to.

    Attributes:
        table: the mini-batch.
        rows: the rows with gradient, bool [N].
        current: the policy's columns of the table are those of its present weights.
        cut: a response may be cut after its last row with gradient: no token reads a later one.
    """

    table: TokenBatch
    rows: Tensor
    current: bool
    cut: bool

    def trained(self) -> Tensor:
        """The responses with such rows, bool [B]; all responses if all rows have a gradient."""
        return self.table.any_by_response(self.rows) | bool(self.rows.all())

    def inputs(
        self, sequences: Sequences
    ) -> tuple[list[int], list[tuple[Sequence[int], Sequence[int]]], list[NDArray[numpy.bool_]]]:
        """What goes through the model: the trained responses, cut after their last such rows.

        Args:
            sequences: of all responses of the mini-batch.

        Returns:
            Their numbers, their token ids, and which of their tokens are rows with gradient.
        """
        trained, spans = self.trained().nonzero()[:, 0].tolist(), self.table.lengths
        if self.cut:
            ends = (self.table.positions + 1) * self.rows
            spans = torch.zeros_like(spans).scatter_reduce(0, self.table.responses, ends, "amax")
        rows, starts, spans = self.rows.cpu().numpy(), self.table.starts.tolist(), spans.tolist()
        inputs = [(sequences[i][0], sequences[i][1][: spans[i]]) for i in trained]
        return trained, inputs, [rows[starts[i] : starts[i] + spans[i]] for i in trained]

    def places(self, responses: Sequence[int]) -> Tensor:
        """The rows with gradient of some responses, int [M]."""
        rows = self.table.rows(responses)
        return rows[self.rows[rows]]

    def part(self, responses: Sequence[int]) -> Self:
        """The rows of some responses."""
        rows = self.rows[self.table.rows(responses)]
        return replace(self, table=self.table.select(responses, 0), rows=rows)

    def filled(self, scores: dict[str, Tensor]) -> TokenBatch:
        """The table with the scores of the rows with gradient.

        Current values stay as they are, and only get the gradient of the scores. The rules have
        read these values, and scores from another micro-batch may be rounded differently.
        """
        places = self.rows.nonzero()[:, 0]
        columns: dict[str, Any] = {}
        for name, values in scores.items():
            if len(places) == len(self.rows) and not self.current:
                columns[name] = values
                continue
            column = self.table.column(name, "the update").detach()
            if self.current:
                values = column[places] + (values - values.detach())
            columns[name] = column.index_copy(0, places, values)
        return self.table.with_columns(columns)


class Learner:
    """The policy, its optimizer, and the state of the objective.

    Args:
        config: the run.
        objective: resolved; its phases are run one after another.
        parallel: how the policy is spread over processes.
        scorer: the policy as a `PolicyScorer`, before `Parallel.prepare`.
        scores: the scores that the objective reads, by name.
        autocast: arithmetic of the forward passes; None = the weights' own.
        clock: measures where the time goes; None = a new one.

    Attributes:
        steps: steps done.
        state: the objective's controllers, and "update", the number of updates done.
        forward: makes the forward passes, and counts their tokens.
        scores: gives tables the columns of scores.
        critic: gives them those of the value, and trains it; None = the objective reads none.
    """

    critic: Critic | None = None

    def __init__(
        self,
        config: RunConfig,
        objective: Objective,
        parallel: Parallel,
        scorer: PolicyScorer,
        scores: Mapping[str, Score],
        autocast: torch.dtype | None,
        clock: Clock | None = None,
    ) -> None:
        training = config.training
        self.config, self.objective, self.parallel = config, objective, parallel
        self.comm, self.model, self.autocast = parallel.comm, scorer.model, autocast
        self.clock = clock or Clock(device=parallel.device)
        self.steps = 0
        self.state: dict[str, Any] = {**objective.init(), "update": 0}
        self._can_cut = not depends_on_sequence_length(self.model.config)
        self._proxy = next((p for p in objective.penalties if isinstance(p, ProxyKL)), ProxyKL())
        needs, value = objective.needs, objective.critic
        self._of_value = (f"{value}_value", f"{value}_bootstrap")
        self._one_update = training.updates * len(objective.phases) == 1
        self._scored = scored_columns(objective, training)
        self._renews = self._proxy.policy == "current" and "proxy_logprobs" in self._scored
        moved = self._renews or not needs.plan.isdisjoint({*CURRENT, *objective.divergences})
        self._rescores = moved and training.selection == "current"
        join = self._one_update and bool(self._scored)
        self.forward = ForwardPasses(config, parallel, scorer, autocast, join)
        self.scorer = parallel.prepare(scorer, adamw(scorer, training))
        prepared = scorer, self.scorer
        self.scores = Scores(scores, objective, parallel, prepared, self.forward)

    def train_on(self, rollout: Rollout, on_update: OnUpdate = lambda *_: None) -> dict[str, float]:
        """All updates on one rollout; called by all ranks together.

        Args:
            rollout: this rank's responses.
            on_update: is called after each update with its number in the step (from 0), its
                mini-batch as the rules read it, what the update observed (None if something in the
                mini-batch was not finite), and its metrics.

        Returns:
            The metrics of the updates, averaged.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        whole = self.shard(rollout)
        table, balance = self.score(whole), {"tokens/rank_balance": whole.imbalance}
        if not self._finite(table):
            on_update(0, MiniBatch(table, whole.responses), None, SKIPPED)
            return {**SKIPPED, **balance}
        with self.clock.inside("planning"):
            [table] = self.objective.with_advantages([table], self.comm)
            self.state = self.objective.observe([table], self.state, self.comm)
        gap: Metrics = {}
        if self._scored:  # else the first update compares the log-probs of its forward passes
            gap = self._gap(table.logprobs, table.sampler_logprobs, self._fresh(whole.responses))
        updates: list[Metrics] = []
        entropy, logprobs = table.entropy, table.logprobs.detach()
        for phase in self.objective.phases * self.config.training.passes:
            for batch in whole.mini_batches(table):
                batch = self._refreshed(batch, first=not updates)
                observed, metrics = self._update(phase, batch)
                if batch.first and observed is not None and not self._scored:
                    unscored = (0, len(table) - len(batch.table))  # tokens of later mini-batches
                    entropy, logprobs = (
                        pad(column, unscored, value=math.nan)
                        for column in (observed.entropy, observed.logprobs)
                    )
                on_update(len(updates), batch, observed, metrics)
                updates.append(metrics)
        metrics = {**average(updates), **gap, "train/updates": float(len(updates)), **balance}
        predicted = metrics.pop(PREDICTED, 0.0)
        change = self.entropy_change(table.replace(entropy=entropy), predicted)
        return {**metrics, **change, **self.scores.metrics(table, logprobs, whole.responses)}

    def _update(self, phase: Objective, batch: MiniBatch) -> tuple[ObservedUpdate | None, Metrics]:
        """One optimizer update on one mini-batch; what it observed, and its metrics.

        The policy changes on no rank if nothing counts, or if the loss or the gradient is not
        finite: then `train/skipped_updates` is 1. The value has its own updates.
        """
        if not self._finite(batch.table):
            return None, SKIPPED
        plan = self.plan(phase, batch)
        # The value comes first: what its forward pass has kept is freed before the policy's.
        of_value = self.critic.update(phase, batch, plan, self.steps) if self.critic else {}
        measured = self._measure(phase.of_policy, batch, plan)
        gap: Metrics = {}
        if batch.first and not self._scored:  # the samples' tokens have gone through the model
            logprobs = torch.cat([part.scores["logprobs"] for part in measured])
            if not any_rank(not bool(logprobs.isfinite().all()), self.comm):
                sampler = torch.cat([part.sampler_logprobs for part in measured])
                fresh = self._fresh(batch.responses)[torch.cat([part.rows for part in measured])]
                gap = self._gap(logprobs, sampler, fresh)
        with self.clock.inside("forward"), torch.no_grad():
            metrics = combine(measured, self.objective, plan, batch.current, self.comm)
        finite = math.isfinite(metrics["loss/total"])
        with self.clock.inside("optimizer"):
            norm = self.parallel.step(apply=finite and not plan.empty) if self.trains else 0.0
        finite = finite and math.isfinite(norm)
        observed = self._observed(phase, batch, plan, measured)
        more = token_metrics(observed, self.comm)
        if not (finite and self.trains) or plan.empty:
            more.pop(PREDICTED, None)
        done = {
            "train/grad_norm": norm if finite else math.nan,
            "train/skipped_updates": float(not finite or (plan.empty and self.trains)),
        }
        return observed, {**more, **gap, **plan.metrics, **metrics, **done, **of_value}

    @property
    def trains(self) -> bool:
        """Whether a step updates the policy: not those in which the value is trained alone."""
        return self.critic is None or self.steps >= self.critic.settings.value_warmup

    def _measure(self, phase: Objective, batch: MiniBatch, plan: Plan) -> list[MicroBatchResult]:
        """The loss of the policy in each micro-batch; its gradient, if the policy is trained."""
        measured: list[MicroBatchResult] = []
        with torch.set_grad_enabled(self.trains):
            for table, rows, last in self._micro_batches(phase, batch, plan):
                output = phase.loss(table, plan.part(rows), check=False)  # else no step is made
                if last is not None and self.trains:
                    with self.clock.inside("backward"):
                        self.parallel.backward(output.loss, last=last)
                measured.append(MicroBatchResult.of(table, output, rows))
        return measured

    def shard(self, rollout: Rollout) -> StepBatch:
        """This rank's part of the rollout, in mini-batches of whole groups."""
        self.clock.start("scoring")
        with self.clock.inside("other"):
            return shard(rollout, self.config, self.comm, self.parallel.device, self.steps)

    def score(self, whole: StepBatch) -> TokenBatch:
        """The table of a step with the columns that the objective reads from the policy.

        If no stage of the objective reads such a column, no forward pass is made. A pass that
        serves the update as well keeps its graph. Old log-probs that are the sampler's stay.
        """
        table = self.scores.score(whole, whole.table, self.steps)
        if self.critic is not None:
            table = self.critic.score(whole, table)
        if not self._scored:
            return table
        cut = self.forward.cut(whole.sequences)
        keep_graph = self._one_update and len(cut.parts) == 1
        with self.clock.inside("forward") if keep_graph else torch.no_grad():
            scores = self._columns(whole, cut, proxy="proxy_logprobs" in self._scored)
        old = {f"old_{name}": scores[name].detach() for name in CURRENT}
        if table.old_logprobs is not None:
            old["old_logprobs"] = table.old_logprobs  # the sampler's
        elif keep_graph:
            old = {}  # equal to the current ones
        return table.with_columns({**scores, **old})

    def _columns(self, batch: MiniBatch, cut: Cut, *, proxy: bool) -> dict[str, Tensor]:
        """The policy's columns; a proxy may have its own temperature."""
        of = self._proxy.scoring if proxy else {}
        columns = partial(self.forward.columns, self.scorer, batch.sequences, cut=cut)
        teachers = self._teachers(batch, batch.table.rows)
        if "temperature" not in of:
            return columns(teachers=teachers, **_ALL, **of)
        with torch.no_grad():
            proxy_logprobs = columns(**of)["proxy_logprobs"]
        return columns(teachers=teachers, **_ALL) | {"proxy_logprobs": proxy_logprobs}

    def _teachers(self, batch: MiniBatch, rows: Callable[[list[int]], Tensor]) -> TeachersOf | None:
        """What gives each forward pass over `rows` of a mini-batch its teachers; None = none is
        needed."""
        if not self.objective.divergences:
            return None
        return lambda part: self.scores.teachers(batch.first_row + rows(part))

    def _finite(self, table: TokenBatch) -> bool:
        """Whether the columns of the policy and of models are finite on all ranks."""
        columns = [table.logprobs, table.entropy, table.collision, table.proxy_logprobs]
        columns += [table.columns.get(name) for name in self._of_value]
        bad = any(c is not None and not bool(torch.isfinite(c.detach()).all()) for c in columns)
        return not any_rank(bad or not self.scores.finite(table), self.comm)

    def _refreshed(self, batch: MiniBatch, first: bool) -> MiniBatch:
        """The mini-batch with the policy's columns as the rules read them in this update.

        After the first update of a step the policy has moved. If the rules read the current policy,
        its columns are computed again; else they keep the values of the scoring pass.
        """
        self.clock.start("updating")
        if first or not self._rescores:
            return replace(batch, first=first, current=first and bool(self._scored))
        with self.clock.inside("scoring"), torch.no_grad():
            cut = self.forward.cut(batch.sequences)
            scores = self._columns(batch, cut, proxy=self._renews)
        return replace(batch, table=batch.table.with_columns(scores), current=True)

    # An update.

    def plan(self, phase: Objective, batch: MiniBatch) -> Plan:
        """`Objective.plan` for the whole update, over all ranks."""
        with self.clock.inside("planning"):
            plan = phase.plan([batch.table], self.state, self.comm, clauses=True)
        self.state["update"] += 1
        return plan

    def _micro_batches(
        self, phase: Objective, batch: MiniBatch, plan: Plan
    ) -> Iterator[tuple[TokenBatch, Tensor, bool | None]]:
        """The mini-batch in parts that fit in memory, each with its forward pass.

        Tokens without gradient are left out of the forward passes: the plan has counted them. What
        the caller does with a micro-batch counts as time of the forward pass.

        Yields:
            The tokens of some responses; their rows in the mini-batch, int [M]; and whether no
            other part with gradient follows, None for responses whose loss is only measured.
        """
        table, counts = batch.table, self.forward.counts
        if table.logprobs.requires_grad:  # the forward pass of `score` serves the update as well
            counts.add_update(batch.sequences, batch.sequences, len(table))
            with self.clock.inside("forward"):
                yield table, torch.arange(len(table), device=table.logprobs.device), True
            return
        with self.clock.inside("planning"):
            rows = GradientRows(table, self._rows(phase, batch, plan), batch.current, self._can_cut)
        trained, inputs, masks = rows.inputs(batch.sequences)
        counts.add_update(batch.sequences, inputs, int(rows.rows.sum()))
        columns: dict[str, Any] = {"entropy": True} if batch.current else _ALL  # others are known
        teachers = self._teachers(batch, lambda part: rows.places([trained[i] for i in part]))
        passes = self.forward.run(self.scorer, inputs, masks, teachers=teachers, **columns)
        with self.clock.inside("forward"):
            for part, scores, last in passes:
                responses = [trained[i] for i in part]
                few = rows.part(responses)
                yield few.filled(scores), table.rows(responses), last
            skipped = (~rows.trained()).nonzero()[:, 0].tolist()
            if batch.current and skipped:  # a loss without gradient may still have a value
                yield table.select(skipped, 0), table.rows(skipped), None

    def _rows(self, phase: Objective, batch: MiniBatch, plan: Plan) -> Tensor:
        """The tokens that go through the model, bool [N].

        If the policy's columns are current, these are the tokens with gradient; else all tokens of
        responses that may have one. If nothing was scored and no response of a step's first update
        has a gradient, all its tokens go through: fresh samples are always scored.
        """
        table = batch.table
        every = torch.ones_like(table.logprobs, dtype=torch.bool)
        if not self.config.training.skip_inactive:
            return every
        if batch.current:
            return phase.tokens_with_gradient(table, plan, 0)
        responses = phase.responses_with_gradient(table, plan, 0)
        unscored = batch.first and not self._scored
        if unscored and not any_rank(bool(responses.any()), self.comm):
            return every
        return table.spread(responses)

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

    def _observed(
        self, phase: Objective, batch: MiniBatch, plan: Plan, measured: Sequence[MicroBatchResult]
    ) -> ObservedUpdate:
        """What an update read and decided: a view of tensors that it has made anyway.

        Args:
            phase: of the objective.
            batch: the mini-batch as the rules read it.
            plan: of the update.
            measured: of the update's micro-batches on this rank.
        """
        before = {**self.state, "update": self.state["update"] - 1}
        if batch.current:
            columns: dict[str, Any] = {n: getattr(batch.table, n).detach() for n in POLICY}
        else:
            nowhere = torch.full_like(batch.table.logprobs, torch.nan)
            rows = torch.cat([part.rows for part in measured])
            columns = {
                name: nowhere.index_copy(
                    0, rows, torch.cat([part.scores[name] for part in measured])
                )
                for name in POLICY
            }
        columns["began"] = [response.began for response in batch.responses]
        return ObservedUpdate(phase, before, batch.table, plan, batch.sequences, **columns)

    # The sampler's log-probs beside the policy's.

    def compare_samples(self, rollout: Rollout) -> dict[str, float]:
        """The gap between sampler and policy on some samples of a rollout without any signal.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        self.clock.start("scoring")
        samples = rollout.dead[:32]
        sequences = [(response.prompt, response.interleaved) for response in samples]
        with torch.no_grad():
            columns = self.forward.columns(self.scorer, sequences)
        reported = torch.tensor([value for r in samples for value in r.logprobs])
        logprobs = columns["logprobs"]
        return self._gap(logprobs, reported.to(logprobs), self._fresh(samples))

    def _fresh(self, responses: Sequence[Response]) -> Tensor:
        """The tokens of these responses that must be the present weights' own, bool [N].

        Without rollouts ahead, these are all. Without `sampling.recompute_cache`, log-probs after a
        token of older weights are not those of the newer ones.
        """
        settings = self.config.sampling
        every = settings.schedule == "steps" and not settings.async_depth
        mixed = settings.recompute_cache
        runs = [
            (every or (version == self.steps and (mixed or len(response.versions) == 1)), size)
            for response in responses
            for version, size in response.versions
        ]
        fresh, sizes = torch.tensor(runs, dtype=torch.int64).reshape(-1, 2).unbind(1)
        return fresh.repeat_interleave(sizes).bool().to(self.parallel.device)

    def _gap(self, logprobs: Any, sampler: Any, fresh: Tensor) -> dict[str, float]:
        """The numbers of `sampler_gap`; those of fresh tokens are checked, if these are not few.

        Args:
            logprobs: of the samples' tokens by the policy [N].
            sampler: log-probs by the sampler [N].
            fresh: the tokens that the present weights drew, bool [N].

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        gap = checked = sampler_gap(logprobs, sampler, self.comm)
        if any_rank(not bool(fresh.all()), self.comm):
            tokens = self.comm.sum((fresh & ~sampler.isnan()).sum().cpu())
            if tokens < _FEW:
                return gap
            checked = sampler_gap(logprobs[fresh], sampler[fresh], self.comm)
        first, measured = self.state.get("sampler_gap"), checked["sampler/logprob_gap"]
        check_gap(measured, self.config.sampling.max_logprob_gap, self.autocast, first)
        self.state["sampler_gap"] = first or measured
        return gap
