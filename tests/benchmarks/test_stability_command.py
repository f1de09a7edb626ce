"""The command of the study of stability, on tiny studies, with real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import forked
import psutil
import pytest
from benchmarks import driver
from benchmarks.harness import ROOT
from benchmarks.stability import folder, report
from benchmarks.stability.__main__ import main
from benchmarks.stability.plan import Asked, Study
from forked import Forked, wait_until

from rlobj.base.errors import RunError
from rlobj.base.files import lock_folder

TINY = ["-m", "benchmarks.stability", "--task", "max-digits", "--rates", "1e-3", "--jobs", "2"]
SETTING = "max-digits-rate-0.001-updates-4-steps"


def command(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return forked.run([*TINY, "--runs", str(runs), *words], cwd=ROOT)


def here(runs: Path, *words: str) -> tuple[int, str]:
    """The exit code of the command in this process, where it trains nothing, and its stderr."""
    code, before = 0, signal.getsignal(signal.SIGTERM)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as told,
    ):
        patch.setattr("sys.argv", ["stability", *TINY[2:], "--runs", str(runs), *words])
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
    return code, told.getvalue()


def marks(runs: Path, name: str) -> set[str]:
    """CONDITION/SEED of the runs that ended so."""
    return {"/".join(mark.parts[-3:-1]) for mark in runs.glob(f"*/*/*/{name}")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished study, and what the command printed."""
    runs = tmp_path_factory.mktemp("finished") / "runs"
    done = command(runs, "--steps", "2", "--seeds", "1", "--only", "dapo-loss,stapo")
    assert done.returncode == 0, done.stderr
    return runs, done.stderr


def test_each_run_is_trained_in_its_folder_and_told_in_a_line(finished: tuple[Path, str]) -> None:
    runs, told = finished
    assert marks(runs, "done") == {"dapo-loss/0", "stapo/0"}
    assert told.startswith("2 of 2 runs are to train, 1 s each (a guess from another machine")
    for name in ("dapo-loss", "stapo"):
        out = runs / f"{SETTING}-2" / name / "0"
        kept = {"config.resolved.yaml", "metrics.jsonl", "log", "done"}
        assert {entry.name for entry in out.iterdir()} == kept
        assert f"{SETTING}-2 {name} 0: done, last accuracy 0." in told
        assert json.loads((out / "done").read_text())["cpu_seconds"] > 0
    assert not list(runs.glob("*/*/*.log"))


def test_a_run_that_ended_is_not_repeated_and_a_dry_run_writes_nothing(finished):
    runs, _ = finished
    before = {file: file.stat().st_mtime_ns for file in runs.rglob("*")}
    words = ["--steps", "2", "--only", "dapo-loss,stapo", "--seeds"]
    _, dry = here(runs, *words, "2", "--dry-run")
    assert "2 of 4 runs are to train" in dry
    assert "as its 2 finished runs" in dry
    _, again = here(runs, *words, "1")
    assert "All 2 runs ended." in again
    assert "0: done" not in again
    after = {file: file.stat().st_mtime_ns for file in runs.rglob("*")}
    assert {f: t for f, t in after.items() if f.name != ".lock"} == {
        f: t for f, t in before.items() if f.name != ".lock"
    }


def trainings(study: Forked) -> list[psutil.Process]:
    """The processes of a study that train; their parent is the one that forks them."""
    every = psutil.Process(study.pid).children(recursive=True)
    parents = {each.ppid() for each in every}
    return [each for each in every if each.pid not in parents and each.ppid() != study.pid]


