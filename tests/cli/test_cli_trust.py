"""One rule for all commands: what a file names is imported only with --trust."""

from __future__ import annotations

from pathlib import Path

import pytest
from screens import printed

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.config.run_config import compose

CODE = """
from dataclasses import dataclass
from pathlib import Path
from rlobj import Clip, CustomRule, GroupCentered, logprob

(Path(__file__).parent / "imported").touch()

class Mine(Clip):
    pass

class Centered(GroupCentered):
    pass

@dataclass(frozen=True)
class Rare(CustomRule):
    def reads(self):
        return (logprob,)

    def select(self, frame):
        return frame.column("logprob") < -5

def score(response, answer, **columns):
    return float(response == answer)
"""
FILES = {
    "a surrogate": "base: grpo\nobjective: {surrogate: {kind: custom, target: 'FILE:Mine'}}",
    "an advantage": "base: dapo\nobjective: {advantage: {kind: custom, target: 'FILE:Centered'}}",
    "a penalty": "base: grpo\nobjective: {penalties: [{kind: custom, target: 'FILE:Mine'}]}",
    "a rule": "base: grpo\nobjective: {drop: \"custom('FILE:Rare')\"}",
    "a part of a rule": "base: grpo\nobjective: {drop: \"(prob < 0.1) & custom('FILE:Rare')\"}",
    "a reward": "base: grpo\nrewards: {kind: custom, target: 'FILE:score'}",
    "one of several rewards": "base: dapo\nrewards: [{kind: custom, target: 'FILE:score', "
    "name: a}]\n"
    "sampling: {dynamic: {by: reward}}",
    "a base": "base: ./below.yaml",
}
COMMANDS = {
    "presets show": ["presets", "show", "FILE.yaml"],
    "presets check": ["presets", "check", "FILE.yaml"],
    "presets diff": ["presets", "diff", "grpo", "FILE.yaml"],
    "explain": ["explain", "FILE.yaml"],
    "a dry run": ["train", "--preset", "FILE.yaml", "--dry-run"],
    "a dry run with a configuration": ["train", "--config", "FILE.yaml", "--dry-run"],
    "train": ["train", "--preset", "FILE.yaml", "--set", "training.steps=1"],
    "a configuration": ["train", "--config", "FILE.yaml", "--set", "training.steps=1"],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "below.yaml").write_text(FILES["a surrogate"].replace("FILE", "code.py"))


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (command, what)
        for command in COMMANDS
        for what in FILES
        if command in ("presets check", "a configuration")
        or what in ("a penalty", "a rule", "a base")
    ],
)
def test_no_command_imports_what_a_file_names(command: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "FILE.yaml").write_text(FILES[what].replace("FILE", "code.py"))
    text = printed(*COMMANDS[command], code=2, columns=250)
    assert "code.py:" in text
    assert "--trust" in text
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("what", ["a surrogate", "a part of a rule", "one of several rewards"])
@pytest.mark.parametrize(
    "command",
    [
        name
        for name in COMMANDS
        if "train" not in name and name not in ("beside", "a configuration")
    ],
)
def test_with_trust_each_command_imports_it(command: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "FILE.yaml").write_text(FILES[what].replace("FILE", "code.py"))
    printed(*COMMANDS[command], "--trust")
    assert (tmp_path / "imported").exists() or "reward" in what


def test_what_the_command_line_names_needs_no_trust(tmp_path: Path) -> None:
    again = ["--set", "objective.surrogate={kind: custom, target: 'code.py:Mine'}"]
    rule = ["--set", "objective.drop=custom('code.py:Rare')"]
    for named in (again, rule, ["--reward", "code.py:score"]):
        (tmp_path / "imported").unlink(missing_ok=True)
        printed("train", "--preset", "grpo", *named, "--dry-run")
    (tmp_path / "FILE.yaml").write_text(FILES["a rule"].replace("FILE", "code.py"))
    words = ["train", "--preset", "FILE.yaml", "--dry-run"]
    printed(*words, *again, code=2)  # the rule of the file is not named
    printed(*words, *rule)


def test_python_asks_in_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "FILE.yaml").write_text(FILES["a surrogate"].replace("FILE", "code.py"))
    with pytest.raises(ConfigError, match=r"FILE\.yaml name code: code\.py:Mine.*trust=True"):
        rlobj.train("FILE.yaml", out="run")
    assert not (tmp_path / "imported").exists()
    assert compose("FILE.yaml", trust=True).objective.surrogate.kind == "custom"


def test_a_run_is_resumed_with_its_environment_named_again(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(
        "from rlobj.conversations import Turn\n\nclass Game:\n"
        "    def reset(self, problem):\n        pass\n\n"
        "    def step(self, messages):\n        return Turn('1+', reward=1.0, done=True)\n"
    )
    words = ["train", "--preset", "grpo", "--model", policy, "--data", "max-digits", "--out", "run"]
    small = {"training.steps": 1, "sampling.prompts_per_step": 4, "sampling.max_tokens": 4}
    small |= {"sampling.group_size": 2, "evaluation.every": 0, "data.template": "{prompt}"}
    words += [word for name, x in small.items() for word in ("--set", f"{name}={x}")]
    printed(*words, "--environment", "game.py:Game")
    resume = ["train", "--resume", "run", "--set", "training.steps=2"]
    refused = printed(*resume, code=2, columns=250)
    assert "Or name it again: --environment FILE.py:CLASS" in refused
    assert "2 steps done" in printed(*resume, "--environment", "game.py:Game")
    other = printed(*resume, "--environment", "calculator", code=2, columns=250)
    assert "run was started with another environment" in other
