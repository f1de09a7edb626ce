"""Sample and token tables of a step, as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlobj.plan import Plan
from rlobj.tokens import TokenBatch
from rlobj.training.rollout import Response
from rlobj.training.run_directory import RunDirectory

__all__ = ["write_samples", "write_tokens"]


def write_samples(run: RunDirectory, step: int, responses: Sequence[Response]) -> None:
    """One row per response: what was asked, what was said, how it was graded."""
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
        "length": [len(r.sample.token_ids) for r in responses],
        "finish": [r.sample.finish for r in responses],
        "weight_version": [r.sample.weight_version for r in responses],
    }
    _write(run, f"samples/step-{step:06d}.parquet", columns)


def write_tokens(
    run: RunDirectory,
    step: int,
    table: TokenBatch,
    plan: Plan,
    responses: Sequence[Response],
    tokenizer: Any,
) -> None:
    """One row per token: what it was, what the policy thought of it, what the objective did to it.

    `weight` is m·ω/Z of the step's first update and `kept` whether it acts; log-probs and entropy
    are those that the rules read.
    """
    ids = [token for r in responses for token in r.sample.token_ids]
    columns: dict[str, Any] = {
        "response": table.spread(table.column("ids", "the token table")).tolist(),
        "position": table.positions.tolist(),
        "token": ids,
        "text": tokenizer.convert_ids_to_tokens(ids),
        "advantage": plan.advantages[0].tolist(),
        "weight": plan.weights[0].tolist(),
        "kept": (plan.weights[0] != 0).tolist(),
    }
    for k, penalty in enumerate(plan.penalties[0]):
        columns[f"penalty_{k + 1}"] = penalty.tolist()
    for name in (
        "logprobs",
        "old_logprobs",
        "sampler_logprobs",
        "ref_logprobs",
        "proxy_logprobs",
        "entropy",
        "collision",
    ):
        values: torch.Tensor | None = getattr(table, name)
        if values is not None:
            columns[name] = values.detach().tolist()
    _write(run, f"tokens/step-{step:06d}.parquet", columns)


def _write(run: RunDirectory, name: str, columns: dict[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    with run.atomic(name) as place:
        pyarrow.parquet.write_table(pyarrow.table(columns), place, compression="zstd")
