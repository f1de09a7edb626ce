"""What an ObjectiveTrainer adds to a rollout of TRL, and how it follows its rows.

What an ObjectiveTrainer remembers between the calls of TRL.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from numbers import Real
from operator import eq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import BatchError, ConfigError, RunError
from rlobj.base.files import write_whole
from rlobj.base.interleaved import Interleaved
from rlobj.config.presets import difference
from rlobj.integrations.trl.settings import TABLE, say
from rlobj.objectives.joining import differ, rounding, total_reward
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import agree, any_rank, together
from rlobj.records.metrics import MicroBatchResult

logger = logging.getLogger(__name__)


STATE_FILE = "rlobj.json"
"""The file in TRL's checkpoints with the objective's state."""

Inputs = dict[str, Any]
"""TRL's inputs of one micro-batch."""

Row = tuple[list[int], list[int]]
"""Token ids of a prompt, padded on the left, and of its completion, padded on the right."""


@dataclass
class Window:
    """One update: the micro-batches of a window of gradient accumulation.

    Attributes:
        inputs: TRL's inputs of each micro-batch.
        rollouts: the micro-batches of each rollout that was sampled for this window.
        phase: of the objective.
        first: the number of the first micro-batch in TRL's count.
        scored: log-probs and entropies under the present weights, [B, T], by the id of the inputs.
        plan: of the update; None = not made yet.
        tables: the micro-batches as they were planned.
        metrics: of the update, when it has ended.
        measured: what the losses of the micro-batches so far measured.
        error: the first loss that was not finite.
    """

    inputs: list[Inputs]
    rollouts: list[list[Inputs]]
    phase: Objective
    first: int = 0
    scored: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)
    plan: Plan | None = None
    tables: list[TokenBatch] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    measured: list[MicroBatchResult] = field(default_factory=list)
    error: BatchError | None = None

    @property
    def position(self) -> int:
        """The place of the micro-batch whose loss is due."""
        return len(self.measured)

    @property
    def due(self) -> Inputs | None:
        """The micro-batch whose loss is due; None after the last one."""
        return self.inputs[self.position] if self.position < len(self.inputs) else None

    def samples(self, inputs: Inputs | None) -> bool:
        """Whether these inputs were sampled for this window, from the policy as it is now."""
        return any(inputs is each for rollout in self.rollouts for each in rollout)


