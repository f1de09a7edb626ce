"""The folder of a run in another trainer, which rlobj reads as that of a run of its own."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, warn
from rlobj.insight.diagnosis import Watch
from rlobj.insight.diagnosis.diagnosing import PAGE
from rlobj.objectives import statistics
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.rewards import differ
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import ProcessGroup, together
from rlobj.runs.layout import is_run
from rlobj.runs.loss_metrics import average, sampler_gap
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.recorder import Recorder
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.token_metrics import token_metrics
from rlobj.settings.run_config import RunConfig


class RunRecord:
    """The settings, metrics, starts, records/ and tables/ of a run in another trainer.

    A step is one rollout with all its updates. All ranks call every method but `close`, in the same
    order. The first rank locks the folder until `close`.

    Args:
        folder: of the run; it is created.
        config: describes the run; `output` says what is recorded, and how much of it.
        tokenizer: of the policy.
        comm: the process group.
        state: what `state` returned when the checkpoint was written from which the run continues;
            later steps in the folder are deleted. None = a new run.

    Attributes:
        folder: of the run.
        steps: steps done.
        updates: of the step in progress, with their metrics.

    Raises:
        ConfigError: the folder already has a run and `state` is None, another process trains in
            it, or it cannot be written.
    """

    def __init__(
        self,
        folder: Path | str,
        config: RunConfig,
        tokenizer: Any,
        comm: ProcessGroup,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._run, self._comm = RunFolder(folder, foreign=True), comm
        self._watch = Watch(config, foreign=True)
        self.folder = self._run.path
        self._recorder = Recorder(self.folder, config, tokenizer, comm)
        self.updates: list[tuple[ObservedUpdate, Mapping[str, float]]] = []
        self._stack = ExitStack()
        self.steps = 0
        if state is not None:
            self.steps = state["step"]
        with together(comm, "preparing the run's folder"):
            if comm.rank == 0:
                self._prepare(config, new=state is None)

    def _prepare(self, config: RunConfig, new: bool) -> None:
        exists = is_run(self.folder)
        if exists and new:
            raise ConfigError(f"{self.folder} already holds the record of a run: choose another")
        if not exists:  # a checkpoint may have been copied without it
            self._run.create(config, ("records", "tables"))
        self._stack.enter_context(self._run.locked())
        if exists:
            self._run.write_config(config)
            self._run.truncate(self.steps)
        self._run.add_session(self.steps, {})
        for line in self._run.lines():
            self._watch.add(line)

    def update(self, observed: ObservedUpdate, metrics: Mapping[str, float]) -> dict[str, float]:
        """Record an update.

        Args:
            observed: what this rank's part of the update read and decided; see `observed_update`.
            metrics: more metrics of the update, equal on all ranks, such as "loss/total".

        Returns:
            The metrics of the update's tokens over all ranks, and those given.
        """
        measured = {**token_metrics(observed, self._comm), **observed.plan.metrics}
        sampler = observed.table.sampler_logprobs
        if sampler is not None and not self.updates:  # the policy has not moved since the rollout
            measured |= sampler_gap(observed.old_logprobs, sampler, self._comm)
        measured |= metrics
        self.updates.append((observed, measured))
        return measured

    def end_step(self, metrics: Mapping[str, float] | None = None) -> dict[str, float]:
        """Write the updates since the last step, and the step's line in metrics.jsonl.

        A finding of the diagnosis that begins with this step is logged as a warning.

        Args:
            metrics: more metrics of the step, equal on all ranks, such as "train/learning_rate".

        Returns:
            The line: the metrics of the rollout, the averages of its updates, and those given.
        """
        updates, self.updates = self.updates, []
        self.steps += 1
        for index, (observed, _) in enumerate(updates):
            self._recorder.update(self.steps, index, observed)
        self._recorder.end_step(self.steps)
        rollout = _rollout_metrics([observed for observed, _ in updates], self._comm)
        line = {"step": self.steps, **rollout, **average([measured for _, measured in updates])}
        line |= metrics or {}
        with together(self._comm, "writing metrics.jsonl"):
            if self._comm.rank == 0:
                for finding in self._watch.add(line):
                    where = f"{PAGE}#{finding.name}"
                    warn(f"step {self.steps}: {finding.evidence} ({where})")
                self._run.append({**line, **self._watch.metrics()})
        return line

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; updates of an unfinished step are not in it."""
        return {"step": self.steps, "folder": self.folder.name}

    def close(self) -> None:
        """Unlock the folder, also after an error."""
        self._stack.close()


