"""results.json, results.md, the comparison's table, and the text of the page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from pathlib import Path

import pytest
from graded import VERDICTS, graded

from rlobj.data import Problem
from rlobj.evaluation.comparing import EvaluationComparison, compare_benchmark
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.page import verdict, write_page
from rlobj.evaluation.report.results import results_json, results_markdown

ABOUT = {
    "model": "some/model",
    "versions": {"rlobj": "0.1.0", "torch": "2.13.0"},
    "hardware": "1 × GPU",
    "started": None,
}


def evaluation(
    name: str, *problems: str, text: str = "text", **settings: object
) -> GradedBenchmark:
    """Each problem is one letter a sample: + right, - wrong, ? undecided."""
    answered = []
    for i, letters in enumerate(problems):
        same = {"tokens": 7, "finish": "stop"}
        samples = [
            {"correct": VERDICTS[letter], "text": f"{text} {i}.{j}", **same}
            for j, letter in enumerate(letters)
        ]
        answered.append(graded(Problem(f"{name}-{i}", "How many | pipes?", "4"), *samples))
    return GradedBenchmark(name, tuple(answered), settings)


ENTRIES = [
    evaluation("one", "++-?", "+---", "++++", temperature=1.0, n=4, template="{prompt}\nGo"),
    evaluation("two_b", "+", "-", "-", temperature=1.0, n=1, template="{prompt}\nGo"),
]


def test_results_json_has_every_number_with_its_error() -> None:
    result = results_json(ENTRIES, ABOUT)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    one, estimate = result["results"]["one"], ENTRIES[0].estimate
    assert one["avg@4"] == one["pass@1"] == estimate.mean
    assert one["avg@4_stderr"] == estimate.stderr
    assert one["avg@4_stderr_sampling"] == estimate.stderr_sampling
    assert one["avg@4_interval"] == list(estimate.interval[:2])
    assert {"pass@1", "pass@2", "pass@4", "maj@2", "maj@4_stderr", "maj@4_interval"} < set(one)
    assert one["avg@4_bounds"] == pytest.approx([(2 + 1 + 4) / 12, (3 + 1 + 4) / 12])
    assert one["settings"] == dict(ENTRIES[0].settings)
    assert (result["model"], result["versions"]) == ("some/model", ABOUT["versions"])
    assert result["settings"] == {"temperature": 1.0, "template": "{prompt}\nGo"}


def test_unknown_numbers_are_null_and_the_average_is_over_benchmarks() -> None:
    alone = results_json([evaluation("open", "??")], {})
    assert alone["results"]["open"]["avg@2_stderr"] is None
    assert "macro_average" not in alone
    macro = results_json(ENTRIES, ABOUT)["macro_average"]
    errors = [each.estimate.stderr for each in ENTRIES]
    assert macro["avg"] == pytest.approx(sum(each.accuracy for each in ENTRIES) / 2)
    assert macro["avg_stderr"] == pytest.approx(math.hypot(*errors) / 2)
    assert macro["avg_stderr_sampling"] is None  # one sample per problem tells nothing of it
    assert macro["avg_interval"][0] < macro["avg"] < macro["avg_interval"][1]


def test_results_markdown_is_a_table_with_its_settings() -> None:
    text = results_markdown(ENTRIES, ABOUT)
    table, *notes = text.strip().split("\n\n")
    rows = [line.replace(r"\_", "")[2:-2].split(" | ") for line in table.splitlines()]
    assert table.startswith(r"|  | one | two\_b | mean of 2 |")
    by_name = {name: values for name, *values in rows}
    assert by_name["n"] == ["4", "1", ""]
    assert by_name["avg@n"] == ["58.3", "33.3", "45.8"]
    assert by_name["standard error, similar problems"][:2] == ["22.0", "33.3"]
    assert by_name["avg@n if undecided ones were right"] == ["66.7", "", ""]
    assert by_name["95% interval, similar problems"][1] == "6.1 to 79.2"
    assert by_name["pass@4"][0] == "100.0"
    assert by_name["standard error, same problems"][1] == "–"
    assert "Wilson" in notes[0]
    assert "one 1 (timeout)" in notes[1]
    shared = 'Settings: temperature 1.0; template "{prompt}\\\\nGo". one: n 4. two\\_b: n 1.'
    assert notes[2] == shared
    assert notes[3] == ("model some/model; versions rlobj 0.1.0, torch 2.13.0; hardware 1 × GPU.")


def test_comparison_markdown_shows_differences() -> None:
    left = evaluation("set", "++++", "+++-", "----", "++++")
    right = evaluation("set", "++++", "+---", "++++")
    shown = EvaluationComparison("new|er", "old", (compare_benchmark(left, right),), ())
    lines = shown.to_markdown().splitlines()
    assert lines[:3:2] == ["A: new\\|er", "B: old"]
    assert lines[4] == "| benchmark | problems | A | B | A − B | 95% interval | p |"
    assert lines[6] == "| set | 3 | 58.3 | 75.0 | −16.7 | −100.0 to +33.3 | 1.000 |"
    assert "set: 1 problems that only one side answered are left out." in lines
    assert "Problems with different shares (2 of 2):" in lines
    assert lines[-2:] == [
        "| set: How many \\| pipes? | 0.0 | 100.0 | −100.0 |",
        "| set: How many \\| pipes? | 75.0 | 25.0 | +50.0 |",
    ]


HOSTILE = "</script><!-- <script> & \ud800 \u2028 \x00 \\"


@pytest.fixture
def page(tmp_path: Path) -> str:
    hostile = evaluation("<b>'\"", "+-", text=HOSTILE)
    write_page(tmp_path / "report.html", [*ENTRIES, hostile], ABOUT | {"model": "<i>m"})
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_refers_to_no_other_file_and_its_policy_names_its_scripts(page: str) -> None:
    head = page.partition("<script>")[0]
    assert "<!--" not in head  # every place of the template is filled
    assert re.findall(r"\s(?:src|href)=(?!['\"]?#)[^>\s]*", head) == []
    fonts = re.findall(r"url\(([^)]{0,40})", page)
    assert len(fonts) == 20
    assert all(font.startswith("data:font/woff2;base64,") for font in fonts)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = re.search(r'Security-Policy" content="([^"]*)"', page)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert policy is not None
    assert re.findall(r"'sha256-([^']*)'", policy[1]) == digests
    assert policy[1].startswith("default-src 'none';")


def test_the_page_holds_verdicts_and_texts(page: str) -> None:
    cells = re.findall(r"<span class=cells>(.*?)</span>", page)
    assert ["".join(re.findall(r"cell (.)'", each)) for each in cells[:3]] == [
        "rrwu",
        "rwww",
        "rrrr",
    ]
    assert "</i>right <small>9</small>" in page
    text = html.escape(HOSTILE).replace("\ud800", "\\ud800")
    assert re.findall(r"<div class=text>(.*?)</div>", page)[-2:] == [f"{text} 0.0", f"{text} 0.1"]


def test_a_page_over_budget_keeps_the_first_responses_of_every_problem(tmp_path: Path) -> None:
    whole = len("<div class=text>text 0.0</div>")
    write_page(tmp_path / "report.html", ENTRIES, {}, budget=8 * whole)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "texts of 8 of 15 responses" in page
    kept = ["0.0", "0.1", "1.0", "1.1", "2.0", "0.0", "1.0", "2.0"]
    assert re.findall(r"<div class=text>text (.*?)</div>", page) == kept


def test_a_response_that_was_cut_and_is_not_right_is_truncated() -> None:
    wrong = {"correct": False, "answer": None}
    cut, ended = graded(Problem("1", "", "4"), {**wrong, "finish": "length"}, wrong).responses
    assert (verdict(cut), verdict(ended)) == ("t", "n")
