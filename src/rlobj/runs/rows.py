"""The rows of the record, as columns of pyarrow."""

from typing import Any

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray

from rlobj.objectives import functional
from rlobj.runs.columns import CONTEXT, SCHEMA
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.texts import TokenTexts


def rows_of(
    observed: ObservedUpdate,
    rows: torch.Tensor,
    place: tuple[int, int],
    texts: TokenTexts,
    context: int = CONTEXT,
) -> Any:
    """Some tokens of an update as a table of pyarrow with the columns of the record.

    Args:
        observed: the update.
        rows: the tokens, int [M].
        place: step and update, from 1.
        texts: of the policy's tokens.
        context: the number of tokens in `before` and in `after`.
    """
    table, plan = observed.table, observed.plan
    assert table.ids is not None
    old = observed.old_logprobs
    sampler = table.logprobs if table.sampler_logprobs is None else table.sampler_logprobs
    logprobs, old, sampler = observed.logprobs[rows], old[rows], sampler[rows]
    per_token = {
        "weight": plan.weights[0][rows],
        "factor": plan.asked_clauses.factor[rows],
        "advantage": plan.advantages[0][rows],
        "value": observed.value[rows],
        "prob": logprobs.exp(),
        "old_prob": old.exp(),
        "ratio": functional.log_ratio(logprobs, old).exp(),
        "entropy": observed.entropy[rows],
        "gradient_norm": observed.gradient_norm[rows],
        "entropy_sensitivity": observed.entropy_sensitivity[rows],
        "sampler_gap": old - sampler,
    }
    columns = {name: numbers(values) for name, values in per_token.items()}
    unknown = torch.full(table.lengths.shape, torch.nan)
    rewards = numbers(unknown if table.rewards is None else table.reward())
    response, position = numpy(table.responses[rows]), numpy(table.positions[rows])
    ids = [observed.sequences[i][1][t] for i, t in zip(response, position, strict=True)]
    distinct, which = np.unique(np.array(ids, np.int64), return_inverse=True)
    before, after = texts.contexts(observed.sequences, response, position, context)
    began = [each or None for each in observed.began] or [None] * len(table.ids)
    codes, spurious = numpy(plan.asked_clauses.codes[rows]), numpy(observed.spurious[rows])
    causes = pyarrow.array(codes, mask=codes < 0)
    effects, clauses = ([cause[part] for cause in plan.asked_clauses.causes] for part in (0, 1))
    columns |= {
        "step": np.full(len(rows), place[0]),
        "update": np.full(len(rows), place[1]),
        "rollout": numpy(table.ids if table.rollouts is None else table.rollouts)[response],
        "response": numpy(table.ids)[response],
        "began": pyarrow.array(began, "string").take(pyarrow.array(response)),
        "group": numpy(table.groups)[response],
        "reward": rewards[response],
        "position": position,
        "staleness": numbers(table.column("staleness", "the record")[rows]),
        "turn": np.zeros(len(rows)) if table.turn is None else numpy(table.turn[rows]),
        "token": distinct[which],
        "text": pyarrow.array([texts.text(token) for token in distinct], "string").take(which),
        "kept": numpy(plan.weights[0][rows] != 0),
        "effect": pyarrow.array(effects, "string").take(causes),
        "clause": pyarrow.array(clauses, "string").take(causes),
        "before": before,
        "after": after,
        "spurious": pyarrow.array(spurious == 1, mask=np.isnan(spurious)),
    }
    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            columns[name] = pyarrow.array(column, SCHEMA.field(name).type, from_pandas=True)
    return pyarrow.table(columns, schema=SCHEMA)


def numpy(values: torch.Tensor) -> NDArray[Any]:
    """The values on the CPU."""
    return values.detach().cpu().numpy()


def numbers(values: torch.Tensor) -> NDArray[np.float32]:
    """The values on the CPU in single precision; NaN becomes null in a file."""
    return numpy(values.float())
