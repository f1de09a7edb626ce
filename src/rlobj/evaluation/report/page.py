"""report.html: the numbers, the grid of problems by samples, and the responses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlobj.base.files import write_whole
from rlobj.evaluation.estimators import Interval
from rlobj.evaluation.report.measures import (
    UNKNOWN,
    facts,
    flat,
    macro_measures,
    measures,
    own_settings,
    percent,
    shared,
    undecided_note,
)
from rlobj.evaluation.report.page_data import VERDICTS, kept_texts, problem_data, verdict
from rlobj.evaluation.report.tables import COLUMNS
from rlobj.evaluation.summary import BenchmarkResult, macro_average
from rlobj.reporting import definition_list, fill, render_page

TEXT_BUDGET = 40_000_000
"""Bytes of responses that a page holds; a browser still opens it at once."""
_WIDTH, _HEIGHT = 160, 14


def write_page(
    path: Path,
    results: Sequence[BenchmarkResult],
    about: Mapping[str, Any],
    *,
    budget: int = TEXT_BUDGET,
) -> None:
    """Write the page; it appears whole or not at all.

    Args:
        path: the file, `report.html` for instance.
        results: one per benchmark.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
        budget: bytes of responses in the page. It holds all verdicts, and the texts of the first
            responses of all problems; it says what is left out.

    Raises:
        RunError: the disk refused.
    """
    common = shared([flat(each.settings) for each in results])
    texts, kept, total = kept_texts(results, budget)
    title = str(about.get("model", "evaluation"))
    parts = {
        "title": escape(title),
        "facts": definition_list(facts({k: v for k, v in about.items() if k != "model"})),
        "settings": definition_list(common),
        "summary": _summary_table(results),
        "notes": "".join(f"<p>{escape(line)}</p>" for line in _notes(results, kept, total)),
        "benchmarks": "".join(f"<option>{escape(each.summary.benchmark)}" for each in results),
        "verdicts": _verdict_boxes(results),
        "sections": "".join(_section(i, each, common) for i, each in enumerate(results)),
    }
    benchmarks = [
        {
            "name": each.summary.benchmark,
            "problems": [problem_data(problem) for problem in each.graded.problems],
        }
        for each in results
    ]
    data = {"data": {"benchmarks": benchmarks, "verdicts": VERDICTS}}
    content = render_page(
        title,
        fill(_asset("evaluation.html"), parts),
        styles=_asset("evaluation.css"),
        scripts=[_asset("evaluation.js")],
        libraries=["katex"],
        data=data | {f"texts-{b}-{p}": each for (b, p), each in texts.items()},
    )
    write_whole(path, content)


def _asset(name: str) -> str:
    return (files("rlobj.evaluation.report") / "assets" / name).read_text(encoding="utf-8")


def _summary_table(results: Sequence[BenchmarkResult]) -> str:
    names = ["benchmark", *(column for column in COLUMNS if column != "n")]
    names.insert(names.index("95% interval") + 1, "")
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    summaries = [each.summary for each in results]
    rows = "".join(
        f"<tr><th scope=row><a href='#b{i}'>{escape(summary.benchmark)}</a></th>"
        f"{_cells(measures(summary), summary.accuracy, summary.interval)}</tr>"
        for i, summary in enumerate(summaries)
    )
    if len(results) > 1:
        macro = macro_average(summaries)
        cells = _cells(macro_measures(macro), macro.accuracy, macro.interval)
        rows += f"<tr class=mean><th scope=row>mean of {len(results)}</th>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(texts: Mapping[str, str], mean: float, interval: Interval) -> str:
    cells = [
        f"{texts['problems']} <small>× {texts['n']}</small>" if "n" in texts else "",
        f"<b>{texts['avg@n']}</b> <small>± {texts['± problems']}</small>",
        texts["95% interval"],
        _bar(mean, interval),
        *(texts.get(column, "") for column in COLUMNS[COLUMNS.index("pass@n") :]),
    ]
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _bar(mean: float, interval: Interval) -> str:
    """The interval on a line from 0 to 100%, with a tick at the mean."""
    if math.isnan(mean) or math.isnan(interval.low):
        return UNKNOWN
    middle, span = _HEIGHT / 2, _WIDTH - 8
    low, at, high = (4 + span * value for value in (interval.low, mean, interval.high))
    label = f"{percent(mean)}, from {percent(interval.low)} to {percent(interval.high)}"
    return (
        f"<svg class=interval viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{label}'>"
        f"<path class=axis d='M4 {middle}H{4 + span}M4 3v8M{4 + span / 2} 4v6M{4 + span} 3v8'/>"
        f"<path class=range d='M{low:.1f} {middle}H{high:.1f}'/>"
        f"<path class=mean d='M{at:.1f} 1V{_HEIGHT - 1}'/></svg>"
    )


def _notes(results: Sequence[BenchmarkResult], kept: int, total: int) -> list[str]:
    lines = [
        "Percent. ± is the standard error for similar problems. Lines run from 0 to 100 and show "
        "the 95% interval, also for similar problems."
    ]
    if any(each.summary.truncated > 0 for each in results):
        lines.append(
            "Below, each response has one verdict: one that was cut and is not right is truncated, "
            "with an answer or without. The columns count every response that was cut, and every "
            "one without an answer."
        )
    lines += undecided_note([each.summary for each in results])
    if kept < total:
        lines.append(
            f"The page holds the texts of {kept:,} of {total:,} responses, the first ones of each "
            "problem, and all verdicts. The other texts are in samples.jsonl."
        )
    return lines


def _verdict_boxes(results: Sequence[BenchmarkResult]) -> str:
    counts = Counter(
        verdict(response, grade)
        for each in results
        for problem in each.graded.problems
        for response, grade in zip(problem.responses, problem.grades, strict=True)
    )
    return "".join(
        f"<label class=chip><input type=checkbox name=verdict value={letter} checked>"
        f"<span class='cell {letter}' aria-hidden=true></span>{name} "
        f"<small>{counts[letter]:,}</small></label>"
        for letter, name in VERDICTS.items()
    )


def _section(index: int, result: BenchmarkResult, common: Mapping[str, str]) -> str:
    summary, texts = result.summary, measures(result.summary)
    lines = {
        f"avg@{texts['n']}": f"{texts['avg@n']} ± {texts['± problems']}",
        "± for the same problems": texts["± sampling"],
        **{f"pass@{k}": texts[f"pass@{k}"] for k in summary.pass_at if k > 1},
        **{f"maj@{k}": texts[f"maj@{k}"] for k in summary.maj_at},
    }
    names = ("solved always, never", "tokens: median, right, wrong", "in a box")
    lines |= {name: texts[name] for name in names} | own_settings(result.settings, common)
    name = escape(summary.benchmark)
    return (
        f"<section id='b{index}' class=benchmark><h2>{name}</h2>{definition_list(lines)}"
        f"<div class=grid role=grid aria-label='{name}: problems and samples'></div></section>"
    )
