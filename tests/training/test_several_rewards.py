"""Runs with several rewards: exact, resumed to the bit, and the same on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from runs import metrics, open_trainer
from tiny import eight_steps

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.runs.configuration import read_run_config
from rlobj.training import run_training

FUNCTIONS = '''
def small(response, answer, **columns):
    """Undecided now and then, never 0 or 1."""
    digits = [int(c) for c in response if c.isdigit()]
    return None if digits[:1] == [7] else 1 / (2 + sum(digits))
'''


def config_of(policy, folder: Path, **sections):
    """GDPO on two rewards and the length penalty, with a rule that reads one of them."""
    (folder / "small.py").write_text(FUNCTIONS)
    rewards = {
        "kind": "several",
        "overlong": {"cache": 0.5},
        "of": [
            {"name": "right", "kind": "exact"},
            {
                "name": "small",
                "kind": "custom",
                "target": f"{folder}/small.py:small",
                "weight": 0.3,
            },
        ],
    }
    settings = {
        "rewards": rewards,
        "objective": {"drop": "(reward('small') > 0.3) & (prob > 0.5)"},
        "sampling": {"max_tokens": 3, "prompts_per_step": 9},
        "training": {"steps": 6},
    }
    return eight_steps(policy, "gdpo", **settings, **sections)


@pytest.fixture(scope="module")
def alone(policy, tmp_path_factory):
    """The run in one process."""
    folder = tmp_path_factory.mktemp("alone")
    run_training(config_of(policy, folder), folder / "run")
    return folder / "run"


def rows(run: Path, step: int) -> list[dict]:
    found = parquet.read_table(run / "samples" / f"step-{step:06d}.parquet").to_pylist()
    return sorted(found, key=lambda row: row["id"])


def test_metrics_and_samples_hold_each_reward(alone):
    for line in metrics(alone)[1:]:
        decided = [row for row in rows(alone, line["step"]) if row["reward"] == row["reward"]]
        assert len(decided) == 72 - line["reward/undecided"] < 72
        for name in ("right", "small", "overlong"):
            mean = sum(row[f"reward_{name}"] for row in decided) / len(decided)
            assert line[f"reward/{name}/mean"] == pytest.approx(mean)
        for row in decided:
            parts = [row[f"reward_{name}"] for name in ("right", "small", "overlong")]
            assert row["reward"] == pytest.approx(parts[0] + 0.3 * parts[1] + parts[2])
            assert row["correct"] == (parts[0] == 1)
            assert row["length"] < 3 or parts[2] == -1


def test_dynamic_sampling_by_reward_reads_each_reward_of_a_decoupled_advantage(policy, tmp_path):
    """A group whose sums are equal has a signal if its rewards differ."""
    cancel = [
        {"name": "right", "kind": "exact"},
        {"name": "wrong", "kind": "custom", "target": f"{tmp_path}/wrong.py:wrong"},
    ]
    (tmp_path / "wrong.py").write_text(
        "def wrong(response, answer, **columns):\n    return response.strip() != answer.strip()\n"
    )
    kept = {}
    for preset in ("grpo", "gdpo"):
        sampling = {"dynamic": {"by": "reward", "max_batches": 1}, "max_tokens": 1}
        config = eight_steps(policy, preset, rewards=cancel, sampling=sampling)
        with open_trainer(config, tmp_path / preset) as trainer:
            rollout = trainer.pipeline.take(0)
            kept[preset] = len(rollout.responses)
            assert all(
                {r.grade.correct for r in rollout.responses if r.group == group} == {True, False}
                for group in {r.group for r in rollout.responses}
            )
    assert kept["grpo"] == 0 < kept["gdpo"]


def right(response, answer, **columns):
    return response.strip() == answer


@pytest.mark.parametrize("form", ["dict", "list", "settings"])
def test_rewards_may_be_python_functions(policy, tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    calls = []

    def short(response, answer, **columns):
        calls.append(response)
        return -0.1 * len(response)

    listed = [
        {"name": "right", "kind": "exact"},
        {"name": "short", "target": short, "weight": 0.5},
    ]
    reward = {
        "dict": {"right": right, "short": short},
        "list": listed,
        "settings": {"kind": "several", "of": listed, "overlong": {"cache": 0.2}},
    }[form]
    settings = {"training.steps": 2, "evaluation.every": 0, "sampling.prompts_per_step": 4}
    settings["sampling.max_tokens"] = 3
    given = {"model": str(policy), "data": "max-digits", "reward": reward}
    result = rlobj.train("gdpo", **given, out="run", settings=settings)
    assert calls
    assert result.history[-1]["reward/short/mean"] < 0
    targets = [getattr(each, "target", "") for each in read_run_config(Path("run")).rewards.of]
    assert targets[0] == ("<Python object right>" if form == "dict" else "")
    assert "<Python object " in targets[1]
    with pytest.raises(ConfigError, match=r"Pass them again: .*reward=\.\.\."):
        rlobj.resume("run", settings={"training.steps": 3}, trust=True)
    resumed = rlobj.resume("run", reward=reward, settings={"training.steps": 3})
    assert resumed.history[-1]["step"] == 3