def test_kills_mark_only_the_run_that_was_killed(tmp_path: Path) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    words = [*TINY, "--runs", str(runs), "--steps", "20", "--seeds", "3", "--only", "grpo"]
    with log.open("w") as file:
        study = Forked(words, file, cwd=ROOT)
    started = runs / f"{SETTING}-20" / "grpo"
    both = [started / seed / "metrics.jsonl" for seed in "01"]
    wait_until(lambda: all(each.exists() for each in both), process=study, log=log)
    paused = trainings(study)
    for each in paused:
        each.suspend()
    code, two = here(runs, "--steps", "20", "--only", "grpo")
    assert code == 2
    assert "another process is training the study in" in two

    next(each for each in paused if f"{started}/0." in open_files(each)).kill()
    wait_until(lambda: marks(runs, "failed"), process=study, log=log)
    wait_until((started / "2.log").exists, process=study, log=log)
    left = trainings(study)
    study.kill()
    study.wait(60)
    for each in paused:
        if each.is_running():
            each.resume()
    assert not psutil.wait_procs(left, timeout=60)[1]
    assert marks(runs, "failed") == {"grpo/0"}
    assert "SIGKILL" in (started / "0" / "failed").read_text()
    assert (started / "0" / "log").exists()
    assert re.search(r"grpo 0: failed: .*SIGKILL(.|\n)*log: .*grpo/0/log", log.read_text())
    ended = marks(runs, "done")
    assert len(ended) < 2

    words = ["--steps", "20", "--seeds", "3", "--only", "grpo"]
    _, dry = here(runs, *words, "--dry-run")
    assert f"{2 - len(ended)} of 3 runs are to train" in dry
    assert "failed and stay so; --retry-failed starts them" in dry
    on = command(runs, *words, "--retry-failed")
    assert on.returncode == 0, on.stderr
    assert marks(runs, "done") == {"grpo/0", "grpo/1", "grpo/2"}
    assert not marks(runs, "failed")
    for seed in "012":
        lines = (started / seed / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(21))


def open_files(process: psutil.Process) -> str:
    """The paths of a process's output, and of the files that it has open."""
    return " ".join(os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir())


def test_ctrl_c_stops_the_study_without_marking_a_run(tmp_path: Path) -> None:
    runs, log = tmp_path / "runs", tmp_path / "log"
    with log.open("w") as file:
        words = [*TINY, "--runs", str(runs), "--steps", "500", "--seeds", "2", "--only", "grpo"]
        study = Forked(words, file, cwd=ROOT)
    started = runs / f"{SETTING}-500" / "grpo" / "0" / "metrics.jsonl"
    wait_until(started.exists, process=study, log=log)
    left = trainings(study)
    study.send_signal(2)
    assert study.wait(60) == 130
    assert "The same command goes on" in log.read_text()
    assert not psutil.wait_procs(left, timeout=60)[1]
    assert not marks(runs, "done") | marks(runs, "failed")


def changed(finished: tuple[Path, str], tmp_path: Path, file: str, old: str, new: str) -> Path:
    """A copy of the finished study with a file changed."""
    runs = tmp_path / "runs"
    shutil.copytree(finished[0], runs)
    target = runs / file
    text = target.read_text()
    assert old in text
    target.write_text(text.replace(old, new))
    return runs


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        (
            f"{SETTING}-2/stapo/0/config.resolved.yaml",
            "group_size: 8",
            "group_size: 4",
            "stapo/0: sampling.group_size is 4, and would be 8",
        ),
        (
            f"{SETTING}-2/stapo/0/config.resolved.yaml",
            "seed: 0",
            "seed: 7",
            "stapo/0: seed is 7, and would be 0",
        ),
        ("study.json", '"format": 1', '"format": 0', "format: 0 in the folder, 1 here"),
        ("study.json", '"device": "cpu"', '"device": "cuda"', "device: 'cuda' in the folder"),
        ("study.json", '"rlobj": "', '"rlobj": "9', "versions.rlobj: '9"),
    ],
)
def test_another_version_or_configuration_is_refused_with_what_differs(
    finished: tuple[Path, str], tmp_path: Path, file: str, old: str, new: str, told: str
) -> None:
    runs = changed(finished, tmp_path, file, old, new)
    with pytest.raises(RunError, match="another version or configuration") as refused:
        folder.refuse_other(runs)
    assert told in str(refused.value)
    assert "--runs NEW" in str(refused.value)


def test_a_setting_that_does_not_change_results_is_not_refused(finished, tmp_path):
    file = f"{SETTING}-2/stapo/0/config.resolved.yaml"
    runs = changed(finished, tmp_path, file, "records_mb: 200", "records_mb: 100")
    assert len(folder.refuse_other(runs)) == 2


