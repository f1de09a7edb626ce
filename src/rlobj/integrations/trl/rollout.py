"""What an ObjectiveTrainer adds to a rollout of TRL, and how it follows its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import eq
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import BatchError, ConfigError, RunError
from rlobj.integrations.trl.settings import TABLE, say
from rlobj.integrations.trl.window import Inputs, Row
from rlobj.objectives.rewards import differ, rounding, total
from rlobj.ranks import agree

ENTROPY = {"entropy", "old_entropy"}
"""Columns for which the entropy of TRL's own forward passes is kept."""

_GRADE, SCORE = "_calculate_rewards", "_get_per_token_logps_and_entropies"

_Trainer: Any = GRPOTrainer  # its methods are of no use to the type checker


class Rollouts(_Trainer):
    """GRPOTrainer whose rollouts hold what an objective reads of each response.

    It is the last class before GRPOTrainer. A trainer of the user's may therefore reorder, drop or
    join rollouts, as long as it does the same with all tensors of a rollout.
    """

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        """TRL's rollout, with `rlobj_rewards` [B, K], `rlobj_groups` and `rlobj_ids` [B].

        A rollout for the training has `rlobj_advantages` [B], too; the plan fills them in.
        """
        progress, needs, training = self._progress, self.objective.needs, self.model.training
        found: list[Tensor] = []
        entropies: list[Tensor] = []

        def graded(*arguments: Any, **named: Any) -> Tensor:
            found.append(grade(*arguments, **named))
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
        rewards, size = found[-1], len(output["completion_ids"])
        rows = torch.arange(size, device=rewards.device) + self.accelerator.process_index * size
        ids = rows + progress.rows if training else rows
        group = self.num_generations if training else self.num_generations_eval
        apart = self._own_advantages and self.objective.advantage.decoupled
        known = decided(rewards, self.reward_func_names if needs.rewards or apart else None)
        output |= {"rlobj_ids": ids, "rlobj_groups": ids // group, "rlobj_rewards": known[rows]}
        apart = self.args.multi_objective_aggregation == "normalize_then_sum"
        scaled = rewards if apart else total(known, self.reward_weights.tolist()).unsqueeze(1)
        equal = equal_groups(scaled, group)[rows]
        output["advantages"] = output["advantages"].masked_fill(equal, 0.0)
        if training:
            output["rlobj_advantages"] = torch.full_like(output["advantages"], torch.nan)
            earlier = [progress.rewards] if progress.sampled else []  # for the same update
            progress.rewards = torch.cat([*earlier, rewards])
            progress.sampled |= dict(whole_rows(output))
            progress.rows += len(rewards)
        return output


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
