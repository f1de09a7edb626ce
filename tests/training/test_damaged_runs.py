"""Run folders with damage at any place: it is named, and nothing changes in silence."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from limits import replaced, within
from tiny import eight_steps

import rlobj
from rlobj.base.errors import ConfigError, RlobjError
from rlobj.base.yaml import dump_yaml, load_yaml
from rlobj.evaluation.engines import find_model
from rlobj.evaluation.evaluating import evaluate
from rlobj.installation import installed_version
from rlobj.runs.checkpoints import checkpoints, newest_sound, require_sound
from rlobj.runs.manifest import write_manifest
from rlobj.runs.sessions import FORMAT
from rlobj.training import run_training

CONFIG = "config.resolved.yaml"


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


@pytest.mark.parametrize("name", ["training.learning_rate", "sampling.group_size", "data", "seed"])
def test_what_a_config_lacks_is_named(run, name):
    settings = load_yaml((run / CONFIG).read_text())
    section, _, key = name.partition(".")
    del (settings[section] if key else settings)[key or section]
    (run / CONFIG).write_text(dump_yaml(settings))
    for read in (rlobj.resume, rlobj.report, rlobj.diagnose, rlobj.inspect):
        with pytest.raises(ConfigError, match=rf"damaged: it lacks {re.escape(name)}\. Restore"):
            read(run)


def test_a_run_of_another_version_is_refused_with_its_version(run):
    session = json.loads((run / "sessions.jsonl").read_text())
    session |= {"format": FORMAT - 1, "versions": {"rlobj": "0.0.9"}}
    (run / "sessions.jsonl").write_text(json.dumps(session) + "\n")
    expected = (
        rf"run was written by rlobj 0\.0\.9 \(format {FORMAT - 1}\), and rlobj "
        rf"{installed_version('rlobj')} reads format {FORMAT}: use the version that wrote it, or "
        "start a new run from its weights: model=checkpoints/step-N/model$"
    )
    for read in (rlobj.resume, rlobj.report, rlobj.diagnose, rlobj.inspect, find_model):
        with pytest.raises(ConfigError, match=expected):
            read(run)


def test_a_checkpoint_whose_moments_are_unknown_is_set_aside(run, caplog):
    """AdamW would start anew, and nobody would know."""
    newest = checkpoints(run)[-1]
    before = Path(shutil.copytree(newest, newest.with_name("step-000002")))
    state = json.loads((before / "state.json").read_text())
    (before / "state.json").write_text(json.dumps({**state, "step": 2}))
    write_manifest(before)
    shutil.rmtree(newest / "optimizer")
    manifest = json.loads((newest / "manifest.json").read_text())
    known = {name: facts for name, facts in manifest.items() if "moments" not in name}
    (newest / "manifest.json").write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"manifest\.json lists no"):
        require_sound(newest)
    assert newest_sound(run.absolute(), set_aside=True) == before
    assert f"{newest} is damaged (manifest.json lists no" in caplog.text


@pytest.mark.parametrize("file", ["model/model.safetensors", "model/config.json"])
def test_a_damaged_model_of_a_run_is_not_evaluated(run, file):
    found = checkpoints(run)[-1] / file
    content = bytearray(found.read_bytes())
    content[len(content) // 2] ^= 1
    found.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{file} has changed since it was written"):
        evaluate(str(run), n=1, limit=1)


def damaged(file: Path, chance: random.Random) -> str:
    """Do one damage to a file; its name."""
    content = bytearray(file.read_bytes())
    at, kind = chance.randrange(len(content) + 1), chance.choice(KINDS)
    if kind in ("a pipe", "a device", "a folder"):
        replaced(file, kind)
    elif kind == "deleted":
        file.unlink()
    else:
        new = {"cut": b"", "empty": b"", "garbage": chance.randbytes(9) + content[at + 9 :]}
        new["bits"] = bytes([content[at % len(content)] ^ 1 << chance.randrange(8)])
        new["bits"] += content[at + 1 :]
        file.write_bytes((b"" if kind == "empty" else content[:at]) + new[kind])
    return kind


KINDS = ("cut", "bits", "garbage", "empty", "deleted", "a pipe", "a device", "a folder")
READERS = {
    "report": rlobj.report,
    "diagnose": rlobj.diagnose,
    "inspect": rlobj.inspect,
    "page": rlobj.write_inspection_page,
    "replay": lambda run: rlobj.replay(run, ["grpo", "prob < 0.5"]),
    "resume": lambda run: rlobj.resume(run, settings={"training.steps": 3}),
    "best": lambda run: find_model(str(run), checkpoint="best"),
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_damage_anywhere_is_an_error_of_ours_or_none(finished, tmp_path, reader):
    """`within` finds what hangs; an error of another kind would be a traceback."""
    chance = random.Random(reader)
    files = sorted(file.relative_to(finished) for file in finished.rglob("*") if file.is_file())
    for number in range(25):
        copy = Path(shutil.copytree(finished, tmp_path / str(number)))
        name = chance.choice([file for file in files if file.name != ".lock"])
        kind = damaged(copy / name, chance)
        error = failure(READERS[reader], copy)
        assert error is None or any(part in error for part in (*name.parts, *EMPTY)), (name, kind)


EMPTY = ("no step", "no finished step", "no record", "no checkpoint", "is not a run")


def failure(read: Callable[[Path], object], run: Path) -> str | None:
    """The message of our error, if there is one; any other is raised."""
    try:
        with within(60):
            read(run)
    except RlobjError as error:
        return str(error)
    return None
