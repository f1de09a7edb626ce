"""Sample and token tables of a step, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.training.parallel.process_group import ProcessGroup
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.storage.run_directory import RunDirectory, step_name

_SCORED = ("logprobs", "old_logprobs", "ref_logprobs", "proxy_logprobs", "entropy", "collision")


def write_samples(
    run: RunDirectory, step: int, rollout: Rollout, comm: ProcessGroup, names: Sequence[str] = ()
) -> None:
    """Write the sample table: one row per response, with its problem, text and grade.

    Each of several rewards has a column, such as `reward_format`; `names` are their names.
    """
    responses = [*rollout.responses, *rollout.dead]
    columns = {
        "id": [r.id for r in responses],
        "group": [r.group for r in responses],
        "problem": [r.problem.id for r in responses],
        "prompt": [r.problem.prompt for r in responses],
        "answer": [r.problem.answer for r in responses],
        "response": [r.sample.text for r in responses],
        "graded_answer": [r.grade.answer for r in responses],
        "correct": [r.grade.correct for r in responses],
        "reason": [r.grade.reason for r in responses],
        "reward": [r.reward for r in responses],
        **{
            f"reward_{name}": [r.grade.rewards[k] for r in responses]
            for k, name in enumerate(names)
        },
        "length": [len(r.sample.tokens) for r in responses],
        "finish": [r.sample.finish for r in responses],
        "weight_version": [r.sample.weight_version for r in responses],
        "kept": [i < len(rollout.responses) for i in range(len(responses))],
    }
    _write(run, f"samples/{step_name(step)}.parquet", columns, comm)


def write_tokens(
    run: RunDirectory,
    step: int,
    table: TokenBatch,
    plan: Plan,
    responses: Sequence[Sequence[int]],
    tokenizer: Any,
    comm: ProcessGroup,
) -> None:
    """Write the token table: one row per token, with the policy's columns and the objective's.

    `weight` is m·ω/Z, `kept` says whether it is not 0, and `penalty_k` is c_k/Z_k.

    Args:
        run: the run directory.
        step: the step, from 1.
        table: the step's first update. Log-probs and entropy are those that the rules read.
        plan: the plan of that table alone.
        responses: token ids of the table's first responses; the others are left out.
        tokenizer: turns token ids into texts.
        comm: the process group; the tokens of all ranks go into one table.
    """
    ids = [token for response in responses for token in response]
    weights = plan.weights[0]
    values = {
        "response": table.spread(table.column("ids", "the token table")),
        "position": table.positions,
        "advantage": plan.advantages[0],
        "weight": weights,
        "kept": weights != 0,
        **{f"penalty_{k + 1}": penalty for k, penalty in enumerate(plan.penalties[0])},
        "sampler_logprobs": table.sampler_logprobs,
    }
    if table.entropy is not None or table.old_logprobs is not None:  # the policy was scored
        values |= {name: getattr(table, name) for name in _SCORED}
    columns: dict[str, Any] = {"token": ids, "text": tokenizer.convert_ids_to_tokens(ids)}
    for name, column in values.items():
        if column is not None:
            columns[name] = column.detach()[: len(ids)].tolist()
    _write(run, f"tokens/{step_name(step)}.parquet", columns, comm)


def _write(run: RunDirectory, name: str, columns: dict[str, Any], comm: ProcessGroup) -> None:
    """Write one table with the rows of all ranks; the first rank writes it."""
    parts = [part for part in comm.gather(columns) if part]
    if comm.rank:
        return
    whole = {key: [value for part in parts for value in part[key]] for key in parts[0]}
    run.write_table(name, whole)
