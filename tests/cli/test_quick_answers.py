"""Help and lists do without torch; no help, list or refusal loads what it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from screens import COMMANDS

PROGRAM = """
import json, sys
from typer.testing import CliRunner
from rlobj_cli.app import app

runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})
heavy = {"torch", "transformers", "datasets", "pyarrow", "vllm", "accelerate"}
for line in sys.stdin:
    result = runner.invoke(app, line.split(), prog_name="rlobj")
    print(json.dumps([result.exit_code, result.output, sorted(heavy & set(sys.modules))]))
"""

HELP = ("--help", "--version", "presets list", *(f"{' '.join(each)} --help" for each in COMMANDS))
"""Command lines that import nothing heavy."""
SETTINGS = ("presets diff dapo stapo", "presets show stapo", "presets schema")
"""Command lines that read settings or objectives, which need torch."""
FILE = Path(__file__).with_name("refused.jsonl")
REFUSED = [*map(json.loads, FILE.read_text(encoding="utf-8").splitlines())]
"""A command line, and words of the refusal."""
READERS = ("replay", "inspect", "report", "diagnose")
"""Commands that read records, and import pyarrow and torch for it."""


def answers(commands: list[str], folder: Path, allowed: set[str]) -> list[tuple[int, str]]:
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
        assert {*imported} <= allowed, f"rlobj {words} imports {imported}"
        found.append((code, " ".join(output.replace("│", " ").split())))
    return found


def test_help_and_lists_import_nothing_heavy(tmp_path: Path) -> None:
    for words, (code, output) in zip(HELP, answers([*HELP], tmp_path, set()), strict=True):
        assert code == 0, (words, output)


@pytest.mark.slow
def test_explanations_import_torch_and_nothing_else_heavy(tmp_path: Path) -> None:
    found = answers([*SETTINGS], tmp_path, {"torch"})
    for words, (code, output) in zip(SETTINGS, found, strict=True):
        assert code == 0, (words, output)


@pytest.mark.parametrize("allowed", [{"torch"}, {"torch", "pyarrow"}], ids=["others", "readers"])
def test_refusals_load_no_model_library(allowed: set[str], tmp_path: Path) -> None:
    refused = [row for row in REFUSED if row[0].startswith(READERS) == ("pyarrow" in allowed)]
    found = answers([words for words, _ in refused], tmp_path, allowed)
    for (words, message), (code, output) in zip(refused, found, strict=True):
        assert code == 2, (words, output)
        assert message in output, (words, output)
