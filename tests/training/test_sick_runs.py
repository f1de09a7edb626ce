"""The diagnosis of real runs: silent on healthy ones, right on sick ones, and how it stops them."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from runs import same, weights
from typer.testing import CliRunner

import rlobj
from rlobj import Callback
from rlobj.insight import Finding
from rlobj.models.embedded import embedded_policy
from rlobj.models.policy import load_model, load_tokenizer
from rlobj.runs.layout import STOP_FILE
from rlobj.runs.run_folder import RunFolder
from rlobj.samplers import TransformersSampler
from rlobj.settings.run_config import ModelConfig
from rlobj_cli.app import app

RATE = 5e-4
"""The learning rate of the embedded policy's profile."""

COLLAPSES = {
    "training.steps": 9,
    "training.learning_rate": 30 * RATE,
    "evaluation.every": 0,
    "checkpoint.every": 0,
}


def stale_sampler():
    """A sampler that reports each sync and keeps the weights that it began with."""
    folder = str(embedded_policy("addition"))
    config = ModelConfig(name=folder)
    return {
        "sampler": TransformersSampler(load_model(config, folder), load_tokenizer(config, folder))
    }


OTHERS = ("sampler-drift", "verifier-trouble", "inert-setting")
"""Findings that have nothing to do with the policy's movement."""
STILL = ("collapse", "update-too-large")
"""Findings of a policy that moved too far."""
SICK = {
    "learning rate x1e6": (
        {"training.steps": 8, "training.learning_rate": 1e6 * RATE},
        {"collapse": 5, "update-too-large": 5},
        OTHERS,
    ),
    "max_tokens too short": (
        {"training.steps": 8, "sampling.max_tokens": 12, "sampling.prompts_per_step": 8},
        {"truncation": 4, "constant-reward": 6},
        (*OTHERS, "collapse", "update-too-large"),
    ),
    "stale sampler": (
        {"training.steps": 5},
        {"sampler-drift": 3},
        (*STILL, "verifier-trouble"),
    ),
    "a rule that drops everything": (
        {"training.steps": 6, "objective.drop": "prob > 0"},
        {"no-signal": 4},
        ("collapse", "inert-setting", "constant-reward"),
    ),
}
"""Runs that are made sick on purpose: what is set, findings and the step by which they must begin,
findings that they must not have. tests/insight/test_diagnosis.py has lines for every finding."""
ARGUMENTS = {
    "max_tokens too short": lambda: {"data": "scratchpad"},
    "stale sampler": stale_sampler,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_has_its_findings_in_time(tmp_path, name):
    settings, must, never = SICK[name]
    quiet = {"evaluation.every": 0, "checkpoint.every": 0}
    arguments = {"data": "addition", **ARGUMENTS.get(name, dict)()}
    with contextlib.suppress(rlobj.RunError):  # the run's own guards may end it first
        rlobj.train("grpo", out=tmp_path / "run", settings={**quiet, **settings}, **arguments)
    found = {finding.name: finding.since for finding in rlobj.diagnose(tmp_path / "run").findings}
    assert all(found.get(finding, 10**6) <= step for finding, step in must.items()), found
    assert not found.keys() & set(never)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "blind"), [(1e-12, True), (3e-3, False)])
def test_a_value_that_cannot_learn_is_found_and_a_good_one_is_not(tmp_path, rate, blind):
    settings = {
        "training.steps": 42,
        "evaluation.every": 0,
        "checkpoint.every": 0,
        "training.learning_rate": RATE / 10,  # so that the task is not solved
        "scores.critic.learning_rate": rate,
    }
    run = rlobj.train("ppo", data="addition", out=tmp_path / "run", settings=settings).path
    found = {finding.name: finding.since for finding in rlobj.diagnose(run).findings}
    assert found.get("value-trouble") == (40 if blind else None)


@pytest.mark.slow
def test_a_healthy_run_has_no_findings(tmp_path):
    short = {"training.steps": 30, "evaluation.every": 0, "checkpoint.every": 0}
    run = rlobj.train("20-entropy", data="addition", out=tmp_path / "run", settings=short).path
    diagnosis = rlobj.diagnose(run)
    assert str(diagnosis).partition("\n")[0] == f"{run}, 30 steps: no findings"
    assert {"collapse", "entropy", "truncation"} <= {*diagnosis.runs[0].checked}


class Told(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def found(self, finding: Finding) -> None:
        self.findings.append(finding)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that collapses, and what its callback was told."""
    told = Told()
    out = tmp_path_factory.mktemp("whole") / "run"
    rlobj.train("grpo", data="addition", out=out, settings=COLLAPSES, callbacks=[told])
    return out, told.findings


@pytest.mark.slow
def test_the_live_findings_are_those_of_the_finished_run(whole):
    run, told = whole
    assert [(each.name, each.since) for each in told] == [
        (each.name, each.since) for each in rlobj.diagnose(run).findings
    ]
    line = RunFolder(run).lines()[-1]
    assert line["diagnosis/collapse"] == 1
    assert line["diagnosis/findings"] == len(told)


@pytest.mark.slow
def test_the_program_stops_with_a_checkpoint_says_what_to_do_and_goes_on(whole, tmp_path):
    words = [f"--set={name}={value}" for name, value in COLLAPSES.items()]
    out, runner = tmp_path / "run", CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    train = ["train", "--preset", "grpo", "--data", "addition", "--out", str(out), *words]
    result = runner.invoke(app, [*train, "--stop-on", "collapse"])
    assert result.exit_code == 1
    told = re.search(r"step (\d): collapse: the accuracy of samples fell from", result.output)
    assert told is not None, result.output
    done = int(told[1])
    assert done == next(each.since for each in whole[1] if each.name == "collapse") < 9
    assert done == RunFolder(out).lines()[-1]["step"] == RunFolder(out).steps_saved()
    [diagnosis] = rlobj.diagnose(out).runs
    assert diagnosis.notes == (f"the run stopped at step {done}: training.stop_on lists collapse.",)
    assert f"Best checkpoint before step {done}: none was saved" in result.output
    again = f"rlobj train --config {out}/config.resolved.yaml --set training.learning_rate="
    assert again in result.output
    assert "rlobj resume" not in result.output  # it would go on with the collapsed policy
    assert "reward, first/last step" in result.output  # the table of a finished run
    result = runner.invoke(app, ["resume", str(out)])
    assert result.exit_code == 0, result.output  # though the finding still holds
    assert same(weights(out), weights(whole[0]))
    assert not (out / STOP_FILE).exists()
    assert f"collapse, since step {done}" in result.output.partition("Found: ")[2]
    assert f"rlobj diagnose {out}" in result.output
    assert "--set training.steps=" not in result.output  # no advice to train on
    result = runner.invoke(app, ["diagnose", str(out)])
    assert result.exit_code == 0
    assert "→ Start a new run with a lower training.learning_rate" in result.output
    result = runner.invoke(app, ["diagnose", str(out), "--fail", "--json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["runs"][0]["findings"][0]["name"] == "collapse"


def test_an_unknown_finding_is_refused_with_the_nearest_name():
    result = CliRunner().invoke(app, ["train", "--preset", "grpo", "--stop-on", "colapse"])
    assert result.exit_code == 2
    assert "Did you mean 'collapse'?" in result.output
