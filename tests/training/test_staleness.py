"""The column `staleness` of a run whose sampling is steps ahead of its training."""

from __future__ import annotations

import pytest
from tiny import tiny_config

from rlobj import read_tables
from rlobj.training import run_training


@pytest.mark.parametrize(("depth", "stale"), [(0, [0, 0, 0, 0]), (2, [0, 1, 2, 2])])
def test_staleness_counts_the_steps_since_the_weights_that_sampled(policy, tmp_path, depth, stale):
    config = tiny_config(
        policy,
        "dapo-loss",
        sampling={"async_depth": depth},
        objective={"drop": "staleness > 1"},
        training={"steps": 4},
        output={"tables_every": 1},
    )
    run_training(config, tmp_path / "run")
    updates = list(read_tables(tmp_path / "run"))
    assert [{*update.table.staleness.tolist()} for update in updates] == [{age} for age in stale]
    assert [bool(update.weights.any()) for update in updates if update.step > 2] == [depth == 0] * 2
