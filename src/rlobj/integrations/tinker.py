"""An objective as the loss function of one batch of Tinker, or of a service with its interface.

client.forward_backward_custom(data, loss_function(objective, groups=..., rewards=...))
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlobj.base.errors import BatchError, ConfigError
from rlobj.integrations.columns import check_columns
from rlobj.objectives.objective import Objective
from rlobj.objectives.tokens import COLUMN_NAMES, TokenBatch

__all__ = ["loss_function"]

_OF_THE_VOCABULARY = ("entropy", "collision", "proxy_logprobs", "_kl", "_divergence", "_new_value")
"""How the names of columns end that do not follow from the log-probs of the drawn tokens."""


def loss_function(
    objective: Objective,
    *,
    groups: Sequence[int],
    rewards: Sequence[float] | None = None,
    rollouts: Sequence[int] | None = None,
    state: dict[str, Any] | None = None,
) -> Callable[[Sequence[Any], Sequence[Tensor]], tuple[Tensor, dict[str, float]]]:
    """`loss_fn(data, logprobs) -> (loss, metrics)` for one batch, which is a whole update.

    The `loss_fn_inputs` of each Datum have a `mask`, else `weights`: 1 at the trained tokens, else
    0. Their `logprobs` are the sampler's. These are l0, too, unless there are `old_logprobs`, or
    the objective reads `sampler_logprobs`: then l0 are the log-probs of this call. Other columns
    that the objective reads are fields by their names.

    Args:
        objective: an objective of one phase.
        groups: the number of the prompt that each Datum answers.
        rewards: of each Datum, NaN = undecided; None = `loss_fn_inputs` have `advantages`.
        rollouts: the number of the rollout that each Datum is a row of; None = one of its own.
        state: one dict for all batches of a run, which each batch changes: controllers, and the
            number of the update.

    Raises:
        ConfigError: the objective has several phases, or reads a column that Tinker does not have.
    """
    if len(objective.phases) > 1:
        raise ConfigError("the objective has phases; make a loss of each one of objective.phases")
    needed = objective.needs.ever
    absent = {name for name in needed if name.endswith(_OF_THE_VOCABULARY)} - {*objective.columns}
    advice = dict.fromkeys(absent, "Tinker has one log-prob for each token, and nothing else")
    check_columns(objective, needed - absent, "Tinker", advice)
    given = {"groups": groups, "rewards": rewards, "rollouts": rollouts}
    names = {"old_logprobs", *needed} - {"logprobs", "sampler_logprobs", "advantages", *given}
    names |= {"advantages"} if rewards is None else set()
    state = {} if state is None else state

    def loss_fn(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        if not data:
            raise BatchError("the batch has no Datum; expected at least one")
        fields = [datum.loss_fn_inputs for datum in data]
        masks = [_mask(n, *pair) for n, pair in enumerate(zip(fields, logprobs, strict=True))]
        columns: dict[str, Any] = {
            name: pad_sequence([inputs[name].to_torch() for inputs in fields], batch_first=True)
            for name in {"logprobs", *names}
            if all(name in inputs for inputs in fields)
        }
        columns["sampler_logprobs"] = columns.pop("logprobs", None)
        if "sampler_logprobs" not in needed:
            columns.setdefault("old_logprobs", columns["sampler_logprobs"])
        own = {name: columns.pop(name) for name in {*columns} - {*COLUMN_NAMES}}
        table = TokenBatch.from_padded(
            pad_sequence(masks, batch_first=True),
            pad_sequence([*logprobs], batch_first=True),
            **columns,
            **given,
            columns=own,
        )
        state.update(objective.observe([table], state))
        plan = objective.plan([table], state)
        output = objective.loss(table, plan)
        state["update"] = state.get("update", 0) + 1
        measured = plan.metrics | output.metrics | output.extremes
        return output.loss, {name: float(value) for name, value in measured.items()}

    return loss_fn


def _mask(n: int, inputs: Any, logprobs: Tensor) -> Tensor:
    """1 at the trained tokens of Datum n, [T]; only its shape is checked."""
    field = inputs.get("mask", inputs.get("weights"))
    mask = None if field is None else field.to_torch()
    if mask is None or mask.shape != logprobs.shape:
        shape = list(logprobs.shape)
        raise BatchError(
            f"Datum {n} needs loss_fn_inputs['mask'] {shape}: 1 at trained tokens, else 0"
        )
    return mask
