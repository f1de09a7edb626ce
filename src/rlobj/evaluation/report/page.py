"""The HTML page: one file that needs no network, with the numbers, the grid and the responses.

Its Content-Security-Policy names the page's own scripts by hash and nothing else, so that no text
inside can run or load anything, were it ever taken for markup.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError
from rlobj.evaluation.estimators import Interval
from rlobj.evaluation.report.embedding import VERDICTS, index_of, kept_texts, script_safe, verdict
from rlobj.evaluation.report.entries import (
    UNKNOWN,
    estimated,
    facts,
    own_settings,
    percent,
    percent_range,
    shared_settings,
    tokens,
    undecided_note,
)
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary, macro_average

__all__ = ["TEXT_BUDGET", "write_page"]

TEXT_BUDGET = 40_000_000
"""Bytes of responses that a page holds; a browser still opens it at once."""
_WIDTH, _HEIGHT = 160, 14


def write_page(
    path: Path,
    entries: Sequence[BenchmarkResult],
    about: Mapping[str, Any],
    *,
    budget: int = TEXT_BUDGET,
) -> None:
    """Write the page; it appears whole or not at all.

    Args:
        path: the file, `report.html` for instance.
        entries: one per benchmark.
        about: `model`, `versions`, `hardware`, `started`, `seconds` and what else belongs on top.
        budget: bytes of responses to embed. Every verdict is embedded; of the responses, the first
            ones of all problems, and the page says what is left out.

    Raises:
        RunError: the disk refused.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(_page(entries, about, budget))
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _page(entries: Sequence[BenchmarkResult], about: Mapping[str, Any], budget: int) -> bytes:
    shared = shared_settings(entries)
    kept, count, total = kept_texts(entries, budget)
    scripts = [_asset("katex/katex.min.js"), _asset("math.js"), _asset("page.js")]
    data = {"benchmarks": index_of(entries), "verdicts": VERDICTS}
    parts = {
        "policy": _policy(scripts).encode(),
        "title": escape(str(about.get("model", "evaluation"))).encode(),
        "styles": f"<style>{_katex_styles()}\n{_asset('page.css')}</style>".encode(),
        "facts": _grid(facts({k: v for k, v in about.items() if k != "model"})).encode(),
        "settings": _grid(shared).encode(),
        "summary": _summary_table([entry.summary for entry in entries]).encode(),
        "notes": _notes(entries, count, total).encode(),
        "benchmarks": "".join(f"<option>{escape(e.summary.benchmark)}" for e in entries).encode(),
        "verdicts": _verdict_boxes(entries).encode(),
        "sections": "".join(_section(i, e, shared) for i, e in enumerate(entries)).encode(),
        "data": b"".join(
            [
                _json_element("data", data),
                *(_json_element(f"texts-{b}-{p}", texts) for (b, p), texts in kept.items()),
            ]
        ),
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts).encode(),
    }
    template = _asset("page.html").encode()
    return re.sub(rb"<!--(\w+)-->", lambda mark: parts[mark[1].decode()], template)


def _asset(name: str) -> str:
    return (files("rlobj.reporting") / "assets" / name).read_text(encoding="utf-8")


def _katex_styles() -> str:
    """KaTeX's sheet with its woff2 fonts inside, and no other format."""
    fonts = files("rlobj.reporting") / "assets" / "katex" / "fonts"

    def inlined(source: re.Match[str]) -> str:
        content = base64.b64encode((fonts / source[1]).read_bytes()).decode()
        return f'src:url(data:font/woff2;base64,{content}) format("woff2")'

    return re.sub(r"src:url\(fonts/([\w-]+\.woff2)\)[^;}]*", inlined, _asset("katex/katex.min.css"))


def _policy(scripts: Sequence[str]) -> str:
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _json_element(name: str, value: Any) -> bytes:
    return b'<script type="application/json" id="%s">%s</script>\n' % (
        name.encode(),
        script_safe(value),
    )


def _grid(lines: Mapping[str, str]) -> str:
    terms = (
        f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(text)}</dd></div>"
        for name, text in lines.items()
    )
    return f"<dl>{''.join(terms)}</dl>" if lines else ""


