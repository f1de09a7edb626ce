"""What an ObjectiveTrainer adds to a rollout of TRL, and how it follows its rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import BatchError, ConfigError, RunError
from rlobj.integrations.trl.window import Inputs, Row
from rlobj.objectives.rewards import differ, rounding, total
from rlobj.ranks import agree

ENTROPY = {"entropy", "old_entropy"}
"""Columns for which the entropy of TRL's own forward passes is kept."""

ADDED = ("rlobj_ids", "rlobj_groups", "rlobj_rewards")
"""The number of each response in the run, that of its group, and its rewards."""


_Trainer: Any = GRPOTrainer  # its methods are of no use to the type checker


class Rollouts(_Trainer):
    """GRPOTrainer whose rollouts hold what an objective reads of each response.

    It is the last class before GRPOTrainer. A trainer of the user's may therefore reorder, drop or
    join rollouts, as long as it does the same with all tensors of a rollout.
    """

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Tensor:
        rewards = super()._calculate_rewards(*arguments, **named)
        self._progress.rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Inputs:
        """TRL's rollout, with `rlobj_rewards` [B, K], `rlobj_groups` and `rlobj_ids` [B]."""
        progress = self._progress
        progress.entropies = [] if self._reads & ENTROPY else None
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            entropies, progress.entropies = progress.entropies, None
        if entropies and "old_per_token_logps" in output:  # the first pass was the policy's
            output["rlobj_old_entropy"] = entropies[0]
        if "sampler_logprobs" in self.objective.needs.ever:
            agree(self._without_sampler(output), "sampling", self._comm)
        training, rewards = self.model.training, progress.rewards
        assert rewards is not None
        size = len(output["completion_ids"])
        rows = torch.arange(size, device=rewards.device) + self.accelerator.process_index * size
        ids = rows + progress.rows if training else rows
        group = self.num_generations if training else self.num_generations_eval
        reads_each = self.objective.needs.rewards or (
            self._own_advantages and self.objective.advantage.decoupled
        )
        names = self.reward_func_names if reads_each else None
        output["rlobj_ids"], output["rlobj_groups"] = ids, ids // group
        known = decided(rewards, names)
        output["rlobj_rewards"] = known[rows]
        apart = self.args.multi_objective_aggregation == "normalize_then_sum"
        scaled = rewards if apart else total(known, self.reward_weights.tolist()).unsqueeze(1)
        equal = equal_groups(scaled, group)[rows]
        output["advantages"] = output["advantages"].masked_fill(equal, 0.0)
        if training:
            progress.sampled |= dict(zip(ids.tolist(), whole_rows(output), strict=True))
            progress.rows += len(rewards)
        return output

    def _without_sampler(self, output: Inputs) -> ConfigError | None:
        if "sampling_per_token_logps" in output:
            return None
        return ConfigError(
            f"{self.objective.reader('sampler_logprobs')} reads the sampler's log-probs, but the "
            "rollout_func returned None as logprobs: return the log-prob of each sampled token"
        )

    def _get_per_token_logps_and_entropies(self, model: Any, *arguments: Any, **named: Any) -> Any:
        entropies = None if model is self.ref_model else self._progress.entropies
        if entropies is not None:
            named["compute_entropy"] = True
        self._entropy_bonus_enabled = "entropy" in self.objective.needs.loss  # else detached
        scores = super()._get_per_token_logps_and_entropies(model, *arguments, **named)
        self._entropy_bonus_enabled = False  # TRL has no bonus to log
        if entropies is not None:
            entropies.append(scores[1])
        return scores


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
        raise BatchError(
            f"the reward function '{names[int(partly.any(0).nonzero()[0])]}' returned None for a "
            "response that other functions gave a reward. The objective reads each reward by "
            "itself: return a number, or None from all of them"
        )
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


def whole_rows(inputs: Mapping[str, Any]) -> Iterator[Row]:
    """The token ids of each response."""
    yield from zip(inputs["prompt_ids"].tolist(), inputs["completion_ids"].tolist(), strict=True)


def unlike(inputs: Mapping[str, Any], sampled: Mapping[int, Row]) -> RunError | None:
    """An error if a row is not the response that its `rlobj_ids` names.

    Args:
        inputs: of a micro-batch; its rows may be padded to another width.
        sampled: this process's responses, by `rlobj_ids`.
    """
    advice = (
        "An override of _generate_and_score_completions must keep every entry of super()'s "
        "result, and select or reorder the rows of all its tensors alike, with those of rlobj_*"
    )
    if missing := [name for name in ADDED if name not in inputs]:
        return RunError(f"a rollout has no {', '.join(missing)}. {advice}")
    ids = inputs["rlobj_ids"]
    if len(ids) != len(inputs["completion_ids"]):
        rows = len(inputs["completion_ids"])
        return RunError(f"a rollout has {rows} responses and {len(ids)} 'rlobj_ids'. {advice}")
    for number, (prompt, completion) in zip(ids.tolist(), whole_rows(inputs), strict=True):
        before, after = sampled.get(number, ([], []))
        left, right = min(len(before), len(prompt)), min(len(after), len(completion))
        same = before[len(before) - left :] == prompt[len(prompt) - left :]
        if number not in sampled or not same or after[:right] != completion[:right]:
            return RunError(f"response {number} of a rollout has the tokens of another. {advice}")
    return None


def unread(inputs: Mapping[str, Any], model: Any) -> RunError | None:
    """An error if the model reads an input that TRL's forward pass does not hand over."""
    passed = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    read = inspect.signature(model.forward).parameters
    lost = sorted({*inputs} & {*read} - {*passed, "num_items_in_batch"})
    if not lost:
        return None
    return RunError(
        f"a rollout has {', '.join(lost)}, which the model reads and TRL's forward pass does not "
        "hand over. Expected the model inputs that TRL knows: remove the others from the result "
        "of _generate_and_score_completions"
    )
