"""`rlobj replay`: what it prints, as tables and as JSON."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from screens import printed
from tiny import tiny_config

from rlobj.training import run_training


@pytest.fixture(scope="module")
def run(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    settings = {"training": {"steps": 2}, "output": {"tables_every": 1}}
    run_training(tiny_config(policy, "20-entropy", **settings), folder)
    return folder


output = functools.partial(printed, "replay")


def test_objectives_and_rules_have_tables_of_80_columns(run: Path) -> None:
    assert "gives all recorded weights again, to the bit" in output(run)
    text = output(run, "--preset", "grpo, stapo", "--rule", "prob < 0.1")
    assert max(map(len, text.splitlines()[1:])) <= 80
    for part in ("grpo", "stapo", "prob < 0.1", "tokens", "size", "dropped", "clipped"):
        assert part in text
    assert not {"precision", "spurious"} & set(text.split())  # this task judges no tokens
    assert len([line for line in text.splitlines() if line.split()[:1] == ["grpo"]]) == 2


def test_a_sweep_is_a_table(run: Path) -> None:
    lines = output(run, "--rule", "prob < TAU", "--sweep", "TAU=0.1..0.4:4").splitlines()
    values = [line.split()[0] for line in lines if line.strip().startswith("0.")]
    assert values == ["0.1", "0.2", "0.3", "0.4"]


def test_json_has_everything(run: Path) -> None:
    found = json.loads(output(run, "--preset", "grpo", "--step", 2, "--json"))
    assert found["steps"] == [2]
    assert found["reproduced"] == found["population"]
    assert [row["name"] for row in found["objectives"]] == ["recorded", "grpo"]


def test_code_that_a_preset_file_names_is_looked_for_beside_the_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom rlobj import CustomRule, prob\n"
        "@dataclass(frozen=True)\nclass Rare(CustomRule):\n"
        "    def reads(self): return (prob,)\n"
        "    def select(self, frame): return frame.number(prob) < 0.1\n"
    )
    rule = "custom('mine.py:Rare')"
    (tmp_path / "mine.yaml").write_text(f'base: grpo\nobjective: {{drop: "{rule}"}}\n')
    assert "mine " in output(run, "--preset", tmp_path / "mine.yaml")
    (tmp_path / "mine.py").unlink()
    text = output(run, "--preset", tmp_path / "mine.yaml", code=2)
    assert f"there is no file '{tmp_path}/mine.py'" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rule", "prob < TAU"], "--sweep TAU=1e-4..1e-2"),
        (["--step", "9"], "has no step 9; it has 1, 2"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(run: Path, words: list[str], message: str) -> None:
    assert message in output(run, *words, code=2)
