"""The runs of the study: each in a process of its own with one thread, trained once.

A run's folder is DIR/SETTING/CONDITION/SEED. It keeps config.resolved.yaml, metrics.jsonl, its log,
and at the end `done` (its seconds) or `failed` (how its process ended).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT
from benchmarks.stability.conditions import objective
from benchmarks.stability.regimes import Setting

KEPT = ("config.resolved.yaml", "metrics.jsonl", "log")
_PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: Setting
    condition: str
    seed: int

    def folder(self, runs: Path) -> Path:
        """Where it is, below the folder of the study."""
        name = self.condition.replace(",", "").replace(" ", "-")
        return runs / str(self.setting) / name / str(self.seed)


def train(run: Run, out: Path) -> None:
    """Train a run from its beginning in this process, whose output goes to the run's log."""
    import torch

    import rlobj

    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    cpu, wall = time.process_time(), time.monotonic()
    try:
        settings = run.setting.settings(run.seed)
        rlobj.train(objective(run.condition), data=run.setting.task, out=out, settings=settings)
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    facts = {
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "wall_seconds": round(time.monotonic() - wall, 1),
        "commit": os.environ.get("STABILITY_COMMIT", ""),
    }
    (out / "done").write_text(json.dumps(facts))


def make(runs: Path, study: Iterable[Run], jobs: int, tell: Callable[[Run, str], None]) -> None:
    """Train the runs that are neither done nor failed, some at one time.

    Args:
        runs: folder of the study.
        study: the runs; the first ones start first.
        jobs: runs at one time.
        tell: gets each run that ended, and "done" or why it failed.
    """
    missing = [run for run in study if not _ended(run.folder(runs))]
    if not missing:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(described, capture_output=True, text=True)
    os.environ["STABILITY_COMMIT"] = done.stdout.strip()
    _PROCESSES.set_forkserver_preload(["benchmarks.stability.warm"])

    def one(run: Run) -> None:
        out = run.folder(runs)
        process = _PROCESSES.Process(target=train, args=(run, out))
        process.start()
        process.join()
        state = "done" if (out / "done").exists() else f"failed: exit status {process.exitcode}"
        _tidy(out, state)
        tell(run, state)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, missing))


def _ended(out: Path) -> bool:
    return (out / "done").exists() or (out / "failed").exists()


def _tidy(out: Path, state: str) -> None:
    """Keep what the report reads."""
    out.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    if log.exists():
        log.replace(out / "log")
    if state != "done":
        (out / "failed").write_text(state)
    for entry in out.iterdir():
        if entry.name not in (*KEPT, "done", "failed"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


if __name__ == "__main__":
    sys.exit("start the study with: python -m benchmarks.stability")
