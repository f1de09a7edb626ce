"""Code that a person names is imported, and code of a folder only with --trust."""

from __future__ import annotations

from pathlib import Path

import pytest
from screens import printed

import rlobj
from rlobj.base.yaml import dump_yaml, load_yaml

CODE = """
from dataclasses import dataclass
from pathlib import Path
from rlobj import Clip, CustomRule, GroupCentered, logprob

(Path(__file__).parent / "imported").touch()

class Mine(Clip):
    "S = mine."

class Mean(GroupCentered):
    pass

@dataclass(frozen=True)
class Rare(CustomRule):
    factor: float = 1.0

    def reads(self):
        return (logprob,)

    def select(self, frame):
        return frame.number(logprob) < -5

def score(response, answer, **columns):
    return {"reward": float(response == answer), "correct": response == answer}
"""
FILES = {
    "a surrogate": "base: grpo\nobjective: {surrogate: {kind: custom, target: 'code.py:Mine'}}",
    "an advantage": "base: dapo\nobjective: {advantage: {kind: custom, target: 'code.py:Mean'}}",
    "a penalty": "base: grpo\nobjective: {penalties: [{kind: custom, target: 'code.py:Mine'}]}",
    "a rule": "base: grpo\nobjective: {drop: \"(prob < 0.1) & custom('code.py:Rare', factor=2)\"}",
    "a reward": "base: grpo\nrewards: {kind: custom, target: 'code.py:score'}",
    "one of several rewards": "base: dapo\nrewards: [{kind: custom, target: 'code.py:score', "
    "name: a}]\nsampling: {dynamic: {by: reward}}",
    "a column": "base: grpo\ncolumns: {mine: 'code.py:score'}\nobjective: {reweight: mine}",
    "a base": "base: ./below.yaml",
}
SHORT = ["--set", "sampling.max_tokens=40"]
READING = {
    "presets show": ["presets", "show", "FILE.yaml"],
    "presets check": ["presets", "check", "FILE.yaml"],
    "presets diff": ["presets", "diff", "grpo", "FILE.yaml"],
    "a dry run": ["train", "--preset", "FILE.yaml", "--dry-run"],
    "estimate": ["estimate", "--model", "embedded", "--gpus", "80", "--preset", "FILE.yaml"],
    "a dry run with a configuration": ["train", "--config", "FILE.yaml", *SHORT, "--dry-run"],
}
SMALL = {"training.steps": 1, "sampling.prompts_per_step": 2, "sampling.group_size": 2}
SMALL |= {"evaluation.every": 0, "output.tables_every": 1, "sampling.max_tokens": 1}
TRAIN = ["train", "--data", "max-digits"] + [
    word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "below.yaml").write_text(FILES["a surrogate"])
    return tmp_path


def imported() -> bool:
    """Whether the code was imported since this was asked last."""
    marker = Path("imported")
    found = marker.exists()
    marker.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", READING)
def test_what_only_reads_imports_nothing_that_a_file_names(command: str, what: str) -> None:
    Path("FILE.yaml").write_text(FILES[what])
    text = printed(*READING[command], columns=250)
    assert not imported()
    assert "--trust" not in text
    if command == "presets check":
        assert "does not execute code.py:" in text
    if command == "presets diff" and what == "a rule":
        assert "code.py:Rare', factor=2)" in "".join(text.split("\n"))
    if command == "presets show" and what == "a base":
        assert "code.py:Mine, which is not imported here" in text


