"""The oldest version of TRL that `rlobj[trl]` admits; the other tests use the newest."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
import trl
from integrations.trl_runs import Gradients, GRPOTrainer, config, handed_over, trainer, weights

import rlobj.integrations.trl
from rlobj import ConfigError
from rlobj.integrations.trl import ObjectiveTrainer
from rlobj.integrations.trl.rollout import PASSED


def gradient(folder: Path, objective: str, size: int) -> torch.Tensor:
    """The gradients of two updates of 16 responses, in micro-batches of this size."""
    found = Gradients()
    split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 16 // size}
    args = config(folder, max_steps=2, **split)
    trainer(ObjectiveTrainer, args, objective=objective, callbacks=[found], record=False).train()
    return torch.cat(found.found)


def difference(folder: Path, objective: str) -> float:
    """The largest difference of gradients in two sizes of micro-batches, relative to them."""
    whole, parts = (gradient(folder, objective, size) for size in (16, 4))
    return float((whole - parts).abs().max() / whole.abs().max())


def same_to_the_bit(folder: Path, **settings: Any) -> bool:
    """Whether `dapo-loss` gives TRL's own weights after two updates of 16 responses."""
    args = {"epsilon_high": 0.28, "loss_type": "dapo", "gradient_accumulation_steps": 2}
    args |= {"max_steps": 2, **settings}
    theirs = trainer(GRPOTrainer, config(folder, **args))
    theirs.train()
    ours = trainer(ObjectiveTrainer, config(folder, **args), objective="dapo-loss", record=False)
    ours.train()
    return torch.equal(weights(theirs), weights(ours))


def evaluated(folder: Path) -> float:
    """The loss of an evaluation."""
    args = config(folder, per_device_eval_batch_size=8, max_steps=1)
    one = trainer(ObjectiveTrainer, args, objective="stapo", record=False)
    return one.evaluate(one.train_dataset.select(range(4)))["eval_loss"]


def measured(folder: Path) -> dict[str, Any]:
    """What the version of TRL that is first on the path does."""
    return {
        "version": trl.__version__,
        "dapo": same_to_the_bit(folder),
        "dapo, two rounds": same_to_the_bit(folder, num_iterations=2),
        "20-entropy": difference(folder, "20-entropy"),
        "entropy bonus": difference(folder, "gdpo"),
        "evaluated": evaluated(folder),
        "handed over": handed_over() == [*PASSED],
    }


@pytest.mark.slow
def test_the_oldest_version_of_trl(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    version = "1.13.0"
    folder = pytestconfig.cache.mkdir(f"trl-{version}")
    if not (folder / "trl").exists():
        install(version, folder)
    modules = forked.TEST_MODULES["PYTHONPATH"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), modules])}
    done = forked.run([__file__, str(tmp_path)], env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"] == version
    assert found["handed over"]
    assert found["dapo"]
    assert found["dapo, two rounds"]
    assert max(found["20-entropy"], found["entropy bonus"]) < 1e-4
    assert abs(found["evaluated"]) < 10


def install(version: str, folder: Path) -> None:
    """Put this version alone into a folder."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--target", str(folder), f"trl=={version}"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("version", ["1.12.0", "1.17.0.dev0"])
def test_other_versions_are_refused_by_name(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / f"trl-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"has trl {version}; rlobj works with >=1\.13,<1\.17"):
        importlib.reload(rlobj.integrations.trl)


if __name__ == "__main__":  # with another version of TRL
    print(json.dumps(measured(Path(sys.argv[1]))))