def observed_update(
    objective: Objective,
    state: Mapping[str, Any],
    tables: Sequence[TokenBatch],
    plan: Plan,
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    scores: Sequence[Mapping[str, Tensor]],
) -> ObservedUpdate:
    """What an update in another trainer read and decided on this rank.

    Args:
        objective: the phase that was planned.
        state: as `plan` read it.
        tables: the micro-batches that were planned, with ids and rewards.
        plan: of these tables, with `clauses=True`.
        sequences: prompt ids and trained response ids of each response of all tables.
        scores: of each table, the columns `logprobs` and `entropy` of the policy at the start of
            the update, [N]; also `collision` and `entropy_sensitivity` if the trainer knows them.
    """
    table = TokenBatch.concat(tables)
    measured = {name: getattr(table, name) for name in POLICY}
    measured = {name: column.detach() for name, column in measured.items() if column is not None}
    if table.old_logprobs is None:  # the plan read the table's own, and replay must find them
        read = [name for name in measured if f"old_{name}" in objective.needs.plan]
        measured |= {f"old_{name}": measured[name] for name in read}
    nowhere = torch.full_like(measured["logprobs"], torch.nan)
    columns: dict[str, Any] = {
        name: torch.cat([columns[name].detach() for columns in scores]).to(nowhere)
        if scores and name in scores[0]
        else nowhere
        for name in POLICY
    }
    return ObservedUpdate(
        objective, state, table.replace(**measured), plan.joined, sequences, **columns
    )


def _rollout_metrics(updates: Sequence[ObservedUpdate], comm: Comm) -> dict[str, float]:
    """Rewards, groups, lengths and turns of the responses in the updates, each counted once.

    A rollout of several rows is one response.

    If the tables have no rewards, only lengths and counts. `tokens/step` counts a token once for
    each update that trains on it, as `tokens/dropped` and the record do.
    """
    tables = [observed.table for observed in updates]
    ids = torch.cat([table.response_ids for table in tables]).tolist()
    rows = list(dict(zip(ids, range(len(ids)), strict=True)).values())  # one for each response
    rewarded = all(table.rewards is not None for table in tables)
    columns = (
        [table.groups for table in tables],
        [table.lengths for table in tables],
        [table.reward().double() if rewarded else table.lengths * torch.nan for table in tables],
        [table.of_turns.bincount(minlength=len(table.lengths)) for table in tables],
        [table.response_ids if table.rollouts is None else table.rollouts for table in tables],
    )
    groups, lengths, rewards, turns, rollouts = (
        statistics.gather(torch.cat(column).cpu()[rows], comm)[0] for column in columns
    )
    distinct, place = rollouts.unique(return_inverse=True)
    if several := len(distinct) < len(place):
        whole = torch.zeros(len(distinct), dtype=torch.int64)
        lengths, turns = (whole.index_add(0, place, column.long()) for column in (lengths, turns))
        first = whole.index_copy(0, place, torch.arange(len(place)))
        groups, rewards = groups[first], rewards[first]
    every = [rewards[groups == group] for group in groups.unique()]
    silent = sum(len(group) > 1 and not differ(group) for group in every)
    decided = rewards[~rewards.isnan()]
    mean = decided.mean()
    tokens, count = float(lengths.sum()), len(rewards)
    mean_length = tokens / max(count, 1)
    trained = sum(int(u.plan.clauses.in_phase.sum()) for u in updates if u.plan.clauses)
    by_turn = any(table.turn is not None for table in tables)
    counts = {
        **({"turns/mean": float(turns.sum()) / max(count, 1)} if by_turn else {}),
        "response/count": float(count),
        "response/length_mean": mean_length,
        **({"rollout/rows": len(place) / count, "rollout/tokens": mean_length} if several else {}),
        "tokens/sampled": tokens,
        "tokens/step": float(comm.sum(torch.tensor(trained))),
    }
    if not rewarded:
        return counts
    return {
        **counts,
        "reward/mean": float(mean),
        "reward/std": float((decided - mean).square().mean().sqrt()),
        "reward/undecided": float(count - len(decided)),
        "reward/undecided_share": 1 - len(decided) / max(count, 1),
        "reward/groups": float(len(every)),
        "groups/without_signal": float(silent),
        "groups/without_signal_share": silent / max(len(every), 1),
    }
