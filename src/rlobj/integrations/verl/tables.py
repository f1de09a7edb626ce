"""verl's TensorDicts as tables: one row per trained token.

verl keeps a nested tensor [B, j] for each field, with one entry per response token. `loss_mask`
marks the trained tokens. `response_mask` lacks those that verl's rollout correction rejected.
"""

# pyright: reportMissingImports=false
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import combinations, groupby
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.nn.functional import pad
from verl.utils import tensordict_utils

from rlobj.base.errors import BatchError
from rlobj.integrations.verl.names import INDEX, PADDING
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules.operators import column
from rlobj.objectives.statistics import Comm, gather
from rlobj.objectives.token_columns import trained_positions
from rlobj.objectives.tokens import TokenBatch

NEEDED = (
    *("loss_mask", "response_mask", "old_log_probs", "entropy"),
    *("rm_scores", "uid", "session_id"),
)
SAMPLED = ("input_ids", "loss_mask", "rollout_log_probs")
WEIGHT, ACCEPTED = "rollout_weight", "rollout_accepted"


def values(field: Tensor) -> Tensor:
    """The entries of a field, response after response, [Σ j]."""
    return field.values() if field.is_nested else field.flatten()


def name_rows(batch: Any, queue: Any) -> None:
    """Put into verl's queue which row of its session each response is, and which tokens it trains.

    A session is a rollout. An agent loop may return several responses for it, its rows, with the
    keys `{uid}_{session_id}_{index}`. If every session has one row, nothing changes.

    Args:
        batch: the keys that verl trains on; its `fields` then name the index, too.
        queue: the module `transfer_queue`.
    """
    sessions, indices = zip(*(key.rsplit("_", 1) for key in batch.keys), strict=True)
    if len({*sessions}) == len(sessions):
        return
    entries = {"keys": batch.keys, "partition_id": batch.partition_id}
    fields = TensorDict({INDEX: torch.tensor([*map(int, indices)])}, [len(indices)])
    if SAMPLED[2] in batch.fields:
        data = queue.kv_batch_get(**entries, select_fields=[*SAMPLED])
        fields["loss_mask"] = marked_once(sessions, fields[INDEX], data)
    batch.fields = queue.kv_batch_put(**entries, fields=fields).fields


def marked_once(sessions: Sequence[str], indices: Tensor, data: TensorDict) -> Tensor:
    """`loss_mask` without the tokens of a row that an earlier row of its session trains, too.

    Two rows share a beginning up to the first token whose ids differ or, where both train it,
    whose log-probs from the sampler differ. What they share was sampled once.

    Args:
        sessions: of the responses, [B].
        indices: of the responses in their sessions, int [B].
        data: the fields `SAMPLED`, nested [B, j]; `input_ids` has the prompt, too.
    """
    rows = [*zip(*(data[name].unbind() for name in SAMPLED), strict=True)]
    whole = [[pad(field, (len(row[0]) - len(field), 0)) for field in row] for row in rows]
    once = [trained.clone() for _, trained, _ in whole]
    order = sorted(range(len(rows)), key=lambda row: (sessions[row], int(indices[row])))
    for _, session in groupby(order, key=sessions.__getitem__):
        for earlier, later in combinations(session, 2):
            n = min(len(once[earlier]), len(once[later]))
            (ids, trained, logprobs), theirs = [[x[:n] for x in whole[i]] for i in (later, earlier)]
            both = (trained * theirs[1]).bool()
            differ = (ids != theirs[0]) | both & (logprobs != theirs[2])
            once[later][:n].masked_fill_(both & (differ.cumsum(0) == 0), 0)
    masks = [mask[len(mask) - len(row[1]) :] for mask, row in zip(once, rows, strict=True)]
    return torch.nested.as_nested_tensor(masks, layout=torch.jagged)