@dataclass
class Progress:
    """What an ObjectiveTrainer remembers between the calls of TRL.

    Attributes:
        state: the objective's controllers, and "update", the number of updates done.
        turns: a rollout had a mask of tool output, on any process: responses have turns.
        rows: number of responses that were sampled, over all processes.
        batches: the prompts of the micro-batches of the window in progress.
        window: the window in progress; None = the next call opens one.
        rewards: of the last rollouts, over all processes, [B, K].
        sampled: this process's new responses by `rlobj_ids`: token ids of prompt and completion.
    """

    state: dict[str, Any]
    turns: bool = False
    rows: int = 0
    batches: list[Any] = field(default_factory=list)
    window: Window | None = None
    rewards: Tensor | None = None
    sampled: dict[int, Row] = field(default_factory=dict)

    def write(self, checkpoint: Path, objective: Objective, record: Any) -> None:
        """Write what a resumed run needs, beside the state of its record."""
        saved = {"state": self.state, "rows": self.rows, "objective": _settings(objective)}
        write_whole(checkpoint / STATE_FILE, json.dumps({**saved, "record": record}).encode())

    def read(self, checkpoint: Path, objective: Objective) -> Any:
        """Continue from what `write` has written; returns the state of the record.

        Raises:
            ConfigError: the file is missing or damaged, or the objective has other controllers.
        """
        path = checkpoint / STATE_FILE
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            state, rows = dict(saved["state"]), int(saved["rows"])
            own, record = dict(saved["objective"]), saved["record"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(say("checkpoint", path, error)) from None
        if others := {*objective.init()} ^ (state.keys() - {"update"}):
            raise ConfigError(say("controllers", path, ", ".join(sorted(others))))
        changed = difference(own, _settings(objective))
        for name, old, new in changed:
            logger.warning(say("changed", path, name, old, new))
        if changed and record is not None:
            logger.warning(say("changed_record"))
        self.state, self.rows = state, rows
        return record


def _settings(objective: Objective) -> dict[str, Any]:
    return objective.model_dump(mode="json", by_alias=True)


ENTROPY = {"entropy", "old_entropy"}
"""Columns for which the entropy of TRL's own forward passes is kept."""

OWN = "rlobj_own_"
"""Before the names of a user's own columns in a rollout."""

_GRADE, SCORE = "_calculate_rewards", "_get_per_token_logps_and_entropies"

_Trainer: Any = GRPOTrainer  # its methods are of no use to the type checker


class Rollouts(_Trainer):
    """GRPOTrainer whose rollouts hold what an objective reads of each response.

    It is the last class before GRPOTrainer. A trainer of the user's may therefore reorder, drop or
    join rollouts, as long as it does the same with all tensors of a rollout.
    """

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        """TRL's rollout, with `rlobj_rewards` [B, K], `rlobj_groups` and `rlobj_ids` [B].

        A rollout for the training has `rlobj_advantages` [B, T], too; the plan fills them in.
        """
        progress, needs, training = self._progress, self.objective.needs, self.model.training
        found: list[Tensor] = []
        entropies: list[Tensor] = []
        logged: dict[str, list[Any]] = {}
        conversations: list[tuple[Any, Any]] = []

        def graded(*arguments: Any, **named: Any) -> Tensor:
            found.append(grade(*arguments, **named))
            logged.update(self._pending_extra_logs if self._own else {})
            conversations.extend(zip(*arguments[2:4], strict=True) if self.tools else ())
            return found[-1]

        def scored(model: Any, *arguments: Any, **named: Any) -> Any:
            if self._reads & ENTROPY and model is not self.ref_model:
                named["compute_entropy"] = True
            scores = score(model, *arguments, **named)
            entropies.append(scores[1])
            return scores

        with replaced(self, _GRADE, graded) as grade, replaced(self, SCORE, scored) as score:
            output = super()._generate_and_score_completions(inputs)
        if self._reads & ENTROPY and "old_per_token_logps" in output:
            output["rlobj_old_entropy"] = entropies[0]  # the first pass was the policy's
        if "sampler_logprobs" in needs.ever:
            reader = self.objective.reader("sampler_logprobs")
            known = "sampling_per_token_logps" in output
            error = None if known else ConfigError(say("no_logprobs", reader))
            agree(error, "sampling", self._comm)
        if self.tools:
            self._log_limits(conversations)
        progress.turns |= any_rank("tool_mask" in output, self._comm)
        output |= self._own_columns(inputs, logged, output["completion_ids"].device)
        for name, scorer in self._scores.items():
            with together(self._comm, f"scoring by scores.{name}"):
                output[f"{OWN}{name}_logprob"] = scorer.logprobs(output)
        rewards, size = found[-1], len(output["completion_ids"])
        rows = torch.arange(size, device=rewards.device) + self.accelerator.process_index * size
        ids = rows + progress.rows if training else rows
        group = self.num_generations if training else self.num_generations_eval
        apart = self._own_advantages and self.objective.advantage.decoupled
        known = decided(rewards, self.reward_func_names if needs.rewards or apart else None)
        output |= {"rlobj_ids": ids, "rlobj_groups": ids // group, "rlobj_rewards": known[rows]}
        apart = self.args.multi_objective_aggregation == "normalize_then_sum"
        scaled = (
            rewards if apart else total_reward(known, self.reward_weights.tolist()).unsqueeze(1)
        )
        equal = equal_groups(scaled, group)[rows]
        output["advantages"] = output["advantages"].masked_fill(equal, 0.0)
        if training:
            unknown = torch.full_like(output["completion_ids"], torch.nan, dtype=torch.float32)
            output["rlobj_advantages"] = unknown
            earlier = [progress.rewards] if progress.sampled else []  # for the same update
            progress.rewards = torch.cat([*earlier, rewards])
            progress.sampled |= dict(whole_rows(output))
            progress.rows += len(rewards)
        return output

    def _log_limits(self, conversations: Sequence[tuple[Any, Any]]) -> None:
        """Log the shares of conversations that end at a limit; messages and token ids are given.

        TRL's `clipped_ratio` has those that end inside a turn. Others end with a call: there are no
        turns left, or the answer to the call does not fit.
        """
        tokenizer, most = self._tokenizer, self.max_tool_calling_iterations
        ends = {tokenizer.eos_token_id, tokenizer.pad_token_id, *getattr(self, "eos_token_ids", ())}
        counts = torch.tensor([0, 0, len(conversations)])
        for messages, ids in conversations:
            called = bool(messages[-1].get("tool_calls"))
            full = called and sum(each["role"] == "assistant" for each in messages) > most
            counts[0] += full
            counts[1] += not full and (called or ids[-1] not in ends)
        *limited, total = self._comm.sum(counts).tolist()
        logged = self._metrics["train" if self.model.training else "eval"]
        for name, count in zip(("turns", "tokens"), limited, strict=True):
            logged[f"rlobj/turns/at_{name}"].append(count / total)

    def _own_columns(self, rows: Any, logged: Mapping[str, Any], device: Any) -> dict[str, Tensor]:
        """The columns of the user's own, [B]: of the data set, or logged by a reward function."""
        found, error = dict[str, Tensor](), None
        for name, source in self._own.items():
            values = logged.get(name, ()) if source == "reward" else [x.get(name) for x in rows]
            numbers = [float(value) for value in values if isinstance(value, Real)]
            if not len(numbers) == len(values) == len(rows):
                error = ConfigError(say(f"own_{source}", name, len(rows)))
            found[f"{OWN}{name}"] = torch.tensor(numbers, device=device)
        agree(error, "sampling", self._comm)
        return found


@contextmanager
def replaced(trainer: Any, name: str, method: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Give this object another method inside the block, before every override; yields its own."""
    own = {key: value for key, value in vars(trainer).items() if key == name}
    usual = getattr(trainer, name)
    setattr(trainer, name, method)
    try:
        yield usual
    finally:
        delattr(trainer, name)
        vars(trainer).update(own)


def decided(rewards: Tensor, names: Sequence[str] | None) -> Tensor:
    """TRL's rewards as rlobj reads them, [B, K]: TRL adds up those that a response has.

    A response is undecided (NaN) if no function gave it a reward.

    Args:
        rewards: of each function, NaN = none, [B, K].
        names: of the functions, if the objective reads each reward by itself.

    Raises:
        BatchError: it does, and a response has only some rewards.
    """
    unknown = rewards.isnan()
    partly = unknown & ~unknown.all(1, keepdim=True)
    if names is not None and partly.any():
        raise BatchError(say("partly", names[int(partly.any(0).nonzero()[0])]))
    return rewards.masked_fill(partly, 0.0)


def equal_groups(rewards: Tensor, size: int) -> Tensor:
    """Rows of groups in which all responses have the same rewards, bool [B].

    TRL divides the rounding of such a group by 1e-4. Its advantages are 0.

    Args:
        rewards: those that TRL scales, each one or their sum, [B, K]; NaN = none. Whole groups, one
            after another.
        size: of a group.
    """
    slack = rounding(torch.float32)  # as TRL keeps rewards
    equal = [not any(differ(each, slack) for each in group.T) for group in rewards.split(size)]
    return torch.tensor(equal, device=rewards.device).repeat_interleave(size)


def trained(inputs: Mapping[str, Any]) -> Tensor:
    """1 at the tokens of the policy, which are trained, else 0, [B, T]."""
    return inputs["completion_mask"] * inputs.get("tool_mask", 1)


def turn_columns(mask: Tensor, rewards: Tensor) -> dict[str, Tensor]:
    """The columns `turn` and `turn_reward` of responses, [B, T].

    A turn ends where tool output begins. TRL has no rewards of turns: that of the response belongs
    to its last turn.

    Args:
        mask: see `trained`.
        rewards: of the responses, [B]; NaN = undecided.
    """
    begins = mask.diff(prepend=torch.zeros_like(mask[:, :1])) > 0
    turn = (begins.cumsum(1) - 1).clamp(min=0)
    return {"turn": turn, "turn_reward": torch.where(turn == turn[:, -1:], rewards[:, None], 0.0)}


def sequences(inputs: Mapping[str, Any]) -> Iterator[tuple[list[int], Sequence[int]]]:
    """Prompt ids and response ids of each response; tool output is what the policy reads."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    columns = (x.cpu() for x in (*(inputs[name] for name in names), trained(inputs)))
    for prompt, known, response, said, mine in zip(*columns, strict=True):
        ids, own = response[said.bool()].tolist(), mine[said.bool()].tolist()
        tokens, gaps = list[int](), list[tuple[int, list[int]]]()
        for written, part in groupby(zip(ids, own, strict=True), lambda pair: pair[1]):
            if gap := [token for token, _ in part]:
                tokens += gap if written else ()
                gaps += () if written else [(len(tokens), gap)]
        gaps = [gap for gap in gaps if gap[0] < len(tokens)]  # nobody reads what is said last
        yield prompt[known.bool()].tolist(), Interleaved(tokens, gaps) if gaps else tokens


def whole_rows(inputs: Mapping[str, Any]) -> Iterator[tuple[int, Row]]:
    """The id and the token ids of each response, those of the prompt from its end."""
    names = ("rlobj_ids", "prompt_ids", "completion_ids")
    for number, prompt, completion in zip(*(inputs[n].tolist() for n in names), strict=True):
        yield number, (prompt[::-1], completion)


def mistake(
    rollout: Sequence[Mapping[str, Any]], sampled: Mapping[int, Row], model: Any
) -> RunError | None:
    """An error if a row is not the response that its `rlobj_ids` names, or an input would be lost.

    Args:
        rollout: its micro-batches; their rows may be padded to another width.
        sampled: this process's responses, by `rlobj_ids`.
        model: the policy.
    """
    seen: set[int] = set()
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    read = inspect.signature(model.forward).parameters.keys() - {*TABLE["passed"]}
    for inputs in rollout:
        if missing := [name for name in TABLE["added"] if name not in inputs]:
            return RunError(say("rows", f"a rollout has no {', '.join(missing)}"))
        ids, rows = len(inputs["rlobj_ids"]), len(inputs["completion_ids"])
        if ids != rows:
            return RunError(say("rows", f"a rollout has {rows} responses and {ids} 'rlobj_ids'"))
        for number, row in whole_rows(inputs):
            kept = sampled.get(number, ([], []))
            same = all(all(map(eq, *pair)) for pair in zip(kept, row, strict=True))
            if number not in sampled or not same:
                text = f"response {number} of a rollout has the tokens of another"
                return RunError(say("rows", text))
            if number in seen:
                return RunError(say("rows", f"a rollout has response {number} twice"))
            seen.add(number)
        if lost := sorted(inputs.keys() & read - {"num_items_in_batch"}):
            return RunError(say("lost", ", ".join(lost)))
    return None
