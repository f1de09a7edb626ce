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

from rlobj import Objective, entropy, old_entropy
from rlobj.integrations.trl import ObjectiveTrainer, rollout

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


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["dapo-loss", "gspo", "cispo"])
def test_trls_own_metrics_stay(tmp_path: Path, objective: str) -> None:
    """With bounds of the objective; a surrogate that clips in another way has no clip_ratio."""
    level = {"importance_sampling_level": "sequence"} if objective == "gspo" else {}
    usual = trainer(ObjectiveTrainer, config(tmp_path), objective=objective, record=False)
    surrogate = usual.objective.surrogate
    args = {"beta": 0.04, "num_iterations": 2, "learning_rate": 1e-3, "max_steps": 2, **level}
    if objective != "cispo":
        args |= {"epsilon": surrogate.low, "epsilon_high": surrogate.high}
    bare = {"objective": objective, "advantages": "trl", "record": False}
    lines = []
    for kind, named in ((GRPOTrainer, {}), (ObjectiveTrainer, bare)):
        one = trainer(kind, config(tmp_path, **args), **named)
        one.train()
        lines.append(one.state.log_history[1 if objective == "dapo-loss" else 0])
    expected, found = lines
    names = [n for n in expected if n in ("entropy", "kl") or n.startswith("clip_ratio/")]
    assert len(names) == 7
    names = names if objective != "cispo" else ["entropy", "kl"]
    assert {n: found[n] for n in names} == pytest.approx({n: expected[n] for n in names}, rel=1e-3)
    assert not {"policy_loss", "entropy_coef"} & {*found}
    clipped = [name for name in found if name.startswith("clip_ratio/")]
    assert bool(clipped) == (objective != "cispo")


def test_inputs_that_trl_hands_over_are_those_of_its_loss() -> None:
    """Its forward pass may take them as keywords of any name."""
    assert handed_over() == [*rollout.PASSED]
