"""The runs of the study: each in a process of its own with one thread, trained once.

A run's folder is DIR/SETTING/CONDITION/SEED. It keeps config.resolved.yaml, metrics.jsonl, its log,
and at the end `done` (its seconds) or `failed` (how its process ended).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.stability import regimes
from benchmarks.stability.conditions import CONDITIONS, objective
from benchmarks.stability.regimes import Setting
from rlobj.base.errors import RunError
from rlobj.config.run_folder import CONFIG_FILE, read_metrics

KEPT = ("config.resolved.yaml", "metrics.jsonl", driver.LOG)
PRELOADED = ("benchmarks.warm",)


@dataclass(frozen=True)
class Run:
    """One training run."""

    setting: Setting
    condition: str
    seed: int

    def folder(self, runs: Path) -> Path:
        """Where it is, below the folder of the study."""
        return runs / str(self.setting) / folder_name(self.condition) / str(self.seed)


def folder_name(condition: str) -> str:
    """The name of the folder with the runs of a condition."""
    return condition.replace(",", "").replace(" ", "-")


def found(runs: Path) -> list[Run]:
    """The runs with a folder in a study, whether they ended or not, in the order of their names.

    Raises:
        RunError: a folder is none of a run that this version knows.
    """
    known, each = {folder_name(name): name for name in CONDITIONS}, []
    for out in sorted(path for path in runs.glob("*/*/*") if path.is_dir()):
        setting, name, seed = (part.name for part in (out.parents[1], out.parent, out))
        parsed = Setting.named(setting)
        if parsed is None or name not in known or not seed.isdecimal():
            raise RunError(
                f"{out} is no run of this version of the study: its folder must have the form "
                f"SETTING/CONDITION/SEED, such as {regimes.AXIS[0]}/grpo/0. Choose another folder, "
                "or use the version that made it"
            )
        each.append(Run(parsed, known[name], int(seed)))
    return each


def whole_metrics(out: Path) -> list[dict[str, Any]] | None:
    """The metrics of a run with all its steps, evaluated before the first and after the last.

    None if a line is missing or damaged, or if the run's configuration is missing. Such a run does
    not count, and is trained again.
    """
    setting, lines = Setting.named(out.parents[1].name), read_metrics(out)
    if setting is None or not (out / CONFIG_FILE).is_file():
        return None
    if [line.get("step") for line in lines] != list(range(setting.steps + 1)):
        return None
    return lines if all("eval/accuracy" in lines[end] for end in (0, -1)) else None


def train(run: Run, out: Path) -> Mapping[str, Any]:
    """Train a run from its beginning in this process."""
    import rlobj

    settings = run.setting.settings(run.seed)
    of = objective(run.condition)
    result = rlobj.train(of, data=run.setting.task, out=out, settings=settings)
    if result.steps < run.setting.steps:
        raise RunError(f"the run was stopped after {result.steps} of {run.setting.steps} steps")
    if whole_metrics(out) is None:
        raise RunError("metrics.jsonl lacks steps, or the evaluation of the first or last")
    return {}


def make(runs: Path, study: Sequence[Run], jobs: int, tell: Callable[[Run, str], None]) -> None:
    """Train the runs that are neither done nor failed, some at one time.

    Args:
        runs: folder of the study.
        study: the runs; the first ones start first.
        jobs: runs at one time.
        tell: gets each run that starts or ends, and "running", "done" or "failed: ...".
    """
    driver.make(
        [driver.Job(run.folder(runs), partial(train, run), KEPT) for run in study],
        jobs,
        lambda number, state: tell(study[number], state),
        preload=PRELOADED,
    )


@cache
def resolved(setting: Setting, condition: str) -> dict[str, Any]:
    """The settings that a run would have now, without its seed."""
    from rlobj.config.layers import layers_of, nested
    from rlobj.config.run_config import build_config, settings_of
    from rlobj.training.loop.opening import CallerInputs

    own = {"objective": objective(condition).model_dump(mode="json", by_alias=True)}
    layers = [("objective", own), *CallerInputs(data=setting.task).layers()]
    layers += [("settings", nested(path, value)) for path, value in setting.settings(0).items()]
    return settings_of(build_config(layers_of(None, layers)))
