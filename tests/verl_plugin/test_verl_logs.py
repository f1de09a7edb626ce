"""What verl's own loggers write is read by the diagnosis."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import verl
from verl.utils.tracking import Tracking

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.runs.logs import NAMES, read_log

ACCURACIES = [0.6] * 12 + [0.1] * 8


@pytest.mark.parametrize("backend", ["file", "wandb", "tensorboard"])
def test_a_collapse_is_found_in_the_log_of_each_logger(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    tracking = Tracking("project", "experiment", [backend], config={"trainer": {}})
    for step, mean in enumerate(ACCURACIES, 1):
        scores = {"critic/score/mean": np.float64(mean), "critic/score/max": 1.0}
        others = {"critic/score/min": 0.0, "actor/entropy": 0.5, "val-core/a/acc/mean@4": mean}
        tracking.log({"training/global_step": step, **scores, **others}, step=step)
    tracking.finish()
    log = read_log(tmp_path)
    assert log is not None
    assert [line["reward/mean"] for line in log.lines] == pytest.approx(ACCURACIES)
    assert [line["eval/accuracy"] for line in log.lines] == pytest.approx(ACCURACIES)
    [run] = rlobj.diagnose(tmp_path).runs
    assert "collapse" in [finding.name for finding in run.findings]
    if backend == "wandb":
        [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
        file.write_bytes(file.read_bytes()[:-2000])  # the process was killed
        cut = read_log(tmp_path)
        assert cut is not None
        assert 0 < len(cut.lines) < len(log.lines)
        file.write_bytes(file.read_bytes()[:100] + b"\xff" * 5000)
        with pytest.raises(ConfigError, match="cannot read"):
            read_log(tmp_path)


def test_verl_has_every_name_of_the_table() -> None:
    """As a text in its code, perhaps without what it adds in front."""
    files = Path(verl.__file__).parent.rglob("*.py")
    code = "\n".join(file.read_text() for file in files)
    for row in NAMES.values():
        start, _, end = row.get("verl", "").partition("/")
        name = {"val-core": "val-core", "timing_s": end}.get(start, f"{start}/{end}")
        names = (name.removesuffix("/"), name.removeprefix("actor/"))
        assert any(f'"{name}"' in code for name in names), names
