"""verl's training worker with rlobj, against rlobj alone: the gradient of every update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alone import difference, gradients
from harness import RESPONSES, Workers, rollout

from rlobj import load_preset

TOLERANCE = 2e-5
STAPO = """
base: stapo
objective: {drop: (advantage > 0) & (prob < 0.03) & entropy.bottom(0.8)}
"""
OLD = """
base: 20-entropy
training: {selection: old}
"""
LOPTI = """
base: dapo-loss
objective: {split: old_prob < 0.02}
"""
BONUS = """
base: dapo-loss
objective: {penalties: [{kind: entropy_bonus, coefficient: 0.1}]}
"""
TWO = {"updates": 2, "epochs": 2}
NAMES = ["20-entropy", "stare", "otb", STAPO, BONUS]


def shares(processes: int, updates: int) -> list[list[int]]:
    """The responses of each mini-batch; each process has a share of consecutive responses."""
    share, size = RESPONSES // processes, RESPONSES // processes // updates
    return [
        [rank * share + update * size + i for rank in range(processes) for i in range(size)]
        for update in range(updates)
    ]


class Comparison:
    """Runs a preset in verl, and by rlobj alone."""

    def __init__(self, workers: Workers, policy: Path, folder: Path) -> None:
        self.workers, self.policy, self.folder = workers, policy, folder
        self.processes = workers.processes
        self.alone: dict[Any, Any] = {}

    def errors(self, text: str, *, updates: int = 1, epochs: int = 1, **sent: Any) -> list[float]:
        """The largest difference of each update's gradient, relative to its largest entry."""
        if "\n" in text:
            (self.folder / "mine.yaml").write_text(text, encoding="utf-8")
        name = str(self.folder / "mine.yaml") if "\n" in text else text
        run, size = self.workers, RESPONSES // updates
        run.group.begin(name, ppo_epochs=epochs)
        data = run.score(rollout())
        sizes = {"mini_batch_size": size, "global_batch_size": size, "epochs": epochs}
        self.metrics = run.update(data, **sizes, **sent)
        key = (text, updates, epochs)
        if key not in self.alone:
            preset, rows = load_preset(name), shares(self.processes, updates)
            selection = preset.config.get("training", {}).get("selection", "current")
            given = (self.policy, preset.objective, data, rows, epochs, selection)
            self.alone[key] = gradients(*given)
        found = run.gradients()
        return [difference(*pair) for pair in zip(found, self.alone[key], strict=True)]


@pytest.fixture(scope="module")
def comparison(
    workers: Workers, sharp_policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> Comparison:
    return Comparison(workers, sharp_policy, tmp_path_factory.mktemp("presets"))


@pytest.mark.parametrize("text", NAMES)
def test_the_gradient_is_rlobjs_at_every_micro_batch_size(comparison, text):
    for size in (RESPONSES // comparison.processes, 8, 4, 1):
        [error] = comparison.errors(text, micro_batch_size_per_gpu=size)
        assert error < TOLERANCE
        if text == STAPO:
            assert 0 < comparison.metrics["rlobj/objective/dropped_tokens"] < 200


@pytest.mark.parametrize("room", [48, 120, 1000])
def test_dynamic_micro_batches_change_nothing(comparison: Comparison, room: int) -> None:
    sent = {"use_dynamic_bsz": True, "max_token_len_per_gpu": room}
    [error] = comparison.errors("20-entropy", **sent)
    assert error < TOLERANCE


@pytest.mark.parametrize("text", ["20-entropy", OLD, "stare", "otb", LOPTI])
def test_later_updates_read_the_present_policy_or_the_old_one(comparison, text):
    errors = comparison.errors(text, **TWO, micro_batch_size_per_gpu=4)
    assert len(errors) == 4
    assert max(errors) < TOLERANCE
    assert comparison.workers.state()["update"] == 4
    if text == OLD:  # its later updates have another gradient than those of the present policy
        present, old = (comparison.alone[each, 2, 2] for each in ("20-entropy", OLD))
        assert difference(present[0], old[0]) == 0
        assert difference(present[3], old[3]) > 100 * TOLERANCE
