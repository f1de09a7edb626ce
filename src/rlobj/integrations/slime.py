"""slime: an objective of rlobj, planned over whole optimizer steps and all data-parallel ranks.

    --loss-type custom_loss
    --custom-advantage-function-path rlobj.integrations.slime.plan_rollout
    --custom-loss-function-path rlobj.integrations.slime.loss
    --custom-config-path FILE     # with the line `rlobj: stapo`
    --use-rollout-entropy         # if the objective reads the entropy

slime calls `plan_rollout` once per rollout, after it has computed the log-probs of the rollout's
policy, and `loss` for each micro-batch. Rules read the rollout's policy, also in later steps of the
rollout. `rlobj` is a preset's name or a preset file.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError
from rlobj.config.presets import load_preset
from rlobj.integrations.columns import check_columns
from rlobj.objectives.joining import trained_positions
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.training.parallel.process_group import ProcessGroup

_COLUMNS = {
    "old_logprobs": "log_probs",
    "old_entropy": "entropy",
    "sampler_logprobs": "rollout_log_probs",
    "ref_logprobs": "ref_log_probs",
}
"""Columns of a TokenBatch, and where slime's rollout has them, as one tensor per response."""
_REFUSED = {
    "context_parallel_size": (1, "the tokens of a response would be on several ranks"),
    "calculate_per_token_loss": (False, "the weights contain the divisor"),
    "normalize_advantages": (False, "the objective computes the advantages"),
    "use_opd": (False, "it changes the advantages after the plan"),
    "use_rollout_logprobs": (False, "the plan needs the trainer's log-probs of the rollout"),
}
"""Settings of slime that would act beside the objective: the value that is expected, and why."""
_PLANNED = "rlobj_planned"
"""The attribute of a response's advantages, which slime hands on to the loss: (step, row in it)."""


@dataclass(frozen=True)
class _Step:
    """An optimizer step: this rank's responses, and its plan.

    Attributes:
        scale: what slime and Megatron divide the loss by.
    """

    table: TokenBatch
    plan: Plan
    scale: int


@dataclass
class _Training:
    """The objective of this process, and its state."""

    objective: Objective
    state: dict[str, Any]


_training: _Training | None = None


def plan_rollout(args: Namespace, rollout_data: dict[str, Any]) -> None:
    """Plan all optimizer steps of a rollout; for `--custom-advantage-function-path`.

    Sets `advantages` and `returns` of the rollout to the objective's advantages.

    Raises:
        ConfigError: a setting of slime that does not fit, or an objective that reads what slime
            does not provide.
        BatchError: as `Objective.plan`, or the rollout does not have whole groups.
    """
    global _training
    training = _training = _training or _opened(args, rollout_data)
    from megatron.core import mpu  # pyright: ignore[reportMissingImports]

    group = mpu.get_data_parallel_group(with_context_parallel=False)
    comm = ProcessGroup(rollout_data["log_probs"][0].device, group)
    whole = _table(args, rollout_data)
    if int(comm.sum(torch.tensor(len(whole.lengths)))) != len(rollout_data["raw_reward"]):
        raise BatchError(
            "slime left responses out of the rollout, so that groups are not whole. Expected "
            "rollout_batch_size * n_samples_per_prompt to be a multiple of global_batch_size"
        )
    [whole] = training.objective.with_advantages([whole], comm)
    training.state = training.objective.observe([whole], training.state, comm)
    advantages = _advantages(whole, rollout_data)
    parts = iter(rollout_data["micro_batch_indices"])
    sizes = zip(rollout_data["num_microbatches"], rollout_data["global_batch_sizes"], strict=True)
    for count, scale in sizes:
        rows = list(chain.from_iterable(islice(parts, count)))
        table = whole.select(rows)
        step = _Step(table, training.objective.plan([table], training.state, comm), scale)
        training.state["update"] = training.state.get("update", 0) + 1
        for place, row in enumerate(rows):
            setattr(advantages[row], _PLANNED, (step, place))
    rollout_data["advantages"] = rollout_data["returns"] = advantages


