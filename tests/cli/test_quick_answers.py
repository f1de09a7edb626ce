"""Help, lists and refusals come at once: they do without torch."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 1.5
"""CPU seconds, user and system, that an answer may cost; it takes 0.25, and 0.9 with settings."""

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from rlobj_cli.app import app, defer

defer("torch")
runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})
heavy = {"torch._C", "transformers", "datasets", "pyarrow", "vllm", "accelerate"}
for line in sys.stdin:
    result = runner.invoke(app, line.split(), prog_name="rlobj")
    print(json.dumps([result.exit_code, result.output, sorted(heavy & set(sys.modules))]))
"""

HELP = (
    *("--help", "--version", "train --help", "eval --help", "estimate --help"),
    *("eval compare --help", "presets --help", "explain --help", "doctor --help", "serve --help"),
    *("report --help", "watch --help", "presets list", "presets diff dapo stapo"),
    *("explain stapo", "presets schema"),
)
FILE = Path(__file__).with_name("refused.jsonl")
REFUSED = [*map(json.loads, FILE.read_text(encoding="utf-8").splitlines())]
"""A command line, and words of the refusal."""
READERS = ("replay", "inspect", "report", "diagnose", "watch")
"""Commands that read records, and import pyarrow for it."""


def answers(commands: list[str], folder: Path, allowed: list[str]) -> list[tuple[int, str]]:
    """The exit code and the output of each command, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for words, line in zip(commands, done.stdout.splitlines(), strict=True):
        code, output, imported = json.loads(line)
        assert imported in ([], allowed), f"rlobj {words} imports {imported}"
        found.append((code, " ".join(output.replace("│", " ").split())))
    return found


def test_help_lists_and_refusals_do_without_heavy_packages(tmp_path: Path) -> None:
    for allowed in ([], ["pyarrow"]):
        refused = [row for row in REFUSED if row[0].startswith(READERS) == bool(allowed)]
        helped = [] if allowed else [*HELP]
        found = answers([*helped, *(words for words, _ in refused)], tmp_path, allowed)
        for words, (code, output) in zip(helped, found, strict=False):
            assert code == 0, (words, output)
        for (words, message), (code, output) in zip(refused, found[len(helped) :], strict=True):
            assert code == 2, (words, output)
            assert message in output, (words, output)


@pytest.mark.parametrize("words", ["--help", "presets list", REFUSED[14][0], "inspect nowhere"])
def test_an_answer_costs_little(words: str, tmp_path: Path) -> None:
    """In one of three tries, in a process of its own."""
    spent = []
    while len(spent) < 3 and min(spent, default=SECONDS) >= SECONDS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "rlobj_cli", *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < SECONDS
