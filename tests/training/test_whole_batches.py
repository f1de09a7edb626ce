"""Dynamic sampling with whole batches, as in released recipes, and what too few groups do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from runs import metrics, open_trainer, same, weights
from tiny import tiny_config

import rlobj
from rlobj.base.errors import RunError
from rlobj.runs.configuration import read_changes, read_stop
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.run_config import RunConfig
from rlobj.training import run_training

STEPS, SEED = 5, 4


def config_of(policy: Path, dynamic: dict[str, Any], **sections: Any) -> RunConfig:
    sampling = {
        "prompts_per_step": 4,
        "group_size": 4,
        "dynamic": {"whole_batches": True, "oversampling": 1.5, **dynamic},
        **sections.pop("sampling", {}),
    }
    training = {"steps": STEPS, "adam_epsilon": 1e-3, **sections.pop("training", {})}
    config = tiny_config(policy, "dapo", sampling=sampling, training=training, **sections)
    return config.model_copy(update={"seed": SEED})


def group_ids(responses: Any) -> list[int]:
    return list(dict.fromkeys(response.group for response in responses))


@pytest.mark.parametrize("oversampling", [0.5, 1, 3])
def test_the_first_live_groups_of_whole_batches_are_trained_on(policy, tmp_path, oversampling):
    """They are those that a run without dynamic sampling draws from the same prompts."""
    dynamic = {"oversampling": oversampling, "max_batches": 99}
    with open_trainer(config_of(policy, dynamic), tmp_path / "whole") as trainer:
        rollout = trainer.pipeline.take(0)
    drawn = int(rollout.batches * 4 * oversampling)
    plain = config_of(policy, {}, sampling={"dynamic": None, "prompts_per_step": drawn})
    with open_trainer(plain, tmp_path / "plain") as trainer:
        every = trainer.pipeline.take(0)
        assert every.stream == rollout.stream
    verdicts: dict[int, set[Any]] = {}
    for response in every.responses:
        verdicts.setdefault(response.group, set()).add(response.grade.correct)
    live = [group for group, found in verdicts.items() if len(found) == 2]
    assert group_ids(rollout.responses) == live[:4]
    assert rollout.surplus == len(live) - 4
    assert sorted(group_ids(rollout.dead)) == sorted(set(verdicts) - set(live[:4]))
    before = [each for each in live if each < drawn - 4 * oversampling]
    assert len(before) < 4  # no batch was drawn without need
    texts = {each.id: each.text for each in every.responses}
    assert all(texts[each.id] == each.text for each in rollout.responses + rollout.dead)


@pytest.mark.parametrize("depth", [0, 1])
def test_too_few_groups_stop_the_run_after_a_checkpoint_and_more_batches_continue_it(
    policy, tmp_path, depth
):
    """The continued run is that of a cap that was high enough from the start.

    A rollout ahead is sampled from the present weights, because the older ones are gone.
    """
    mismatch = {"objective": {"mismatch": {"kind": "truncate"}}} if depth else {}

    def config(batches: int) -> RunConfig:
        sections = {"sampling": {"async_depth": depth}, **mismatch}
        return config_of(policy, {"max_batches": batches}, **sections)

    run_training(config(99), tmp_path / "enough")
    needed = [line["sampling/batches"] for line in RunFolder(tmp_path / "enough").lines()]
    cap = int(max(needed)) - 1
    fails = needed.index(cap + 1)
    assert fails > 1
    run = tmp_path / "cut"
    with pytest.raises(RunError) as caught:
        run_training(config(cap), run)
    message = str(caught.value)
    begins = rf"step {fails + 1} needs 4 groups with a signal, and {cap} × 6 prompts gave ([1-3])\."
    found = re.match(begins, message)
    assert found is not None
    assert f" sampling.dynamic.max_batches={2 * cap} or sampling.dynamic.whole_b" in message
    assert RunFolder(run).steps_saved() == fails
    stop = read_stop(run)
    assert stop is not None
    assert stop[2] == message
    result = rlobj.resume(run, settings={"sampling.dynamic.max_batches": 99})
    assert result.steps == STEPS
    equal = fails if depth else STEPS
    assert metrics(run)[:equal] == metrics(tmp_path / "enough")[:equal]
    assert depth or same(weights(run), weights(tmp_path / "enough"))
    assert read_changes(run) == [(fails, "sampling.dynamic.max_batches", cap, 99)]


def test_too_few_groups_are_trained_on_if_a_recipe_allows_fewer(policy, tmp_path):
    dynamic = {"max_batches": 3, "allow_fewer": True}
    config = config_of(policy, dynamic, training={"steps": 2})
    history = run_training(config, tmp_path / "run").history
    assert [line["response/count"] for line in history] == [72, 72]
    assert 0 < history[0]["reward/groups"] < 4