def _summary_table(summaries: Sequence[BenchmarkSummary]) -> str:
    names = ("benchmark", "problems", "avg@n", "95% interval", "", "pass@n", "maj@n")
    names += ("truncated", "no answer", "undecided", "tokens")
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    rows = [_summary_row(i, summary) for i, summary in enumerate(summaries)]
    if len(summaries) > 1:
        macro = macro_average(summaries)
        rows.append(
            f"<tr class=mean><th scope=row>mean of {len(summaries)}</th><td></td>"
            f"<td>{percent(macro.accuracy)} <small>± "
            f"{percent(macro.standard_errors.problems)}</small></td>"
            f"<td>{percent_range(*macro.interval[:2])}</td>"
            f"<td>{_bar(macro.accuracy, macro.interval)}</td>{'<td></td>' * 6}</tr>"
        )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _summary_row(place: int, summary: BenchmarkSummary) -> str:
    n = summary.samples_per_problem
    best, vote = summary.pass_at.get(n), summary.maj_at.get(n)
    cells = [
        f"{summary.problems:,} <small>× {n}</small>",
        f"<b>{percent(summary.accuracy)}</b> <small>± "
        f"{percent(summary.standard_errors.problems)}</small>",
        percent_range(*summary.interval[:2]),
        _bar(summary.accuracy, summary.interval),
        estimated(best, summary.problems),
        estimated(vote, summary.problems),
        percent(summary.truncated),
        percent(summary.no_answer),
        f"{summary.undecided:,}",
        tokens(summary.lengths.mean),
    ]
    name = f"<th scope=row><a href='#b{place}'>{escape(summary.benchmark)}</a></th>"
    return f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _bar(mean: float, interval: Interval) -> str:
    """The interval on a line from 0 to 100 %, the mean as a tick."""
    if math.isnan(mean) or math.isnan(interval.low):
        return UNKNOWN
    middle, span = _HEIGHT / 2, _WIDTH - 8
    low, at, high = (4 + span * value for value in (interval.low, mean, interval.high))
    said = f"{percent(mean)}, from {percent(interval.low)} to {percent(interval.high)}"
    return (
        f"<svg class=interval viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{said}'>"
        f"<path class=axis d='M4 {middle}H{4 + span}M4 3v8M{4 + span / 2} 4v6M{4 + span} 3v8'/>"
        f"<path class=range d='M{low:.1f} {middle}H{high:.1f}'/>"
        f"<path class=mean d='M{at:.1f} 1V{_HEIGHT - 1}'/></svg>"
    )


def _notes(entries: Sequence[BenchmarkResult], count: int, total: int) -> str:
    lines = [
        "Percent. ± is the standard error over problems: this model on problems like these. Lines "
        "run from 0 to 100 with the 95% interval on them, also over problems."
    ]
    if any(entry.summary.truncated > 0 for entry in entries):
        lines.append(
            "Below, each response has one verdict: one that was cut and is not right is truncated, "
            "with an answer or without. The columns count every response that was cut, and every "
            "one without an answer."
        )
    lines += undecided_note([entry.summary for entry in entries])
    if count < total:
        lines.append(
            f"The page holds the texts of {count:,} of {total:,} responses, the first ones of each "
            "problem, and all verdicts. The other texts are in samples.jsonl."
        )
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _verdict_boxes(entries: Sequence[BenchmarkResult]) -> str:
    letters = [
        verdict(response, grade)
        for entry in entries
        for each in entry.graded.problems
        for response, grade in zip(each.responses, each.grades, strict=True)
    ]
    return "".join(
        f"<label class=chip><input type=checkbox name=verdict value={letter} checked>"
        f"<span class='cell {letter}' aria-hidden=true></span>{name} "
        f"<small>{letters.count(letter):,}</small></label>"
        for letter, name in VERDICTS.items()
    )


def _section(place: int, entry: BenchmarkResult, shared: Mapping[str, str]) -> str:
    summary, n = entry.summary, entry.summary.samples_per_problem
    errors, lengths = summary.standard_errors, summary.lengths
    told = {f"avg@{n}": f"{percent(summary.accuracy)} ± {percent(errors.problems)}"}
    told["± on these very problems"] = percent(errors.sampling)
    for name, estimates in (("pass", summary.pass_at), ("maj", summary.maj_at)):
        told |= {
            f"{name}@{k}": estimated(estimate, summary.problems)
            for k, estimate in estimates.items()
            if k > 1
        }
    told["solved always, never"] = f"{summary.solve_all:,}, {summary.solve_none:,}"
    told["tokens: median, right, wrong"] = ", ".join(
        tokens(length) for length in (lengths.median, lengths.right, lengths.wrong)
    )
    told["in a box"] = percent(summary.format)
    told |= own_settings(entry, shared)
    return (
        f"<section id='b{place}' class=benchmark><h2>{escape(summary.benchmark)}</h2>{_grid(told)}"
        f"<div class=grid role=grid aria-label='{escape(summary.benchmark)}: problems and samples'>"
        "</div></section>"
    )
