"""docs/loop.py: it runs as it is, and computes what `rlobj.train` computes on the same samples."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import rlobj
from rlobj.models.embedded import embedded_policy
from rlobj.runs.tables import UpdateTable, read_tables

FILE = Path(__file__).parents[2] / "docs" / "loop.py"
SETTINGS = {
    "training.steps": 2,
    "training.updates_per_step": 2,
    "training.learning_rate": 1e-3,
    "training.warmup_steps": 0,
    "training.schedule": "constant",
    "training.betas": [0.9, 0.999],
    "training.weight_decay": 0.1,
    "training.max_grad_norm": 1.0,
    "training.adam_epsilon": 1e-3,  # else the first step is as long for a gradient that is rounding
    "sampling.prompts_per_step": 16,
    "sampling.group_size": 4,
    "evaluation.every": 0,
    "output.tables_every": 1,
}


@pytest.fixture
def loop() -> ModuleType:
    """The file as a module of its own."""
    spec = importlib.util.spec_from_file_location("loop_to_copy", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(update: UpdateTable) -> dict[str, torch.Tensor]:
    """The responses of an update of a run, as the loop samples them: padded on the right."""
    width = max(len(prompt) + len(response) for prompt, response in update.sequences)
    rows: dict[str, list[list[int]]] = {"tokens": [], "read": [], "mask": []}
    for prompt, response in update.sequences:
        asked, said = [0] * len(prompt), [1] * len(response)
        padding = [0] * (width - len(asked) - len(said))
        rows["tokens"].append([*prompt, *response, *padding])
        rows["read"].append([*([1] * len(prompt)), *said, *padding])
        rows["mask"].append([*asked, *said, *padding])
    table = update.table
    assert table.rewards is not None
    of_responses = {"rewards": table.rewards, "groups": table.groups, "ids": table.response_ids}
    return {name: torch.tensor(row) for name, row in rows.items()} | of_responses


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("stapo", "stare")]


@pytest.mark.parametrize("preset", ["20-entropy", "lopti", *SLOW])
def test_its_losses_are_those_of_a_run_on_the_same_samples(
    loop: ModuleType, tmp_path: Path, preset: str
) -> None:
    settings: dict[str, Any] = {**SETTINGS, "training.selection": "current"}
    objective = rlobj.load_preset(preset).objective.resolve(5)
    if preset == "lopti":  # whose loop would need the reference
        objective = objective.replace(penalties=())
    result = rlobj.train(
        objective, data="addition", settings=settings, out=tmp_path / "run", progress=False
    )
    model = AutoModelForCausalLM.from_pretrained(embedded_policy("addition"))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1, eps=1e-3)
    state = objective.init()
    for line in result.history:
        tables = [*read_tables(result.path, [line["step"]])]
        assert len(tables) == 2 * len(objective.phases)
        updates = [rows_of(table) for table in tables[:2]]  # those of another phase are the same
        parts = [loop.split(rows, 9) for rows in updates]
        losses = loop.learn(model, optimizer, objective, parts, state)
        assert sum(losses) / len(losses) == pytest.approx(line["loss/total"], abs=1e-5)
        assert abs(line["loss/total"]) > 1e-4
    trained = dict(result.model.named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, trained[name], rtol=0, atol=1e-5)


def test_it_runs_with_any_objective(
    loop: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["loop.py"])
    vars(loop)["STEPS"] = 1
    for name in ("20-entropy", "stare", "dr-grpo"):
        vars(loop)["OBJECTIVE"] = name
        loop.main()
    assert capsys.readouterr().out.count("step 1  reward ") == 3


@pytest.mark.slow
def test_it_learns(
    loop: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["loop.py"])
    loop.main()
    rewards = [float(line.split()[3]) for line in capsys.readouterr().out.splitlines()]
    assert len(rewards) == loop.STEPS
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


def test_it_is_short_and_has_no_trainer() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for absent in ("rlobj.train", "rlobj.settings", "RunConfig", "rlobj.training"):
        assert absent not in text
