"""`rlobj train`: what is refused, what a dry run shows, and real runs through the program."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import forked
import pytest
from screens import printed
from tiny import save_tiny_policy

from rlobj.base.yaml import dump_yaml
from rlobj.runs.configuration import dump_config, read_run_config
from rlobj.runs.run_folder import RunFolder
from rlobj.settings.building import compose

output = functools.partial(printed, "train")


def test_a_dry_run_shows_the_origin_of_each_setting_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ("--preset", "dapo", "--set", "training.updates_per_step=1", "--seed", "7")
    text = output(*words, "--dry-run")
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "objective.surrogate.high 0.28 preset dapo",
        "sampling.dynamic.by accuracy preset dapo",
        "data.source scratchpad embedded profile",
        "training.updates_per_step 1 --set",
        "seed 7 --seed",
    ):
        assert row in rows
    assert "sampling.max_tokens: 20480 → 40" in text
    assert "no effect: the bounds of {kind: clip, high: 0.28" in text
    assert list(tmp_path.iterdir()) == []


def test_the_header_shows_what_the_files_and_options_of_the_user_set(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "base: dapo\ntraining: {steps: 7}\nsampling: {max_tokens: 9}\n"
    )
    (tmp_path / "run.yaml").write_text("seed: 3\n")
    files = ("--preset", str(tmp_path / "mine.yaml"), "--config", str(tmp_path / "run.yaml"))
    text = output(*files, "--data", "addition", "--stop-on", "collapse", "--dry-run")
    header = " ".join(text.partition(" setting ")[0].split())
    shown = header.partition(" yours ")[2]
    assert "data.source: addition (--data)" in shown
    assert "training.stop_on: [collapse] (--stop-on)" in shown
    assert "seed: 3 (/" in shown
    assert "group_size" not in shown


def test_dry_run_shows_the_memory_and_refuses_what_cannot_fit(monkeypatch):
    words = ("--preset", "grpo", "--strategy", "zero3", "--processes", "2", "--dry-run")
    lines = output(*words).splitlines()
    [start] = [i for i, line in enumerate(lines) if "memory of a process, MiB" in line]
    assert "(zero3, processes: 2," in lines[start + 1]
    shown = {line[:28].strip(): line[28:].split() for line in lines[start:]}
    assert shown["weights"] == ["0.2"] * 4
    assert shown["moments"] == ["0.3"] * 4
    assert shown["sampler's copy"] == ["0.3"] * 4
    monkeypatch.setattr("rlobj.sizing.sizes.own_card", lambda: 2**20)
    refused = output(*words, code=2)
    assert "the GPU, less 8% for CUDA and NCCL" in refused.partition("Wrong input")[0]
    assert "a smaller model, or LoRA and fsdp2" in refused.partition("cannot fit the GPU")[2]


def test_a_resumed_run_names_the_settings_to_leave_out(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.resolved.yaml").write_text(dump_config(compose("stapo")))
    words = ("--set", "training.betas=[0,0]", "--set", "trainig.steps=3", "--sampler", "vllm")
    text = printed("resume", tmp_path, *words, code=2).strip()
    new = "A new run from its checkpoint may have others."
    assert f"Leave out: --set training.betas, --set trainig.steps. {new}" in text
    assert text.index("Leave out:") < text.index("What may change:")


def test_a_dry_run_shows_memory_and_no_share_of_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_policy(tmp_path / "policy")
    rows = [f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(60)]
    (tmp_path / "sums.jsonl").write_text("".join(rows))
    words = ("--preset", "grpo", "--model", str(tmp_path / "policy"), "--dry-run")
    sizes = ("prompts_per_step=4", "group_size=4", "max_tokens=6")
    words += tuple(word for size in sizes for word in ("--set", f"sampling.{size}"))
    data = ("--data", str(tmp_path / "sums.jsonl"), "--set", "data.template={prompt}")
    text = " ".join(output(*words, *data).split())
    assert "data.test_fraction auto auto:" in text
    assert "of 60 problems are held out" in text
    assert "It needs more" not in text
    [needed] = re.findall(r"together(?: [\d.]+){2} ([\d.]+)", text)
    memory = int(float(needed) * 1.5e6)
    monkeypatch.setattr("rlobj_cli.screen.estimating.physical_memory", lambda: memory)
    several = " ".join(output(*words, *data, "--processes", "3").split())
    assert "this machine, for each process" in several
    assert "It does not fit" in several


def test_a_model_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_policy(tmp_path / "policy")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "model_type": "unknown"}))
    words = ("--preset", "grpo", "--model", str(folder), "--data", "addition", "--dry-run")
    refusal = "transformers cannot read the config.json of"
    assert refusal in output(*words, "--set", "sampling.max_tokens=9", code=2)


# Real runs.


def program(words: Sequence[str], folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The program in its own process, away from a terminal."""
    done = forked.run(["-m", "rlobj_cli", *words], cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def write_config(folder: Path, steps: int) -> None:
    """A quick run on `max-digits` from random weights."""
    save_tiny_policy(folder / "policy")
    settings = {
        "preset": "stapo",
        "model": {"name": "policy"},
        "data": {"source": "max-digits"},
        "rewards": {"kind": "exact"},
        "sampling": {"prompts_per_step": 8, "max_tokens": 2},
        "training": {"steps": steps, "learning_rate": 1e-3, "updates_per_step": 2},
        "evaluation": {"every": 2, "samples": 2},
        "checkpoint": {"every": 2},
    }
    (folder / "run.yaml").write_text(dump_yaml(settings))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a run of four steps in it, and what the program printed."""
    folder = tmp_path_factory.mktemp("train")
    write_config(folder, 4)
    words = ["train", "--config", "run.yaml", "--out", "run"]
    command = [sys.executable, "-m", "rlobj_cli", *words]  # a new interpreter, as a user starts it
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "importing torch ...\n")
    return folder, done.stdout


def test_train_writes_a_run_and_a_log_of_plain_text(finished):
    folder, text = finished
    run = RunFolder(folder / "run")
    assert [line["step"] for line in run.lines()] == [0, 1, 2, 3, 4]
    assert not {character for character in text if ord(character) < 32} - {"\n"}
    for expected in ("STAPO, Liu et al. 2026", "step 4/4", "held-out accuracy after"):
        assert expected in text
    assert "rlobj eval run -n 4" in text
    assert "rlobj diagnose run" in text  # its responses are cut: no advice to train on
    again = program(["train", "--config", "run.yaml", "--out", "run"], folder, code=2)
    assert "run already contains a run" in again.stderr
    assert "Traceback" not in again.stderr


@pytest.mark.slow
def test_resume_extends_a_run_and_saves_the_number_of_steps(finished, tmp_path, monkeypatch):
    folder = shutil.copytree(finished[0], tmp_path / "copy")
    monkeypatch.chdir(folder)
    assert "All steps are done" in printed("resume", "run")
    done = program(["resume", "run", "--set", "training.steps=5"], folder)
    assert "from step 4 of 5\n  yours     training.steps: 5 (--set)\n" in done.stdout
    run, config = RunFolder(folder / "run"), read_run_config(folder / "run")
    assert [line["step"] for line in run.lines()] == [0, 1, 2, 3, 4, 5]
    assert config.training.steps == 5
    refused = printed("resume", "run", "--set", "training.steps=1", code=2)
    assert "run has done 5 steps" in refused


@pytest.mark.slow
def test_eval_of_a_run_uses_its_own_problems(finished, monkeypatch):
    folder, _ = finished
    done = program(["eval", "run", "-n", "3", "--limit", "10", "--out", "results"], folder)
    assert "avg@n" in done.stdout
    results = json.loads((folder / "results" / "results.json").read_text())
    [result] = results["results"].values()
    texts = (folder / "results" / "grades.jsonl").read_text().splitlines()
    grades = [json.loads(text) for text in texts]
    assert (result["problems"], len(grades)) == (10, 30)
    assert result["avg@3"] == pytest.approx(sum(g["correct"] for g in grades) / 30)
    assert len(result["pass@k"]) == 3
    assert results["settings"]["max_tokens"] == 2
    monkeypatch.chdir(folder)
    refused = printed("eval", "run", "-n", "3", "--out", "results", code=2)
    assert "results has an evaluation with other settings" in refused


def test_a_rule_without_a_value_is_mended_and_the_run_started_anew(tmp_path: Path) -> None:
    """The command that the error gives works, also before the first checkpoint."""
    write_config(tmp_path, steps=1)
    for name, shape in (("bad", "advantage / (length - length)"), ("mended", "advantage")):
        (tmp_path / f"{name}.yaml").write_text(f"base: dapo-loss\nobjective: {{shape: {shape}}}\n")
    words = ["--config", "run.yaml", "--preset", "bad.yaml", "--out", "run"]
    failed = program(["train", *words], tmp_path, code=1).stderr
    assert "'advantage / (length - length)' is NaN or infinite at row 0" in failed
    assert "Mend what the error names: a rule" in failed
    assert "rlobj resume" not in failed
    [command] = [line.split() for line in failed.splitlines() if line.startswith("  rlobj train")]
    assert command[2] == "--from"
    assert command[3] == "run"
    again = [*command[1:4], "--preset", "mended.yaml", "--out", "anew"]
    program(again, tmp_path)
    assert RunFolder(tmp_path / "anew").steps_saved() == 1
