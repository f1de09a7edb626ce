"""The skill for coding agents: its form, and its commands, which are executed in their order."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from documents import ROOT, blocks, commands
from typer.testing import CliRunner

import rlobj
from rlobj.base.yaml import load_yaml
from rlobj_cli.app import app

SKILL = Path(rlobj.__file__).parent / "skills" / "rlobj" / "SKILL.md"


def test_the_front_matter_has_the_form_of_agent_skills() -> None:
    text = SKILL.read_text(encoding="utf-8")
    start, front, body = text.split("---\n", 2)
    fields = load_yaml(front)
    assert start == ""
    assert fields["name"] == SKILL.parent.name == "rlobj"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert 50 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    assert {*fields} <= {"name", "description", "license", "compatibility", "metadata"}
    assert body.startswith("\n# rlobj\n")
    assert len(text.splitlines()) <= 120


def test_the_pages_that_it_names_exist() -> None:
    named = re.findall(r"docs/[\w./-]+", SKILL.read_text(encoding="utf-8"))
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_file_for_agents_names_the_rules_and_the_skill() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links == ["CONTRIBUTING.md", str(SKILL.relative_to(Path(rlobj.__file__).parents[2]))]
    assert all((ROOT / link).is_file() for link in links)


def test_the_commands_that_are_not_executed_have_these_options() -> None:
    group: Any = typer.main.get_command(app)
    shown = [text for language, text, _ in blocks(SKILL) if language == "sh"]
    lines = [shlex.split(line) for text in shown for line in text.splitlines()]
    assert {words[1] for words in lines} == {"estimate", "train"}
    for _, command, *words in lines:
        group.commands[command].make_context(command, words)


@pytest.mark.slow
def test_its_commands_and_code_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text, _ in blocks(SKILL):
        if language == "yaml":
            (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, str(SKILL), "exec"), {})
    assert "(advantage > 0) & (prob < 0.01)" in capsys.readouterr().out
    printed = {}
    for words in commands(SKILL):
        done = CliRunner(env={"COLUMNS": "120", "TERM": "dumb"}).invoke(app, words)
        assert done.exit_code == 0, f"{words}: {done.output}"
        printed[" ".join(words)] = done.stdout
    assert "9 small tables" in printed["presets check mine.yaml"]
    assert "to the bit" in printed["replay runs/mine"]
    assert json.loads(printed["diagnose runs/mine --json"])["runs"][0]["findings"] == []
    assert json.loads(printed["inspect runs/mine --json"])["clauses"][0]["effect"] == "dropped"
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    for name in ("metrics.jsonl", "config.resolved.yaml", "tables"):
        assert (tmp_path / "runs" / "mine" / name).exists()
    last = json.loads((tmp_path / "runs" / "mine" / "metrics.jsonl").read_text().splitlines()[-1])
    for name in ("reward/mean", "eval/accuracy", "objective/dropped_tokens", "policy/entropy"):
        assert name in last
