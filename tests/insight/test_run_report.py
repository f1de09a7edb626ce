"""The report of runs: its curves, tables, findings and files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from report_runs import HOSTILE, evaluation, step_line, write_run

import rlobj
from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.insight import Outcome
from rlobj.insight.run_report.figures import COLORS, PLOTS, Figure, figures
from rlobj.insight.run_report.page import different_settings, summary, times
from rlobj.insight.run_report.runs import read_runs

DOCS = Path(__file__).parents[2] / "docs"


def drawn(*folders: Path) -> dict[str, Figure]:
    found = figures(read_runs(folders))
    return {plot.name: figure for plot, figure in found}


def test_every_metric_of_the_table_of_figures_is_documented() -> None:
    known = set(re.findall(r"`([\w/.]+)`", (DOCS / "metrics.md").read_text("utf-8")))
    assert {plot.metric for plot in PLOTS if "*" not in plot.metric} <= known
    names = [plot.name for plot in PLOTS]
    assert all(re.fullmatch("[a-z-]+", name) for name in names), "they are names of files"


def test_curves_have_the_values_of_the_lines_that_have_them(tmp_path: Path) -> None:
    lines = [
        evaluation(0, 0.25),
        step_line(1),
        step_line(2) | {"policy/entropy": None},
        step_line(3, **{"tokens/dropped": 2}) | evaluation(3, 0.75),
    ]
    found = drawn(write_run(tmp_path / "run", lines))
    [held_out] = found["held-out-accuracy"].lines
    assert (held_out["x"], held_out["y"]) == ([0, 3], [0.25, 0.75])
    assert held_out["low"] == [0.2304, 0.7304]  # four digits of 0.25 - 1.96 * 0.01
    [entropy] = found["entropy"].lines
    assert (entropy["x"], entropy["y"]) == ([1, 2, 3], [0.9804, None, 0.9434])
    [touched] = found["touched"].lines
    assert (touched["name"], touched["x"], touched["y"]) == ("dropped", [3], [0.02])
    assert "kl" not in found


def test_a_figure_of_one_value_is_named_and_not_drawn(tmp_path: Path) -> None:
    """Not if a finding is about it, runs differ in it, or there are too few steps."""

    def run(name: str, steps: int = 9, **values: float) -> Path:
        lines = [step_line(i, **{"turns/mean": 1.0, **values}) for i in range(1, steps)]
        return write_run(tmp_path / name, lines)

    a, b, c = run("a"), run("b"), run("c", **{"turns/mean": 2.0})
    assert (drawn(a, b)["turns"].constant, drawn(a, c)["turns"].constant) == (1.0, None)
    assert drawn(run("short", 3))["turns"].constant is None
    sick = run("sick", **{"policy/kl_old": 2.0})
    assert drawn(sick)["kl"].constant is None
    for folders, shown in (([a, b], False), ([a, c], True)):
        page = rlobj.report(folders).read_text("utf-8")
        assert ("figure-turns" in page) == shown
        named = "Constant, and so not drawn: " + ("none." if shown else "Turns of a response 1.")
        assert named in page


def test_findings_are_marks_of_the_figures_that_show_their_metrics(tmp_path: Path) -> None:
    lines = [step_line(i, **{"policy/kl_old": 2.0 if i == 7 else 0.0}) for i in range(1, 12)]
    run = write_run(tmp_path / "sick", lines)
    found = drawn(run, write_run(tmp_path / "well"))
    assert found["kl"].marks == [{"x": 7, "text": "update-too-large", "color": COLORS[0]}]
    assert found["entropy"].marks == []
    page = rlobj.report(run).read_text("utf-8")
    assert "update-too-large" in page


def test_the_record_of_another_trainer_is_named_after_the_trainers_folder(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name / "_rlobj") for name in ("a", "b")]
    again, own = write_run(tmp_path / "a" / "_rlobj-2"), write_run(tmp_path / "_rlobj")
    nested = write_run(own / "_rlobj")
    labels = [run.label for run in read_runs([*runs, again])]
    assert labels == ["a", "b", "a/_rlobj-2"]
    assert [run.label for run in read_runs(runs[:1])] == ["a"]
    assert len({run.label for run in read_runs([own, nested])}) == 2


def test_runs_are_named_after_their_folders(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a")
    b, c = write_run(tmp_path / "x" / "run"), write_run(tmp_path / "y" / "run")
    runs = read_runs([a, b, c, a])
    assert [run.label for run in runs] == ["a", "x/run", "y/run"]
    reward = drawn(a, b, c)["reward"]
    assert [line["name"] for line in reward.lines] == ["a", "x/run", "y/run"]
    assert [line["color"] for line in reward.lines] == [*COLORS[:3]]
    dropping = [step_line(1, **{"tokens/dropped": 1})]
    assert drawn(write_run(tmp_path / "d", dropping), a)["touched"].lines[0]["name"] == "dropped: d"
    assert drawn(a)["reward"].lines[0]["name"] == "Reward"
    assert "<h1>Comparison of 2 runs</h1>" in rlobj.report([a, b]).read_text("utf-8")


def test_only_settings_that_differ_are_compared(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", training={"steps": 5, "lr": 1}, lora=None, old=1)
    b = write_run(tmp_path / "b", training={"steps": 6, "lr": 1}, lora={})
    assert different_settings(read_runs([a, b])) == {
        "training.steps": ["5", "6"],
        "old": ["1", "–"],
    }
    assert "2 settings that differ<" in rlobj.report([a, b]).read_text("utf-8")
    c = write_run(tmp_path / "c", training={"steps": 5, "lr": 1}, lora=None, old=2)
    assert "1 setting that differs<" in rlobj.report([a, c]).read_text("utf-8")
    assert different_settings(read_runs([a])) == {}


def test_the_summary_has_what_the_end_of_a_training_shows(tmp_path: Path) -> None:
    lines = [evaluation(0, 0.25), *map(step_line, range(1, 9)), evaluation(8, 0.75)]
    lines[-2] |= {"spurious/tokens": 5, "spurious/caught": 3, "spurious/dropped": 4}
    a = write_run(tmp_path / "a", lines)
    rows = summary(read_runs([a]))
    measures = Outcome.read(a).measures()
    assert {name: rows[name] for name in measures} == {k: [v] for k, v in measures.items()}
    assert "entropy, first/last 2 steps" in rows
    rows = summary(read_runs([a, write_run(tmp_path / "c"), write_run(tmp_path / "b", lines[:1])]))
    assert rows["steps"] == ["8", "5", "0"]
    assert rows["entropy, first/last step"][2] == "–"  # the window of the shortest run
    assert rows["held-out accuracy before"][2] == rows["held-out accuracy before"][0]
    assert rows["precision of the rule"] == ["3 (75%) of 4", "–", "–"]
    assert rows["time of all steps"] == ["0 min 32 s", "0 min 20 s", "–"]


def test_times_of_phases_are_shares_of_the_step_and_add_up_to_it(tmp_path: Path) -> None:
    beside = {f"time/{name}": 3.0 for name in ("updating", "sampling_hidden", "grading_hidden")}
    shown = times(read_runs([write_run(tmp_path / "run", [step_line(1, **beside)])]))
    assert list(shown) == ["step", "sampling", "forward", "backward", "other"]
    assert shown["sampling"] == ["2.000 s (50.0%)"]


def test_the_rules_of_a_run_stand_with_its_numbers(tmp_path: Path) -> None:
    objective = {"drop": "prob < 0.01", "keep": "entropy.top(0.2)"}
    runs = read_runs([write_run(tmp_path / "a", objective=objective), write_run(tmp_path / "b")])
    assert summary(runs)["rules"] == ["drop prob < 0.01, keep entropy.top(0.2)", "–"]


def test_where_files_are_written(tmp_path: Path) -> None:
    lines = [{"step": 1, "reward/mean": 0.5}]
    a, b = (write_run(tmp_path / "runs" / name, lines) for name in "ab")
    assert rlobj.report(a) == a / "report.html"
    assert rlobj.report([a, b]) == tmp_path / "runs" / "report.html"
    assert rlobj.report(str(a), out=tmp_path / "x.html") == tmp_path / "x.html"
    with pytest.raises(RunError, match="cannot write"):
        rlobj.report(a, out=tmp_path / "none" / "x.html")


def test_what_is_no_run_and_runs_without_a_number_are_refused(tmp_path: Path) -> None:
    run, wrong = write_run(tmp_path / "run"), [None]
    for runs in ((), wrong):
        with pytest.raises(ConfigError, match="expected the folder of a run"):
            rlobj.report(runs)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"runn is not a run.*Did you mean"):
        rlobj.report(tmp_path / "runn")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="no step is finished yet"):
        rlobj.report(run)


def test_a_run_that_is_being_written_or_has_no_step_is_shown_beside_others(tmp_path: Path) -> None:
    cut, empty = write_run(tmp_path / "cut"), write_run(tmp_path / "empty", [evaluation(0, 0.5)])
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "reward/me')
    page = rlobj.report([cut, empty])
    assert "empty: no step is finished yet" in page.read_text("utf-8")
    curves = drawn(cut, empty)
    assert [line["name"] for line in curves["held-out-accuracy"].lines] == ["cut", "empty"]
    assert [len(line["y"]) for line in curves["reward"].lines] == [5]
    (empty / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: damaged"):
        rlobj.report([cut, empty])


def test_runs_of_other_versions_are_shown_without_a_diagnosis(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", objective={"removed": 1}, schema=0)
    code = write_run(tmp_path / "code", objective={"surrogate": {"kind": "evil.py:run"}})
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.resolved.yaml").write_text("objective: 5\noutput: [1]\n")
    (tmp_path / "strange" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    runs = read_runs([old, code, tmp_path / "strange"])
    assert all(run.notes[0].startswith("no diagnosis: ") for run in runs)
    assert "evil.py:run" in runs[1].notes[0]
    assert "<h1>strange</h1>" in rlobj.report(tmp_path / "strange").read_text("utf-8")
    assert rlobj.report([run.path for run in runs]).is_file()


def test_no_two_lines_of_a_figure_look_the_same(tmp_path: Path) -> None:
    lines = [step_line(1, **{"controller/a": 1.0, "controller/b": 2.0})]
    runs = [write_run(tmp_path / str(i), lines) for i in range(8)]
    for name, chosen in (("reward", runs), ("controllers", runs[:6]), ("controllers", runs[:1])):
        looks = [(line["color"], line["dash"]) for line in drawn(*chosen)[name].lines]
        assert len({*looks}) == len(looks) == len(chosen) * (1 + (name == "controllers"))


def test_hostile_values_and_names_are_numbers_or_text(tmp_path: Path) -> None:
    lines: list[Any] = [
        {**step_line(1), "train/grad_norm": math.inf},
        {**step_line(2), "policy/entropy": "1", "reward/mean": [1], "train/grad_norm": math.nan},
        {**step_line(4), f"reward/{HOSTILE}/mean": 1.0, f"time/{HOSTILE}": 1.0},
        *({"step": 5, f"reward/{i}/mean": 1.0} for i in range(50)),
    ]
    evil = write_run(tmp_path / HOSTILE.replace("/", "_")[:50], lines, preset=HOSTILE)
    rule = {"drop": HOSTILE, "controllers": {HOSTILE: {"target": 0.3}}}
    other = write_run(tmp_path / "other", lines, objective=rule, seed=HOSTILE)
    [reward, _] = drawn(evil, other)["reward"].lines
    assert reward["x"] == [1, 4], "a list is no value"
    assert len(drawn(evil)["rewards"].lines) <= 12
    text = rlobj.report([evil, other]).read_text("utf-8")
    for bad in ("<script>window", "<img src=x", "\x1b", "\u202e"):
        assert bad not in text
