"""Runs of other versions, and damaged models of runs, are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny import eight_steps

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.evaluation.engines import find_model
from rlobj.evaluation.evaluating import evaluate
from rlobj.runs.checkpoints import checkpoints
from rlobj.runs.configuration import FORMAT
from rlobj.training import run_training


@pytest.fixture(scope="module")
def finished(policy, tmp_path_factory):
    """A run of three steps with everything that a run writes."""
    run = tmp_path_factory.mktemp("finished") / "run"
    output = {"tables_every": 1, "samples_every": 1}
    config = eight_steps(policy, training={"steps": 3, "updates_per_step": 1}, output=output)
    run_training(config, run)
    return run


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_of_another_version_is_refused_with_its_version(run):
    session = json.loads((run / "sessions.jsonl").read_text())
    session |= {"format": FORMAT - 1, "versions": {"rlobj": "0.0.9"}}
    (run / "sessions.jsonl").write_text(json.dumps(session) + "\n")
    expected = (
        rf"run was written by another rlobj \(0\.0\.9, format {FORMAT - 1}\), and this one reads "
        rf"format {FORMAT}: use the one that wrote it, or start a new run from its weights: "
        r"model=\S+/run/checkpoints/step-N/model$"
    )
    for read in (rlobj.resume, rlobj.report, rlobj.diagnose, rlobj.inspect, find_model):
        with pytest.raises(ConfigError, match=expected):
            read(run)


@pytest.mark.parametrize("file", ["model/model.safetensors", "model/config.json"])
def test_a_damaged_model_of_a_run_is_not_evaluated(run, file):
    found = checkpoints(run)[-1] / file
    content = bytearray(found.read_bytes())
    content[len(content) // 2] ^= 1
    found.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file} has changed since it was written"):
        evaluate(str(run), n=1, limit=1)
