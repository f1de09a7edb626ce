"""Bad input of every command: exit code 2, nothing written, and words that help."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rlobj
from rlobj.base.errors import RlobjError
from rlobj_cli.app import app

runner = CliRunner(env={"COLUMNS": "250", "TERM": "dumb"})

FILES = {
    "rows.jsonl": '{"problem": "3,4=", "answer": "4"}\n',
    "empty.yaml": "",
    "broken.yaml": "a: [1\n",
    "reward.py": "def score(response, answer, **columns):\n    return 1\n",
    "wrong.py": "def (:\n",
    "folder/notes.txt": "",
    "evals/settings.json": '{"benchmarks": {}}',
}

SETTINGS = {
    "training.learning_rate=0": "should be greater than 0, got 0",
    "training.learning_rate=nan": "should be a finite number, got 'nan'",
    "training.betas=[0.9,1]": "training.betas.1 (from --set): Input should be less than 1",
    "training=3": "expected a mapping of settings, as in {name: value}, got 3",
    "training.updates_per_step=999": "expected at most sampling.prompts_per_step, 32",
    "sampling.group_size=1": "1 response per prompt, and group_normalized compares the responses",
    "sampling.temperature=0": "all responses of a group are equal",
    "data.system=hi": "prompts go through no chat template",
    "data.template=hello": "the template 'hello' does not contain {prompt}",
    "objective.surrogate=clipp": "kind 'clipp' is unknown. Did you mean 'clip'?",
    "scores.teacher.server=file:///etc/passwd": "scores.teacher.server (from --set): 'file:///etc/p",
    "'objective.drop=probb < 0.1'": "unknown name 'probb'. Did you mean 'prob'?",
}
"""A setting of `rlobj train --preset grpo --dry-run`, and words of the refusal."""

COMMANDS = {
    "train --preset grpo extra": "unexpected extra argument",
    "train --preset grpo --data scratchpd": "Did you mean 'scratchpad'?",
    "train --preset grpo --data rows.jsonl": "needs a model: --model",
    "train --preset grpo --data x.jsonl": "there is no file 'x.jsonl'",
    "train --preset grpo --model a/b --dry-run": "needs problems: use --data FILE.jsonl",
    "train --preset grpo --model rows.jsonl --data rows.jsonl": "a folder, a GGUF file or a hub id",
    "train --preset grpo --model folder --data rows.jsonl": "is a folder without config.json",
    "train --preset grpo --model no.gguf --data rows.jsonl": "there is no GGUF file 'no.gguf'",
    "train --preset grpo --model embedded --data folder --out run": "no file with 'train'",
    "train --preset grpo --sampler vllm --set sampling.async_depth=1": "expected 0 with engine",
    "train --preset grpo --set training.offload=cpu --out run": "Use --set training.strategy=zero2",
    "train --preset grpo --reward wrong.py:score --dry-run": "SyntaxError: invalid syntax",
    "train --preset grpo --out rows.jsonl": "cannot write to",
    "train --preset grpo --config folder": "is a folder, not a YAML file",
    "train --preset grpo --config empty.yaml": "is empty; expected keys such as base",
    "serve embedded --lora-rank 600": "should be less than or equal to 512",
    "resume rows.jsonl": "it is a file, and a run is a folder",
    "resume folder": "it has no config.resolved.yaml",
    "eval embedded --on rows.jsonl --set evaluation.top_p=0": "should be greater than 0, got 0",
    "eval embedded --environment calculator --tools python": "environment.tools (from --tools): ",
    "eval evals": "evals is an evaluation. To see its results: rlobj eval show evals",
    "eval compare folder no": "folder is not an evaluation",
    f"diagnose {'a' * 300}": "no such path: [Errno 36] File name too long",
    f"train --preset {'a' * 300} --dry-run": "no such path: [Errno 36] File name too long",
    f"train --preset grpo --out {'a' * 300}": "File name too long",
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the rows name, in the current folder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        *((f"train --preset grpo --dry-run --set {k}", words) for k, words in SETTINGS.items()),
        *COMMANDS.items(),
    ],
)
def test_bad_input_ends_with_code_2_and_words_that_help(line, words, tmp_path):
    result = runner.invoke(app, shlex.split(line))
    text = " ".join(result.output.split())
    assert result.exit_code == 2, text
    assert words in text
    assert "Traceback" not in text
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.*")}
    assert {name for name in left if "__pycache__" not in name} == set(FILES)


@pytest.mark.parametrize("setting", ["sampling.group_size=1", "training.learning_rate=nan"])
def test_python_refuses_in_the_same_words(setting: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(RlobjError) as error:
        rlobj.train("grpo", settings={name: float(value)}, out="run")
    assert SETTINGS[setting].partition(", got")[0] in str(error.value)
    assert not Path("run").exists()