def test_a_folder_without_study_json_is_accepted_if_its_runs_agree(finished, tmp_path):
    runs = changed(finished, tmp_path, "study.json", "", "")
    (runs / "study.json").unlink()
    with folder.opened(runs):
        assert json.loads((runs / "study.json").read_text()) == folder.facts()
    (runs / "study.json").unlink()
    config = runs / f"{SETTING}-2/stapo/0/config.resolved.yaml"
    config.write_text(config.read_text().replace("high: 0.28", "high: 0.3"))
    with pytest.raises(RunError, match=r"surrogate.high is 0.3, and would be 0.28"):
        folder.refuse_other(runs)


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"not the folder of a study: it has notes\.txt"):
        folder.refuse_other(tmp_path)
    with pytest.raises(RunError, match="is a file; expected the folder of a study"):
        folder.refuse_other(tmp_path / "notes.txt")
    run = tmp_path / "other" / "a" / "b" / "0"
    run.mkdir(parents=True)
    (run / "config.resolved.yaml").write_text("seed: 0\n")
    with pytest.raises(RunError, match="is no run of this version of the study"):
        folder.refuse_other(tmp_path / "other")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"step": 2', '"step": 1'),
        ('"step": 1', 'damaged {"step": 1'),
        ('"eval/accuracy": ', '"eval/other": '),
        (", ", ", "),  # the end of the file is cut below
    ],
)
def test_a_run_without_whole_metrics_does_not_count_and_starts_again(finished, tmp_path, old, new):
    file = f"{SETTING}-2/stapo/0/metrics.jsonl"
    runs = changed(finished, tmp_path, file, old, new)
    if old == new:
        (runs / file).write_bytes((runs / file).read_bytes()[:-50])
    both = ["dapo-loss", "stapo"]
    study = Study(runs, Asked(both, both, 1, task="max-digits", steps=2, rates=[1e-3]))
    [stage] = study.stages()
    assert [study.outcome(run) is None for run in stage.runs] == [False, True]
    assert "1 of 2 planned runs are missing" in report.write(runs, tmp_path / "out", study.asked)
    with folder.opened(runs):
        assert driver.ended(runs / f"{SETTING}-2/stapo/0") == ""
        assert driver.ended(runs / f"{SETTING}-2/dapo-loss/0") == "done"


def test_a_run_without_its_configuration_does_not_count(finished, tmp_path):
    runs = changed(finished, tmp_path, "study.json", "", "")
    (runs / f"{SETTING}-2/stapo/0/config.resolved.yaml").unlink()
    with folder.opened(runs):
        assert driver.ended(runs / f"{SETTING}-2/stapo/0") == ""


def test_the_report_refuses_a_study_of_another_configuration_also_while_one_trains(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    words = ["--steps", "2", "--seeds", "1", "--only", "dapo-loss,stapo", "--report", "--out"]
    file = f"{SETTING}-2/stapo/0/config.resolved.yaml"
    runs = changed(finished, tmp_path, file, "group_size: 8", "group_size: 4")
    code, refused = here(runs, *words, str(tmp_path / "out"))
    assert code == 2
    assert "sampling.group_size is 4, and would be 8" in refused
    assert not (tmp_path / "out").exists()
    with lock_folder(finished[0], "training the study in"):
        assert here(finished[0], *words, str(tmp_path / "out")) == (0, "")
    assert "2 runs ended" in (tmp_path / "out" / "stability.md").read_text()


def test_the_same_learning_rate_twice_is_one(finished: tuple[Path, str]) -> None:
    words = ["--steps", "2", "--seeds", "1", "--only", "stapo", "--rates", "1e-3,0.001"]
    assert "All 1 runs ended." in here(finished[0], *words, "--dry-run")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--only", "stapoo"], "there is no 'stapoo'. Did you mean 'stapo'?"),
        (["--also", "core,presset"], "there is no 'presset'. Did you mean 'presets'?"),
        (["--rates", "5"], "--rates '5': expected learning rates between 0 and 1, with commas"),
        (["--only", ""], "--only '': there is no ''"),
        (["--rates", ""], "--rates '': expected learning rates"),
        (["--rates", "5e-4,5.0000001e-4"], "0.00050000001 has too many digits for the name of"),
        (["--jobs", "-1"], "'-1' is not a whole number of at least 1"),
        (["--jobs", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, words: list[str], told: str) -> None:
    code, said = here(tmp_path / "runs", *words)
    assert code == 2
    assert told in " ".join(said.split())
    assert not (tmp_path / "runs").exists()
