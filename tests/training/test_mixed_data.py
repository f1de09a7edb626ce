"""Runs on several sources with weights."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from runs import make_steps, metrics, same, weights
from tiny import tiny_config

import rlobj
from rlobj.settings.run_config import RunConfig
from rlobj.training import run_training


@pytest.fixture
def files(tmp_path):
    """Two sources of 6 and 4 problems; each question says which."""
    paths = []
    for name, count in (("low", 6), ("high", 4)):
        rows = [{"prompt": f"{i},{9 * (name == 'high')}=", "answer": "9"} for i in range(count)]
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("\n".join(map(json.dumps, rows)))
    return paths


def configured(policy: Path, files: list[Path]) -> RunConfig:
    source = [{"source": str(files[0]), "weight": 3}, str(files[1])]
    return tiny_config(
        policy,
        data={"source": source, "template": "{prompt}"},
        sampling={"prompts_per_step": 8, "max_tokens": 2},
        training={"steps": 4},
        checkpoint={"every": 2},
    )


def test_a_run_on_several_sources_resumes_exactly(policy, tmp_path, files):
    config = configured(policy, files)
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 3)
    run_training(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    lines = metrics(tmp_path / "cut")
    assert lines == metrics(tmp_path / "whole")
    assert [line["data/low/epoch"] for line in lines] == [1, 2, 3, 4]
    assert [line["data/high/epoch"] for line in lines] == [0.5, 1, 1.5, 2]
    assert {(line["data/low/share"], line["data/high/share"]) for line in lines} == {(0.75, 0.25)}
    table = pd.read_parquet(tmp_path / "cut" / "samples" / "step-000004.parquet")
    asked = dict(zip(table["prompt"], table["source"], strict=True))
    assert len(asked) == 8
    assert all(("9=" in prompt) == (source == "high") for prompt, source in asked.items())


def test_python_names_several_sources(policy, tmp_path, files):
    """A list of names is no list of rows; a row may have a column called source."""
    settings = {"training.steps": 1, "data.template": "{prompt}", "evaluation.every": 0}
    settings |= {"sampling.max_tokens": 2, "output.tables_every": 0}
    settings["sampling.engine"] = "transformers"
    names = [{"source": files[0], "weight": 1}, files[1]]
    run = rlobj.train("grpo", model=policy, data=names, settings=settings, out=tmp_path / "names")
    assert run.history[-1]["data/high/share"] == 0.5
    rows = [{"prompt": f"{i},2=", "answer": "9", "source": "mine"} for i in range(9)]
    run = rlobj.train("grpo", model=policy, data=rows, settings=settings, out=tmp_path / "rows")
    assert not [name for name in run.history[-1] if name.startswith("data/")]
