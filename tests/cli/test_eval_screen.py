"""The numbers of an evaluation on screen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from screens import console, text_of

from rlobj.evaluation import score, summarise_folder
from rlobj_cli.screen.progress import EvaluationScreen


def test_the_screen_and_the_markdown_show_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        json.dumps({"id": i, "prompt": f"Q{i}?", "answer": "4", "response": said})
        for i, said in enumerate("4445")
    ]
    Path("a.jsonl").write_text("\n".join(rows))
    score("a.jsonl", reward="exact", out=tmp_path / "a")
    screen = console()
    summarise_folder(tmp_path / "a", callback=EvaluationScreen(screen))
    [row] = [line for line in text_of(screen).splitlines() if "avg@n" in line]
    assert row.split() == ["avg@n", "75.0"]
    assert "| avg@n | 75.0 |" in (tmp_path / "a" / "results.md").read_text()


def test_what_is_missing_stands_above_the_results(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "answer": "4", "response": "4"}))
    result = score(tmp_path / "a.jsonl", reward="exact", out=tmp_path / "a")
    screen = console()
    more = replace(result.benchmarks["a"], settings={"problems": 1, "samples": 2})
    sampled = {**result.settings, "engine": {}}
    EvaluationScreen(screen).finished(replace(result, benchmarks={"a": more}, settings=sampled))
    text = text_of(screen)
    assert 0 <= text.index("Not finished: a: 1 of 2") < text.index("avg@n")
