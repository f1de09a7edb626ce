"""Updates of random tokens, as the tests of replaying pass and read them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from strategies import awkward_batch

from rlobj import Objective, TokenBatch, load_preset
from rlobj.insight.replaying.planning import Replayed, plan_again
from rlobj.runs.tables import UpdateTable


def update_of(
    objective: Objective, table: TokenBatch, step: int = 1, update: int = 1, **state: Any
) -> UpdateTable:
    """An update as `read_tables` returns it."""
    state = {**objective.init(), "update": 0, **state}
    [table] = objective.with_advantages([table])
    plan = objective.plan([table], state, clauses=True)
    assert plan.clauses is not None
    codes, causes = plan.clauses.codes, plan.clauses.causes
    facts = {"max_tokens": 24}
    return UpdateTable(
        step, update, table, objective, state, plan.weights[0], codes, causes, [], facts
    )


def planned(objective: Objective, *updates: UpdateTable) -> Any:
    """What an objective does to each token of updates of a rollout: columns as in `Planned`."""
    batches = [[update] for update in updates]
    phases = Replayed(objective).phases(batches)
    plans = [vars(plan_again(*pair)) for pair in zip(phases, batches, strict=True)]
    columns = {
        name: torch.cat([plan[name] for plan in plans]) for name in plans[0] if name != "of_value"
    }
    return SimpleNamespace(**columns)


def batch(seed: int = 0, groups: int = 16, **columns: Any) -> TokenBatch:
    """Random tokens; those of even ids with a low probability are spurious."""
    table = awkward_batch(seed, groups, torch.float32)
    assert table.ids is not None
    spurious = ((table.spread(table.ids) % 2 == 0) & (table.logprobs < -4)).float()
    return table.replace(columns={"spurious": spurious}, **columns)


def rows(table: Any, key: str = "name") -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in table.to_pylist()}


GRPO, STAPO = (load_preset(name).objective for name in ("grpo", "stapo"))
