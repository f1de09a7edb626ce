"""The selection, and TRL's own metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.trl_runs import (
    GRPOTrainer,
    config,
    handed_over,
    off,
    train,
    trainer,
)
from runs import metrics

from rlobj import Objective, entropy, old_entropy
from rlobj.base.errors import ConfigError
from rlobj.integrations.trl import ObjectiveTrainer, rollout
from rlobj.integrations.trl.settings import FEW

ROUNDS = {"num_iterations": 2, "max_steps": 2, "learning_rate": 1e-2}


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets an entry for each forward pass of TRL: whether it has a gradient."""
    found: list[bool] = []
    score = GRPOTrainer._get_per_token_logps_and_entropies

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        found.append(torch.is_grad_enabled())
        return score(self, *arguments, **named)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 8])
def test_rules_of_the_old_selection_read_the_policy_of_the_rollout(
    tmp_path: Path, size: int, passes: list[bool]
) -> None:
    """And its updates make no forward pass besides that of the loss."""
    split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size}
    found, without = {}, {}
    for name, rule, selection in (
        ("old", entropy.top(0.2), "old"),
        ("written", old_entropy.top(0.2), "current"),
        ("current", entropy.top(0.2), "current"),
    ):
        passes.clear()
        settings = {"selection": selection, **split, **ROUNDS}
        _, found[name] = train(tmp_path, Objective(keep=rule), **settings)
        without[name] = passes.count(False)
    assert off(found["old"][1], found["written"][1]) < 1e-5
    assert off(found["old"][1], found["current"][1]) > 1e-3
    assert without["old"] == without["written"]  # those of TRL, which scores the rollout
    assert without["current"] - without["old"] == (32 // size if size < 32 else 0)


def test_the_selection_of_a_preset_is_used(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: 20-entropy\ntraining: {selection: old}\n")
    assert trainer(ObjectiveTrainer, config(tmp_path), objective=file)._selection == "old"
    given = {"objective": file, "selection": "current"}
    assert trainer(ObjectiveTrainer, config(tmp_path), **given)._selection == "current"


@pytest.mark.parametrize("chosen", ["all", "few", ["tokens/*"]])
def test_the_metrics_that_are_named_are_logged(chosen: Any, tmp_path: Path) -> None:
    """The record has all of them."""
    output = {"metrics": chosen, "tables_every": 0}
    one = trainer(ObjectiveTrainer, config(tmp_path, max_steps=1), objective="stapo", output=output)
    one.train()
    logged = {name[6:] for name in one.state.log_history[0] if name.startswith("rlobj/")}
    if chosen == "few":
        assert logged == {*FEW}
    elif chosen == "all":
        assert {*FEW} < logged
        assert len(logged) > 20
    else:
        assert {name.partition("/")[0] for name in logged} == {"tokens"}
    [line] = metrics(tmp_path / "_rlobj")
    assert {*FEW, "objective/dropped_tokens", "loss/total"} <= line.keys()


@pytest.mark.parametrize("wrong", ["some", 5, None])
def test_wrong_metrics_are_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected 'all', 'few', or a list of names"):
        trainer(ObjectiveTrainer, config(tmp_path), objective="grpo", output={"metrics": wrong})


@pytest.mark.slow
def test_trls_own_metrics_stay_but_for_those_of_its_clip(tmp_path: Path) -> None:
    """rlobj counts the clipped tokens itself."""
    args = {"beta": 0.04, "num_iterations": 2, "learning_rate": 1e-3, "max_steps": 2}
    args["epsilon_high"] = 0.28
    bare = {"objective": "dapo-loss", "advantages": "trl", "record": False}
    lines = []
    for kind, named in ((GRPOTrainer, {}), (ObjectiveTrainer, bare)):
        one = trainer(kind, config(tmp_path, **args), **named)
        one.train()
        lines.append(one.state.log_history[1])
    expected, found = ({n: line[n] for n in ("entropy", "kl")} for line in lines)
    assert found == pytest.approx(expected, rel=1e-3)
    assert "rlobj/objective/clip_fraction" in lines[1]
    assert not any(name.startswith("clip_ratio/") for name in lines[1])
    assert not {"policy_loss", "entropy_coef"} & {*lines[1]}


def test_inputs_that_trl_hands_over_are_those_of_its_loss() -> None:
    """Its forward pass may take them as keywords of any name."""
    assert handed_over() == [*rollout.PASSED]
