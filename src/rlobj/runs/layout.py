"""What lies in the folder of a run or of an evaluation, and how the folder of a run is named.

RUN/config.resolved.yaml     every setting of the run
RUN/metrics.jsonl            one JSON object per step
RUN/sessions.jsonl           one JSON object per start: time, step, versions, command, commit
RUN/stopped.json             the error that ended the run
RUN/samples/step-000010.parquet
RUN/records/step-000010.parquet  see `runs.recorder`
RUN/tables/step-000010-rank-0.parquet
RUN/initial/                 the policy that came from another run
RUN/checkpoints/step-000010/ see `training.checkpoint`

DIR/settings.json            everything that changes a number, and where the evaluation ran
DIR/problems.jsonl           the problems
DIR/samples.jsonl            responses, one a line, appended; see `runs.evaluation_samples`
DIR/grades.jsonl             grades, one a line, appended
DIR/samples.1.jsonl          responses of process 1, until process 0 has taken them over
"""

from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.paths import path_of, step_name, there

CONFIG_FILE = "config.resolved.yaml"
"""Holds every setting of the run; a folder with it is a run."""
METRICS_FILE = "metrics.jsonl"
SESSIONS_FILE = "sessions.jsonl"
STOP_FILE = "stopped.json"
"""Why a run ended with an error: `step`, `finding` (or null) and `message`."""
SETTINGS_FILE = "settings.json"
PROBLEMS_FILE = "problems.jsonl"
SAMPLES_FILE = "samples.jsonl"
GRADES_FILE = "grades.jsonl"
FOLDERS = ("samples", "records", "tables", "checkpoints")
"""The folders of a new run."""


def is_run(path: Path) -> bool:
    """Whether the folder holds a run."""
    return there(path / CONFIG_FILE)


def step_files(run: Path, folder: str) -> list[Path]:
    """The files of `samples`, `records` or `tables` of a run, the oldest step first."""
    return sorted((run / folder).glob("step-*.parquet"))


def table_files(run: Path, kind: str) -> list[Path]:
    """All Parquet files of `records` or `tables` of a run, or of a folder with such files in it."""
    folder = run / kind if (run / kind).is_dir() else run
    return sorted(folder.glob("*.parquet"))


def step_file(run: Path, folder: str, step: int) -> Path:
    """The file of a step in `samples` or `records` of a run."""
    return run / folder / f"{step_name(step)}.parquet"


def rank_table(run: Path, step: int, rank: int) -> Path:
    """The file of all tokens of a step that a rank writes."""
    return run / "tables" / f"{step_name(step)}-rank-{rank}.parquet"


def named_folder(path: Path) -> Path:
    """The folder that names a run: the run's, or that of the trainer for its record `_rlobj`."""
    path = path.resolve()
    return path.parent if path.name == "_rlobj" and not is_run(path.parent) else path


def in_another_trainer(path: Path) -> bool:
    """Whether the folder is the record of a run in another trainer, which has the checkpoints."""
    return is_run(path) and not (path / "checkpoints").is_dir()


def how_to_continue(path: Path) -> str:
    """What continues the run in a folder: a sentence without its end."""
    if in_another_trainer(path):
        return (
            "It is the record of a run in another trainer. To continue that run, start its script "
            "again; in TRL, with trainer.train(resume_from_checkpoint=True)"
        )
    return f"Resume it with: rlobj resume {path}"


def run_paths(runs: Any) -> list[Path]:
    """The folders of one run or of several runs, as a caller names them.

    Raises:
        ConfigError: no path, something else, or a text that can be no path.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        raise ConfigError(f"runs is {runs!r}; expected the folder of a run, or a list of them")
    return list(map(path_of, paths))
