"""Critic: the value in training, which scores the tokens of a step and learns their returns.

`Learner` calls it: `score` before the advantages of a step, `update` before each update of the
policy.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, reported
from rlobj.base.interleaved import Interleaved
from rlobj.models.hollow import reading
from rlobj.models.policy import Policy
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import largest
from rlobj.runs.loss_metrics import average
from rlobj.scoring.value_scorer import ValueScorer
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scoring_pass import scored_columns
from rlobj.settings.training import learning_rate
from rlobj.training.loop.forward import ForwardPasses
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.strategies import adamw
from rlobj.training.rollouts.sharding import MiniBatch

_OWN = ("learning_rate", "schedule", "warmup_steps")
"""Settings that a value has of its own, and `training` too."""
_SUMMED = ("value/loss", "value/clip_fraction")
"""Metrics that add up over micro-batches and ranks."""


class Critic:
    """A value with its optimizer.

    Args:
        learner: trains the policy of a run whose objective reads a value.
        parallel: how the value is spread over processes: as the policy, with a norm of its own.
        policy: the policy, with the model of the value in place of its own.

    Attributes:
        name: of the value.
        settings: `scores.NAME` of the configuration.
    """

    def __init__(self, learner: Any, parallel: Parallel, policy: Policy) -> None:
        config: RunConfig = learner.config
        assert config.critic is not None
        self.name, self.settings = str(config.objective.critic), config.critic
        self.parallel, self.policy, self.clock = parallel, policy, learner.clock
        changes = {name: getattr(self.settings, name) for name in _OWN} | {"warmup_ratio": None}
        self._training = config.training.model_copy(update=changes)
        self._bootstraps = config.bootstraps
        one_update = config.training.updates * len(config.objective.phases) == 1
        self._keeps = one_update and bool(config.objective.values)
        self._beside = bool(scored_columns(config.objective, config.training))
        mistakes = reported(ConfigError, f"scores.{self.name}.model", ConfigError)
        with reading(policy.model), mistakes:
            scorer = ValueScorer(policy.model, config.training.packed, self.settings.range)
        self.forward = ForwardPasses(config, parallel, scorer, learner.autocast, self._keeps)
        self.forward.counts = learner.forward.counts
        self.scorer = parallel.prepare(scorer, adamw(scorer, self._training))
        self._kept: Tensor | None = None

    def score(self, batch: MiniBatch, table: TokenBatch) -> TokenBatch:
        """The table of a step with NAME_value, and NAME_bootstrap if it is read.

        A forward pass that serves the only update as well keeps its graph. If a scoring pass of the
        policy keeps one, too, both are together no larger than that of a full micro-batch.
        """
        cut = [self._bootstraps and response.finish == "length" for response in batch.responses]
        sequences = [
            (prompt, _longer(tokens) if longer else tokens)
            for (prompt, tokens), longer in zip(batch.sequences, cut, strict=True)
        ]
        passes = self.forward.cut(sequences)
        kept = largest(passes.cost, self.parallel.comm) * (2 if self._beside else 1)
        keep = self._keeps and len(passes.parts) == 1 and kept <= self.forward.budget
        with torch.set_grad_enabled(keep), self.clock.inside("forward" if keep else "scoring"):
            values = self.forward.columns(self.scorer, sequences, cut=passes)["values"]
        added = torch.tensor(cut, dtype=torch.bool, device=values.device)
        ends = (table.lengths + added).cumsum(0)[added] - 1
        written = torch.ones_like(values, dtype=torch.bool).index_fill(0, ends, False)
        self._kept = values[written] if keep else None
        values = values.detach()
        columns = {f"{self.name}_value": values[written]}
        if self._bootstraps:
            bootstrap = values.new_zeros(len(cut)).masked_scatter(added, values[ends])
            columns[f"{self.name}_bootstrap"] = bootstrap[:, None]
        return table.with_columns(columns)

    def update(self, phase: Objective, batch: MiniBatch, plan: Plan, step: int) -> dict[str, float]:
        """The updates of the value on a mini-batch, and their metrics.

        Nothing changes on any rank by one in which no token counts, or whose loss or gradient is
        not finite, so that `value/grad_norm` is NaN: `value/skipped_updates` counts both.
        """
        if not phase.values:
            return {}
        rate = learning_rate(self._training, step)
        self.parallel.set_learning_rate(rate)
        updates = [self._update(phase, batch, plan) for _ in range(self.settings.updates)]
        alone = self.settings.value_warmup
        warmup = {"value/warmup": float(step < alone)} if alone else {}
        return {**average(updates), "value/learning_rate": rate, **warmup}

    def _update(self, phase: Objective, batch: MiniBatch, plan: Plan) -> dict[str, float]:
        sums = torch.zeros(3, dtype=torch.float64)
        with self.clock.inside("forward"):
            for part, columns, last in self._passes(batch):
                table = batch.table.select(part, 0)
                table = table.with_columns({f"{self.name}_new_value": columns["values"]})
                output = phase.value_loss(table, plan.part(batch.table.rows(part)), check=False)
                with self.clock.inside("backward"):
                    self.parallel.backward(output.loss, last=last)
                numbers = [output.metrics[name] for name in _SUMMED]
                numbers.append(output.weights.count_nonzero())
                sums += torch.stack([number.double().cpu() for number in numbers])
        loss, clipped, tokens = self.parallel.comm.sum(sums).tolist()
        with self.clock.inside("optimizer"):
            norm = self.parallel.step(apply=math.isfinite(loss) and tokens > 0)
        finite = math.isfinite(loss) and math.isfinite(norm)
        return {
            **dict(zip(_SUMMED, (loss, clipped), strict=True)),
            "value/grad_norm": norm if finite else math.nan,
            "value/skipped_updates": float(not finite or not tokens),
        }

    def _passes(self, batch: MiniBatch) -> Iterator[tuple[list[int], dict[str, Tensor], bool]]:
        """The values of the mini-batch by the present weights, as `ForwardPasses.run` yields."""
        kept, self._kept = self._kept, None
        if kept is not None:
            return iter([([*range(len(batch.responses))], {"values": kept}, True)])
        return self.forward.run(self.scorer, batch.sequences)


def _longer(tokens: Sequence[int]) -> Any:
    """A response with one more token: the value before it is that after the response."""
    if isinstance(tokens, Interleaved):
        return Interleaved([*tokens.tokens, 0], tokens.gaps)
    return [*tokens, 0]
