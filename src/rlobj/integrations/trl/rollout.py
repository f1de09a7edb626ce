"""What an ObjectiveTrainer adds to a rollout of TRL, and how it follows its rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer

from rlobj.base.errors import BatchError, ConfigError
from rlobj.base.interleaved import Interleaved
from rlobj.integrations.trl.progress import Inputs
from rlobj.objectives.rewards import differ, relative_rounding, total_reward
from rlobj.ranks import agree, any_rank, together

ENTROPY = {"entropy", "old_entropy"}
"""Columns for which the entropy of TRL's own forward passes is kept."""

PASSED = (
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes"),
    *("num_tiles", "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)
"""The inputs of a model, besides ids and masks, that TRL's forward pass hands over."""

ADDED = ("rlobj_ids", "rlobj_marks", "rlobj_groups", "rlobj_rewards", "rlobj_advantages")
"""What a rollout must have: the number of each response in the run, a hash of its tokens, the
number of its group, its rewards, and a place for its advantage."""

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
        calculated: list[Tensor] = []
        entropies: list[Tensor] = []
        logged: dict[str, list[Any]] = {}
        conversations: list[tuple[Any, Any]] = []

        def graded(*arguments: Any, **named: Any) -> Tensor:
            calculated.append(grade(*arguments, **named))
            logged.update(self._pending_extra_logs if self._own else {})
            conversations.extend(zip(*arguments[2:4], strict=True) if self.tools else ())
            return calculated[-1]

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
            missing = ConfigError(f"{reader} reads log-probs of the sampler: return `logprobs`")
            present = "sampling_per_token_logps" in output
            agree(None if present else missing, "sampling", self._comm)
        if self.tools:
            self._log_limits(conversations)
        progress.turns |= any_rank("tool_mask" in output, self._comm)
        output |= self._own_columns(inputs, logged, output["completion_ids"].device)
        for name, scorer in self._scores.items():
            with together(self._comm, f"scoring by scores.{name}"):
                output[f"{OWN}{name}_logprob"] = scorer.logprobs(output)
        rewards, size = calculated[-1], len(output["completion_ids"])
        rows = torch.arange(size, device=rewards.device) + self.accelerator.process_index * size
        ids = rows + progress.rows if training else rows
        group = self.num_generations if training else self.num_generations_eval
        output |= {"rlobj_ids": ids, "rlobj_groups": ids // group}
        output |= (rollouts := self._rollouts(inputs, output))
        progress.turns |= bool(rollouts)
        self._own_advantages |= bool(rollouts) and self._auto  # TRL's count rows
        apart = self._own_advantages and self.objective.advantage.decoupled
        read = decided(rewards, self.reward_func_names if needs.rewards or apart else None)
        output["rlobj_rewards"] = read[rows]
        apart = self.args.multi_objective_aggregation == "normalize_then_sum"
        scaled = rewards if apart else total_reward(read, self.reward_weights.tolist()).unsqueeze(1)
        equal = equal_groups(scaled, group)[rows]
        output["advantages"] = output["advantages"].masked_fill(equal, 0.0)
        if training:
            unknown = torch.full_like(output["completion_ids"], torch.nan, dtype=torch.float32)
            output["rlobj_advantages"] = unknown
            output["rlobj_marks"] = marks(output)
            progress.rewards = rewards
            progress.rows += len(rewards)
        return output

    def _rollouts(self, inputs: Any, output: Inputs) -> dict[str, Tensor]:
        """Columns [B] of the rollouts whose rows the completions are, if `rollout_func` says it.

        The rows of a group with one number are a rollout, on any process. `rlobj_rollouts` is the
        id of its first row, `rlobj_before` has the turns in its earlier rows, and `rlobj_last` is
        true in the row with its last turn.
        """
        numbers = [row.get("rollout") if self.rollout_func else None for row in inputs]
        if not any_rank(any(number is not None for number in numbers), self._comm):
            return {}
        right = all(isinstance(number, Integral) for number in numbers)
        what = "rollout_func returned `rollout`; expected a list with an int for each completion"
        agree(None if right else ConfigError(what), "sampling", self._comm)
        ids, size = output["rlobj_ids"], turn_begins(trained(output)).sum(1)
        mine = torch.stack([output["rlobj_groups"], torch.tensor(numbers).to(ids), ids, size], 1)
        every = torch.cat(self._comm.gather(mine.cpu())).to(mine)
        same = (every[:, None, :2] == mine[:, :2]).all(2)  # [rows of all processes, B]
        rows, turns = every[:, 2:, None].unbind(1)
        return {
            "rlobj_rollouts": rows.where(same, 2**62).amin(0),
            "rlobj_before": (turns * (same & (rows < ids))).sum(0),
            "rlobj_last": (rows * (same & (turns > 0))).amax(0) == ids,
        }

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
            full = called and sum(message["role"] == "assistant" for message in messages) > most
            counts[0] += full
            counts[1] += not full and (called or ids[-1] not in ends)
        *limited, total = self._comm.sum(counts).tolist()
        logged = self._metrics["train" if self.model.training else "eval"]
        for name, count in zip(("turns", "tokens"), limited, strict=True):
            logged[f"rlobj/turns/at_{name}"].append(count / total)

    def _own_columns(self, rows: Any, logged: Mapping[str, Any], device: Any) -> dict[str, Tensor]:
        """The columns of the user's own, [B]: of the data set, or logged by a reward function."""
        columns, error = dict[str, Tensor](), None
        for name, source in self._own.items():
            values = logged.get(name, ()) if source == "reward" else [row.get(name) for row in rows]
            numbers = [float(value) for value in values if isinstance(value, Real)]
            if not len(numbers) == len(values) == len(rows):
                way = f"log_extra('{name}', values)" if source == "reward" else "the data set"
                expected = f"expected a number for each of the {len(rows)} responses from {way}"
                error = ConfigError(f"columns.{name}={source}: {expected}")
            columns[f"{OWN}{name}"] = torch.tensor(numbers, dtype=torch.float64, device=device)
        agree(error, "sampling", self._comm)
        return columns


@contextmanager
def replaced(trainer: Any, name: str, method: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Give this object another method inside the block, before every override; yields its own."""
    attributes = {key: value for key, value in vars(trainer).items() if key == name}
    usual = getattr(trainer, name)
    setattr(trainer, name, method)
    try:
        yield usual
    finally:
        delattr(trainer, name)
        vars(trainer).update(attributes)


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
        name = names[int(partly.any(0).nonzero()[0])]
        what = f"the reward function '{name}' returned None, and another one a number"
        raise BatchError(f"{what}: the objective reads each reward, and needs all or none")
    return rewards.masked_fill(partly, 0.0)


def equal_groups(rewards: Tensor, size: int) -> Tensor:
    """Rows of groups in which all responses have the same rewards, bool [B].

    TRL divides the rounding of such a group by 1e-4. Its advantages are 0.

    Args:
        rewards: those that TRL scales, each one or their sum, [B, K]; NaN = none. Whole groups, one
            after another.
        size: of a group.
    """
    slack = relative_rounding(torch.float32)  # as TRL keeps rewards
    equal = [not any(differ(column, slack) for column in group.T) for group in rewards.split(size)]
    return torch.tensor(equal, device=rewards.device).repeat_interleave(size)


def marks(inputs: Mapping[str, Any]) -> Tensor:
    """A hash of the tokens of each response, whatever its padding, int64 [B]."""
    ids = (inputs["completion_ids"] + 1) * inputs["completion_mask"]
    factors = torch.full_like(ids[0], 6364136223846793005).cumprod(0)  # mod 2^64
    return (ids * factors).sum(1)


def trained(inputs: Mapping[str, Any]) -> Tensor:
    """1 at the tokens of the policy, which are trained, else 0, [B, T]."""
    return inputs["completion_mask"] * inputs.get("tool_mask", 1)


def turn_begins(mask: Tensor) -> Tensor:
    """True where a turn of the policy begins, [B, T]; the mask is that of `trained`."""
    return mask.diff(prepend=torch.zeros_like(mask[:, :1])) > 0


def turn_columns(inputs: Mapping[str, Any], rewards: Tensor) -> dict[str, Tensor]:
    """The columns `turn` and `turn_reward` of responses, [B, T].

    A turn ends where tool output begins. TRL has no rewards of turns: that of the response, or of
    the rollout, belongs to its last turn.

    Args:
        inputs: of a micro-batch.
        rewards: of the responses, [B]; NaN = undecided.
    """
    turn = (turn_begins(trained(inputs)).cumsum(1) - 1).clamp(min=0)
    last = turn == turn[:, -1:]
    if "rlobj_rollouts" in inputs:
        last, turn = last & inputs["rlobj_last"][:, None], turn + inputs["rlobj_before"][:, None]
    return {"turn": turn, "turn_reward": torch.where(last, rewards[:, None], 0.0)}


def sequences(inputs: Mapping[str, Any]) -> Iterator[tuple[list[int], Sequence[int]]]:
    """Prompt ids and response ids of each response; tool output is what the policy reads."""
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    columns = (column.cpu() for column in (*(inputs[name] for name in names), trained(inputs)))
    for prompt, read, response, said, mine in zip(*columns, strict=True):
        ids, marks = response[said.bool()].tolist(), mine[said.bool()].tolist()
        tokens, gaps = list[int](), list[tuple[int, list[int]]]()
        for written, part in groupby(zip(ids, marks, strict=True), lambda pair: pair[1]):
            if gap := [token for token, _ in part]:
                tokens += gap if written else ()
                gaps += () if written else [(len(tokens), gap)]
        gaps = [gap for gap in gaps if gap[0] < len(tokens)]  # nobody reads what is said last
        yield prompt[read.bool()].tolist(), Interleaved(tokens, gaps) if gaps else tokens