def loss(
    args: Namespace,
    batch: Mapping[str, Any],
    logits: Tensor,
    sum_of_sample_mean: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch and its metrics; for `--custom-loss-function-path`.

    Raises:
        BatchError: the micro-batch was not planned, or mixes several optimizer steps.
    """
    planned = [getattr(each, _PLANNED, (None, 0)) for each in batch["advantages"]]
    step = planned[0][0]
    if _training is None or step is None or any(other is not step for other, _ in planned):
        raise BatchError(
            "the micro-batch does not belong to one step that was planned. Pass both "
            "--custom-advantage-function-path rlobj.integrations.slime.plan_rollout and "
            "--custom-loss-function-path rlobj.integrations.slime.loss"
        )
    from slime.backends.megatron_utils import loss as losses  # pyright: ignore

    names = ("unconcat_tokens", "total_lengths", "response_lengths")
    _, scores = losses.get_log_probs_and_entropy(
        logits, args=args, **{name: batch[name] for name in names}
    )
    table = step.table.select([place for _, place in planned])
    table = table.replace(logprobs=_flat(scores["log_probs"], _masks(batch)))
    output = _training.objective.loss(table, step.plan)
    own = {"loss": output.loss.detach(), **output.metrics}
    scaled = output.loss * step.scale + 0 * logits.sum()  # every rank has a gradient
    return scaled, {name: torch.as_tensor(v) * step.scale for name, v in own.items()}


def _opened(args: Namespace, rollout_data: Mapping[str, Any]) -> _Training:
    """The objective that slime's configuration names, if it can be exact there."""
    name = getattr(args, "rlobj", None)
    if not name:
        raise ConfigError(
            "slime has no setting 'rlobj'. Add a line such as `rlobj: stapo` to the "
            "file of --custom-config-path"
        )
    objective = load_preset(name).objective.resolve(args.rollout_max_response_len)
    wrong = [
        f"slime's {key} is {getattr(args, key)}; expected {expected}, because {why}"
        for key, (expected, why) in _REFUSED.items()
        if getattr(args, key, expected) != expected
    ]
    if len(objective.phases) > 1:
        wrong.append(
            f"{name} has {len(objective.phases)} phases of updates on one rollout; slime "
            "makes each response part of one update"
        )
    if "entropy" in objective.needs.loss:
        reader = objective.reader("entropy")
        wrong.append(f"{reader} reads the entropy with its gradient, which the loss does not have")
    if wrong:
        raise ConfigError("\n".join(wrong))
    known = [column for column, key in _COLUMNS.items() if rollout_data.get(key)]
    advice: dict[str, str] = dict.fromkeys(("entropy", "old_entropy"), "Pass --use-rollout-entropy")
    provided = {"rewards", *known, *({"entropy"} if "old_entropy" in known else ())}
    check_columns(objective, provided, "slime", advice)
    return _Training(objective, objective.init())


def _table(args: Namespace, rollout_data: Mapping[str, Any]) -> TokenBatch:
    """This rank's responses of a rollout, as the rollout's policy scored them."""
    whole = args.rollout_batch_size * args.n_samples_per_prompt
    if len(rollout_data["raw_reward"]) != whole:
        raise BatchError(
            f"the rollout has {len(rollout_data['raw_reward'])} responses; expected {whole}, "
            "rollout_batch_size * n_samples_per_prompt, because slime does not say which responses "
            "are a group"
        )
    masks = _masks(rollout_data)
    known = {name: rollout_data[key] for name, key in _COLUMNS.items() if rollout_data.get(key)}
    columns: dict[str, Any] = {name: _flat(values, masks) for name, values in known.items()}
    places = torch.tensor(rollout_data["partition"])  # in the rollout of all ranks
    return TokenBatch(
        lengths=torch.stack([mask.sum() for mask in masks]),
        groups=places // args.n_samples_per_prompt,
        ids=places,
        rewards=torch.tensor(rollout_data["local_raw_reward"], dtype=torch.float64),
        logprobs=columns["old_logprobs"],
        entropy=columns.get("old_entropy"),
        **columns,
    )


def _advantages(table: TokenBatch, rollout_data: Mapping[str, Any]) -> list[Tensor]:
    """The advantages of each response, 0 where slime's mask is 0."""
    assert table.advantages is not None
    parts = table.advantages.split(table.lengths.tolist())
    pairs = zip(_masks(rollout_data), parts, strict=True)
    return [part.new_zeros(len(mask)).masked_scatter(mask, part) for mask, part in pairs]


def _masks(data: Mapping[str, Any]) -> list[Tensor]:
    """The trained tokens of each response."""
    return [trained_positions(mask) for mask in data["loss_masks"]]


def _flat(values: list[Tensor], masks: list[Tensor]) -> Tensor:
    """The values of the trained tokens, [N]."""
    return torch.cat([value[mask] for value, mask in zip(values, masks, strict=True)])