@pytest.mark.parametrize("file", ["--preset", pytest.param("--config", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["a surrogate", "a rule", "a base"])
def test_a_run_imports_what_a_named_file_names_and_says_so(file: str, what: str) -> None:
    Path("FILE.yaml").write_text(FILES[what])
    text = printed(*TRAIN, file, "FILE.yaml", "--out", "run", columns=200)
    line = f"  code      executes code.py:{'Rare' if what == 'a rule' else 'Mine'}"
    assert line in map(str.rstrip, text.splitlines())  # below the other facts
    assert imported()


def test_a_dry_run_tries_what_the_command_line_itself_names() -> None:
    Path("FILE.yaml").write_text(FILES["a rule"])
    dry = ["train", "--preset", "FILE.yaml", "--dry-run"]
    surrogate = ["--set", "objective.surrogate={kind: custom, target: 'code.py:Mine'}"]
    text = printed(*dry, *surrogate, columns=200)
    assert "  code      executes code.py:Mine; does not execute code.py:Rare" in text
    assert "S = mine." in text
    assert imported()
    assert "executes code.py:score" in printed(*dry, "--reward", "code.py:score", columns=200)
    assert imported()


@pytest.fixture
def run(folder: Path) -> str:
    """A run whose objective and reward are code, which would tell if it was imported again."""
    Path("own.yaml").write_text(FILES["a rule"])
    settings = {**SMALL, "data.source": "max-digits"}
    rlobj.train("own.yaml", reward="code.py:score", out="run", settings=settings)
    (folder / "code.py").write_text(CODE + "\n# changed: a file is imported once\n")
    imported()
    return "run"


def test_code_of_a_run_is_imported_only_with_trust(run: str) -> None:
    for words in (
        ["resume", run, "--set", "training.steps=2"],
        ["train", "--from", run, "--out", "new"],
        ["train", "--from", run, "--out", "new", "--reward", "code.py:score"],
        ["eval", run, "-n", "1", "--limit", "2"],
        ["replay", run, "--preset", "grpo"],
    ):
        text = printed(*words, code=2, columns=250)
        assert "name code" in text
        assert "add --trust" in text
        assert not imported(), words
    assert "executes code.py:score\n" in printed("eval", run, "-n", "1", "--limit", "2", "--trust")
    text = printed("resume", run, "--set", "training.steps=2", "--trust", columns=200)
    line = "  code      executes code.py:Rare, code.py:score"
    assert line in map(str.rstrip, text.splitlines())
    assert imported()
    for command in ("replay run --preset grpo,stare", "eval run -n 4"):
        assert f"rlobj {command} --trust\n" in text


def test_what_reads_a_run_never_asks(run: str) -> None:
    text = printed("diagnose", run) + printed("report", run) + printed("inspect", run)
    assert "--trust" not in text
    assert not imported()


@pytest.mark.slow
def test_code_of_the_training_is_not_asked_for_where_nothing_uses_it(run: str) -> None:
    assert "eval/" not in printed("eval", run, "-n", "1", "--limit", "2", "--reward", "exact")
    printed("train", "--from", run, "--out", "new", "--preset", "grpo", "--reward", "exact")
    assert not imported()
    plain = printed(*TRAIN, "--preset", "grpo", "--reward", "code.py:score", "--out", "plain")
    assert "rlobj replay plain --preset grpo,stare\n" in plain
    assert "rlobj eval plain -n 4 --trust\n" in plain
    imported()
    printed("replay", "plain", "--preset", "own.yaml")  # a file that the caller names
    assert imported()


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("rewards", {"kind": "custom", "target": "code.py:score"}),
        ("environment", {"target": "code.py:score"}),
        ("model", {"trust_remote_code": "on"}),
    ],
)
def test_a_run_that_another_person_has_changed_imports_nothing(
    section: str, changes: dict[str, str]
) -> None:
    printed(*TRAIN, "--preset", "grpo", "--out", "run")
    file = Path("run/config.resolved.yaml")
    settings = load_yaml(file.read_text())
    settings[section] = changes if section == "rewards" else settings[section] | changes
    file.write_text(dump_yaml(settings))
    for words in (
        ["eval", "run", "-n", "1"],
        ["resume", "run"],
        ["train", "--from", "run"],
    ):
        assert "add --trust" in printed(*words, code=2, columns=250)
    assert "--trust" not in printed("train", "--from", "run", "--dry-run", columns=250)
    printed("diagnose", "run")
    assert not imported()


def test_a_setting_of_the_wrong_type_in_a_run_folder_is_an_error_of_that_setting() -> None:
    printed(*TRAIN, "--preset", "grpo", "--out", "run")
    file = Path("run/config.resolved.yaml")
    settings = load_yaml(file.read_text())
    settings["environment"]["tools"] = "python"
    file.write_text(dump_yaml(settings))
    for words in (["resume", "run"], ["train", "--from", "run"]):
        text = printed(*words, code=2, columns=250)
        assert "environment.tools" in text
        assert "name code" not in text


@pytest.mark.slow
def test_code_of_the_folder_of_an_evaluation_is_imported_only_with_trust() -> None:
    words = ["eval", "embedded", "--on", "max-digits", "-n", "1", "--limit", "2", "--out", "own"]
    assert "  executes code.py:score\n" in printed(*words, "--reward", "code.py:score")
    assert imported()
    refused = printed("eval", "regrade", "own", code=2, columns=250)
    assert f"the settings of own name code: {Path('code.py').resolve()}:score" in refused
    printed("eval", "show", "own")
    assert not imported()
    printed("eval", "regrade", "own", "--reward", "code.py:score")
    assert imported()
    printed("eval", "regrade", "own", "--trust", "--out", "again")
    assert imported()


def test_a_run_is_resumed_with_its_environment_if_it_is_trusted(policy: Path, folder: Path) -> None:
    (folder / "game.py").write_text(
        "from rlobj.conversations import Turn\n\nclass Game:\n"
        "    def reset(self, problem):\n        pass\n\n"
        "    def step(self, messages):\n        return Turn('1+', reward=1.0, done=True)\n"
    )
    words = ["train", "--preset", "grpo", "--model", policy, "--data", "max-digits", "--out", "run"]
    small = {**SMALL, "sampling.max_tokens": 4, "data.template": "{prompt}"}
    words += [word for name, x in small.items() for word in ("--set", f"{name}={x}")]
    printed(*words, "--environment", "game.py:Game")
    resume = ["resume", "run", "--set", "training.steps=2"]
    assert "add --trust" in printed(*resume, code=2, columns=250)
    assert "2 steps done" in printed(*resume, "--trust")