def rollout_table(data: TensorDict, device: torch.device, comm: Comm) -> TokenBatch:
    """This rank's share of a rollout, with the columns of the policy that sampled and scored it.

    Synthetic responses, with which verl fills up a batch, are undecided: they count nowhere.

    Args:
        data: fields of verl's trainer, B responses.
        device: of the table.
        comm: the data-parallel group.

    Raises:
        BatchError: a field is absent, or two responses have one name.
    """
    if absent := [name for name in NEEDED if name not in data]:
        needed = "trainer.use_v1=True and algorithm.rollout_correction.bypass_mode=False"
        raise BatchError(f"verl's batch has no {', '.join(absent)}. It needs {needed}")
    mask = data["loss_mask"]
    kept = trained_positions(values(mask))
    uids = [str(uid) for uid in data["uid"]]
    sessions = [str(session) for session in data["session_id"]]
    rewards = torch.stack([row.double().sum() for row in data["rm_scores"].unbind()]).cpu()
    padding = tensordict_utils.get(data, key=PADDING, default="").split(",")
    synthetic = torch.tensor([uid in padding for uid in uids])
    several = INDEX in data
    rows = [map(str, data[INDEX].tolist())] if several else []
    ids = torch.tensor([*map(number, uids, sessions, *rows)])
    rollouts = torch.tensor([*map(number, uids, sessions)], device=device) if several else None
    _check_unique(ids, comm)

    def tokens(name: str) -> Tensor | None:
        return values(data[name])[kept].detach().to(device) if name in data else None

    old, entropy = tokens("old_log_probs"), tokens("entropy")
    assert old is not None
    return TokenBatch(
        lengths=torch.stack([row.bool().sum() for row in mask.unbind()]).to(device),
        groups=torch.tensor([number(uid) for uid in uids], device=device),
        ids=ids.to(device),
        rollouts=rollouts,
        rewards=rewards.masked_fill(synthetic, torch.nan).to(device),
        logprobs=old,
        old_logprobs=old,
        entropy=entropy,
        old_entropy=entropy,
        ref_logprobs=tokens("ref_log_prob"),
        sampler_logprobs=tokens("rollout_log_probs"),
    )


def scored(output: Mapping[str, Tensor], data: TensorDict) -> dict[str, Tensor | None]:
    """The columns of the policy in the output of verl's engine, [N] each; None where it has none.

    Args:
        output: nested tensors over prompt and response; the entry before a token scores it.
        data: the responses that were scored.
    """
    mask = data["loss_mask"]
    kept = values(mask).bool()
    lengths = [len(row) for row in mask.unbind()]

    def tokens(name: str) -> Tensor | None:
        if name not in output:
            return None
        rows = output[name].unbind()
        ours = [row[len(row) - n - 1 : len(row) - 1] for row, n in zip(rows, lengths, strict=True)]
        whole = torch.cat(ours)
        return whole[kept.to(whole.device)]

    names = {"logprobs": "log_probs", "entropy": "entropy", "collision": "sum_pi_squared"}
    return {column: tokens(name) for column, name in names.items()}


def correct(
    objective: Objective, table: TokenBatch, data: TensorDict
) -> tuple[Objective, TokenBatch]:
    """The objective and table with verl's rollout correction.

    verl's weights multiply ω. Rejected tokens count in populations and divisors, as in verl's own
    losses, and have no loss and no penalty.

    Raises:
        BatchError: the objective has a mismatch correction of its own.
    """
    kept = values(data["loss_mask"]).bool()
    weights = torch.ones(len(table))
    if "rollout_is_weights" in data:
        if objective.mismatch is not None:
            what = f"verl's rollout_is_weights and {objective.mismatch} correct the same gap"
            raise BatchError(f"{what}. Type algorithm.rollout_correction.rollout_is=null")
        weights = values(data["rollout_is_weights"])[kept]
    accepted = values(data["response_mask"])[kept].to(weights.dtype)
    extra = {WEIGHT: weights, ACCEPTED: accepted}
    extra = {name: value.detach().to(table.logprobs.device) for name, value in extra.items()}
    widened = objective.replace(columns=objective.columns | dict.fromkeys(extra, "token"))
    rule = column(ACCEPTED) > 0
    phase = rule if widened.phase is None else widened.phase & rule
    corrected = widened.replace(phase=phase).reweight(column(WEIGHT))
    return corrected, table.replace(columns={**table.columns, **extra})


def number(*names: str) -> int:
    """A number below 2^63 for a name, the same in every process."""
    digest = blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _check_unique(ids: Tensor, comm: Comm) -> None:
    everyone, _ = gather(ids, comm)
    if len(everyone.unique()) != len(everyone):
        raise BatchError(f"two responses of verl have one uid, session_id and {INDEX}")
