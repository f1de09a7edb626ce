"""Updates that are a part of a rollout, several rollouts, parts of two, or rounds of phases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.trl_runs import alone, config, off, train, trainer

from rlobj import RunError, load_preset
from rlobj.integrations.trl import ObjectiveTrainer

slow = partial(pytest.param, marks=pytest.mark.slow)
EPOCH = {"max_steps": -1, "num_train_epochs": 1}
PAIRS, THIRDS = {"gradient_accumulation_steps": 2}, {"steps_per_generation": 3}
SIXTHS = {"steps_per_generation": 6}
WHOLE = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
PHASES = {"steps_per_generation": 4, "num_iterations": 2, "beta": 0.01, "max_steps": 4}


@pytest.mark.parametrize(
    ("preset", "settings", "sizes"),
    [
        slow("stapo", {**PAIRS, "steps_per_generation": 4}, [2] * 3, id="half a rollout"),
        slow("stapo", {"steps_per_generation": 2}, [4] * 3, id="two rollouts"),
        slow("20-entropy", {**EPOCH, **SIXTHS}, [4] * 7 + [2], id="a short last one"),
        slow("fipo", {**PAIRS, **THIRDS}, [2] * 3, id="parts of two, without entropies"),
        slow("clip-cov", {**PAIRS, **THIRDS}, [2] * 3, id="parts of two, with a sample"),
        slow("stapo", {**WHOLE, "num_iterations": 2}, [1] * 3, id="one micro-batch, two rounds"),
        slow("20-entropy", {**PAIRS, "num_iterations": 2}, [2] * 3, id="two rounds"),
        pytest.param("lopti", {**PAIRS, **PHASES}, [2] * 4, id="phases"),
    ],
)
def test_each_update_is_that_of_rlobj_alone(
    tmp_path: Path, preset: str, settings: dict[str, Any], sizes: list[int]
) -> None:
    # At 1e-2 ratios reach 1e8, and rounding decides which token is at a cut.
    one, found = train(tmp_path, preset, "trl", learning_rate=1e-3, **settings)
    assert [len(window.inputs) for window, _ in one.updates] == sizes
    phases = load_preset(preset).resolved(8).phases
    per_phase = len(sizes) // len(phases)
    for update, gradient in enumerate(found):
        phase = phases[update // per_phase]
        assert one.updates[update][0].phase == phase
        expected = alone(one, update, phase, own=False)
        assert (gradient - expected).abs().max() < 1e-4 * expected.abs().max() + 1e-6


def test_advantages_are_those_of_whole_groups(tmp_path: Path) -> None:
    """Each window holds half of a shuffled rollout, and so parts of groups."""
    half = {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 2}
    one, _ = train(tmp_path, "gdpo", **half)
    inputs = [inputs for window, _ in one.updates for inputs in window.inputs]
    names = ("rlobj_rewards", "rlobj_groups", "completion_mask", "rlobj_advantages")
    rewards, groups, mask, advantages = (torch.cat([i[n] for i in inputs]) for n in names)
    whole = load_preset("gdpo").objective.advantage(rewards, groups, mask.sum(1))
    of_tokens = whole.float().repeat_interleave(mask.sum(1))
    torch.testing.assert_close(advantages[mask.bool()], of_tokens)
    assert (groups.bincount() == 4).all()
    assert any((window.inputs[0]["rlobj_groups"].bincount() % 4).any() for window, _ in one.updates)


def test_where_the_policy_has_not_moved_the_old_policy_is_it_without_rounding(
    tmp_path: Path,
) -> None:
    """|l - l0| would have a gradient of the sign of a rounding error otherwise."""
    settings = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
    one, found = train(tmp_path, "kl-cov", "trl", num_iterations=2, max_steps=1, **settings)
    for inputs in one.updates[0][0].inputs:
        assert inputs.pop("old_per_token_logps") is not None
    assert off(found[0], alone(one, 0, load_preset("kl-cov").objective, own=False)) < 1e-4


def test_a_loop_that_steps_before_the_planned_end_is_an_error(tmp_path: Path) -> None:
    class Early(ObjectiveTrainer):
        """Steps after each micro-batch."""

        def training_step(self, *arguments: Any, **named: Any) -> Any:
            self.accelerator.gradient_state._set_sync_gradients(True)
            return super().training_step(*arguments, **named)

    with pytest.raises(RunError, match="after the 4 micro-batches for which"):
        trainer(Early, config(tmp_path), objective="dapo-loss", record=False).train()


def test_a_loss_that_is_not_the_objectives_is_an_error(tmp_path: Path) -> None:
    class Own(ObjectiveTrainer):
        """Does not call super()."""

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return sum(p.sum() for p in model.parameters())

    with pytest.raises(RunError, match="trained without the objective's loss"):
        trainer(Own, config(tmp_path), objective="dapo-loss", record=False).train()


def test_other_responses_than_the_planned_ones_are_an_error(tmp_path: Path) -> None:
    class Other(ObjectiveTrainer):
        """Reverses the responses of a micro-batch after the plan."""

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            whole = inputs["num_items_in_batch"]
            columns = {k: v.flip(0) for k, v in inputs.items() if v is not whole}
            return super()._compute_loss(model, {**columns, "num_items_in_batch": whole})

    with pytest.raises(ValueError, match="was not made for this table"):
        trainer(Other, config(tmp_path), objective="dapo-loss", record=False).train()
