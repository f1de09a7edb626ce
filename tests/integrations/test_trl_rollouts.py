"""Rollouts of several rows in TRL: what a rollout function says of its completions."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from integrations.trl_runs import Gradients, Watched, completions, config, off, policy, trainer
from integrations.trl_runs import _rows as scores
from runs import metrics

import rlobj
from rlobj import read_tables
from rlobj.base.errors import ConfigError
from rlobj.integrations.trl import ObjectiveTrainer

PLACES = (7, 3, 7, 7)
"""Whose row each completion of a group is."""


def rows(prompts: Any, one: Any) -> dict[str, Any]:
    """Completions of which every third token is a tool's, and whose rows they are."""
    start = one.accelerator.process_index * len(prompts)
    whole = prompts[:1] * (start % 4) + prompts  # the group that began on another process
    found = {name: ids and ids[start % 4 :] for name, ids in completions(whole, one).items()}
    numbers = [PLACES[(start + i) % 4] for i in range(len(prompts))]
    masks = [[int(i % 3 != 2) for i in range(len(ids))] for ids in found["completion_ids"]]
    return {**found, "env_mask": masks, "rollout": numbers}


def by_rollout(rollout: Any, **_: Any) -> list[float]:
    """A reward function gets the column, too."""
    return [float(number == 7) for number in rollout]


NAMED = {"rollout_func": rows, "reward_funcs": by_rollout, "objective": "grpo"}
TABLES = {"output": {"tables_every": 1}}


def test_completions_of_a_group_with_one_number_are_one_rollout(tmp_path: Path) -> None:
    """The turns and their rewards go on from row to row."""
    args = config(tmp_path, max_steps=1)
    trainer(ObjectiveTrainer, args, **NAMED, **TABLES).train()
    [update] = read_tables(tmp_path / "_rlobj")
    table = update.table.select(update.table.ids.argsort())
    assert table.ids.tolist() == [*range(32)]
    assert table.rollouts is not None
    assert table.rollouts.tolist() == [4 * g + first for g in range(8) for first in (0, 1, 0, 0)]
    turns: dict[int, int] = {}  # of each rollout
    parts = table.turn.split(table.lengths.tolist())
    for rollout, numbers in zip(table.rollouts.tolist(), parts, strict=True):
        before = turns.get(
            rollout, 0
        )  # each turn has two tokens, and the last of a row perhaps one
        assert numbers.tolist() == [before + token // 2 for token in range(len(numbers))]
        turns[rollout] = int(numbers[-1]) + 1
    assert max(turns.values()) > 4
    rewards = zip(table.rollouts[table.responses].tolist(), table.turn.tolist(), strict=True)
    expected = [float(rollout % 4 == 0 and turn + 1 == turns[rollout]) for rollout, turn in rewards]
    assert table.turn_reward.tolist() == expected
    assert "to the bit" in repr(rlobj.replay(tmp_path / "_rlobj"))
    [line] = metrics(tmp_path / "_rlobj")
    assert (line["response/count"], line["rollout/rows"], line["reward/mean"]) == (16, 2, 0.5)
    assert line["rollout/tokens"] == line["response/length_mean"] == len(table) / 16
    assert line["turns/mean"] == sum(turns.values()) / 16


def test_the_gradient_is_that_of_a_loop_over_rollouts(tmp_path: Path) -> None:
    """GRPO with two rollouts a group: one of three rows and reward 1, one of a row and reward 0."""
    found = Gradients()
    args = config(tmp_path, max_steps=1)
    one = trainer(Watched, args, record=False, callbacks=[found], **NAMED)
    one.train()
    [(window, weights)] = one.updates
    model = policy()
    model.load_state_dict(weights)
    scored = [row for inputs in window.inputs for row in scores(model, inputs, one.temperature)]
    logprobs = {int(row["ids"]): row["logprobs"] for row in scored}
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    loss = torch.zeros(())
    for group in range(8):
        for members, sign in (((0, 2, 3), 1), ((1,), -1)):
            tokens = torch.cat([logprobs[4 * group + member] for member in members])
            loss = loss - sign * advantage * tokens.sum() / len(tokens) / 16
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert off(found.found[0], expected.double()) < 1e-4  # TRL computes in single precision


def test_a_column_that_is_no_list_of_ints_is_refused(tmp_path: Path) -> None:
    def named(prompts: Any, one: Any) -> dict[str, Any]:
        return {**rows(prompts, one), "rollout": torch.tensor([1.0])}

    one = trainer(ObjectiveTrainer, config(tmp_path), **{**NAMED, "rollout_func": named})
    with pytest.raises(ConfigError, match="expected a list with an int for each completion"):
        one.train()


def train(folder: Path, windows: int) -> None:
    """Two updates, each of `windows` micro-batches of two completions on each process."""
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": windows}
    trainer(ObjectiveTrainer, config(folder, max_steps=2, **sizes), **NAMED, **TABLES).train()


@pytest.mark.slow
def test_the_rows_of_a_rollout_may_be_on_two_processes(tmp_path: Path) -> None:
    """A process has six completions of twelve, and a group four."""
    train(tmp_path / "one", 6)
    words = [__file__, tmp_path / "two"]
    forked.run_ranks(words, timeout=300, **forked.TEST_MODULES)
    names = ("ids", "rollouts", "groups", "rewards", "turn", "turn_reward", "advantages")
    for one, two in zip(
        *(read_tables(tmp_path / x / "_rlobj") for x in ("one", "two")), strict=True
    ):
        tables = [each.table.select(each.table.ids.argsort()) for each in (one, two)]
        for name in names:
            assert torch.equal(*(getattr(table, name) for table in tables)), name
        weights = [
            torch.cat(
                [each.weights[each.table.rows([int(row)])] for row in each.table.ids.argsort()]
            )
            for each in (one, two)
        ]
        assert torch.equal(*weights)
    lines = [metrics(tmp_path / name / "_rlobj") for name in ("one", "two")]
    for name in ("response/count", "rollout/rows", "turns/mean", "reward/mean"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]


if __name__ == "__main__":  # one of two processes
    train(Path(sys.argv[1]), 3)
