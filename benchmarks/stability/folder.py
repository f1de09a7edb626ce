"""The folder of a study: for one process at a time, and of one version and configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.stability.analysis import outcome
from benchmarks.stability.runs import Run, found, resolved
from rlobj.base.errors import RunError
from rlobj.base.files import lock_folder, write_whole
from rlobj.config.layers import flattened
from rlobj.config.resuming import RESUMABLE_SETTINGS
from rlobj.config.run_folder import CONFIG_FILE, read_settings

FILE = "study.json"
FORMAT = 1
REPORT = "report"
BESIDE = (".lock", REPORT, FILE)
"""What a study's folder has beside its runs."""
IGNORED = (*RESUMABLE_SETTINGS, "model.name")
"""Settings that do not change results, and the path of the policy, which the task names."""
SHOWN = 5
"""Differences that a refusal shows."""


def facts() -> dict[str, Any]:
    """What all runs of a study share beside their configurations."""
    names = ("rlobj", "torch", "transformers")
    versions = {name: version(name).partition("+")[0] for name in names}
    return {"format": FORMAT, "device": "cpu", "versions": versions}


def refuse_other(runs: Path) -> list[Run]:
    """Check that a folder is that of this study, and return the runs that it holds.

    A folder without study.json is accepted if its runs have the configurations of this study.

    Raises:
        RunError: a file, a folder of something else, or a study of another version or
            configuration; with what differs.
    """
    if not runs.exists():
        return []
    if not runs.is_dir():
        raise RunError(f"{runs} is a file; expected the folder of a study, or a new folder")
    held = found(runs)
    here = facts()
    made = _read(runs / FILE) if (runs / FILE).exists() else here
    differing = [
        f"{name}: {a!r} in the folder, {b!r} here"
        for name, a, b in _compared(flattened(made), flattened(here))
    ]
    others = [each.name for each in sorted(runs.iterdir()) if each.name not in BESIDE]
    if others and not held and not (runs / FILE).exists() and not list(runs.glob("*/*/*.log")):
        raise RunError(
            f"{runs} is not the folder of a study: it has {', '.join(others[:3])}. "
            "Name a new folder: --runs NEW"
        )
    if not differing:
        differing = _configurations(runs, held)
    if differing:
        shown = "".join(f"\n  {each}" for each in differing[:SHOWN])
        more = f"\n  and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise RunError(
            f"{runs} is a study of another version or configuration:{shown}{more}\n"
            "Its runs cannot be compared with those of this version. Name a new folder: --runs NEW"
        )
    return held


def _read(file: Path) -> dict[str, Any]:
    try:
        made = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = None
    if not isinstance(made, dict):
        raise RunError(f"{file} is damaged: expected JSON such as {json.dumps(facts())}")
    return made


def _compared(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings that differ; a run has values for those that are auto."""
    names = [name for name in {**left, **right} if not name.startswith(IGNORED)]
    names = [name for name in names if right.get(name) != "auto"]
    return [(n, left.get(n), right.get(n)) for n in names if left.get(n) != right.get(n)]


def _configurations(runs: Path, held: list[Run]) -> list[str]:
    """How the configurations of ended runs differ from what they would be now."""
    texts: dict[tuple[Any, ...], list[tuple[str, Any, Any]]] = {}
    differing = []
    for run in held:
        out = run.folder(runs)
        if not driver.ended(out) or not (out / CONFIG_FILE).is_file():
            continue
        text, seed = (out / CONFIG_FILE).read_text(encoding="utf-8"), f"\nseed: {run.seed}\n"
        key = run.setting, run.condition, text.replace(seed, "\n")
        if key not in texts:  # reading YAML is slow, and seeds share their text
            ours = {**resolved(run.setting, run.condition), "seed": run.seed}
            texts[key] = _compared(flattened(read_settings(out)), flattened(ours))
        for name, was, now in texts[key]:
            differing.append(f"{out.relative_to(runs)}: {name} is {was!r}, and would be {now!r}")
    return differing


def forget_partial(runs: Path, held: list[Run]) -> None:
    """Take the mark of runs that ended without whole metrics, so that they start again."""
    for run in held:
        out = run.folder(runs)
        if driver.ended(out) == driver.DONE and outcome(out) is None:
            (out / driver.DONE).unlink()


def failed(runs: Path) -> list[Path]:
    """The folders of the runs that failed."""
    return [mark.parent for mark in sorted(runs.glob(f"*/*/*/{driver.FAILED}"))]


def forget_failed(runs: Path) -> None:
    """Delete the runs that failed, so that they start again."""
    for out in failed(runs):
        shutil.rmtree(out)


@contextmanager
def opened(runs: Path) -> Iterator[None]:
    """Keep a study's folder for this process, and write study.json into a new one.

    Raises:
        RunError, ConfigError: as `refuse_other`, or another process trains in the folder.
    """
    refuse_other(runs)
    with lock_folder(runs, "training the study in"):
        forget_partial(runs, refuse_other(runs))
        if not (runs / FILE).exists():
            write_whole(runs / FILE, json.dumps(facts(), indent=1).encode() + b"\n")
        yield
