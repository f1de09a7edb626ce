"""`report.html`, one file: problems, samples, responses, without a network."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from rlobj.base.files import packaged, write_whole
from rlobj.conversations.environment import ENDS
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.report.results import facts, flat, reading_notes, results_table, shared
from rlobj.reporting import visible
from rlobj.reporting.pages import definition_list, fill, html_table, render_page, script_safe
from rlobj.samplers import Response
from rlobj.samplers.response import TurnRecord

_asset = partial(packaged, "rlobj.evaluation.report")
TEXT_BUDGET = 40_000_000
"""Bytes of responses that a page holds; a browser still opens it at once."""
VERDICTS = {
    "r": "right",
    "w": "wrong",
    "t": "truncated",
    "n": "ended without an answer",
    "u": "undecided",
    "g": "graded, without a verdict",
}
"""Letter in the data -> verdict."""
Said = str | list[dict[str, str]]
"""A response; of a conversation, the `text`, `observation` and `note` of each turn."""


def write_page(
    path: Path,
    benchmarks: Sequence[GradedBenchmark],
    about: Mapping[str, Any],
    *,
    budget: int = TEXT_BUDGET,
) -> None:
    """Write the page; it appears whole or not at all.

    Args:
        path: the file, `report.html` for instance.
        benchmarks: what was evaluated.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
        budget: bytes of responses in the page. It holds all verdicts, and the texts of the first
            responses of all problems; it says what is left out.

    Raises:
        RunError: the disk refused.
    """
    common = shared([flat(benchmark.settings) for benchmark in benchmarks])
    texts, kept, total = kept_texts(benchmarks, budget)
    title = str(about.get("model", "evaluation"))
    parts = {
        "title": escape(title),
        "facts": definition_list(facts(about)),
        "settings": definition_list(common),
        "summary": _summary_table(benchmarks),
        "notes": "".join(f"<p>{escape(line)}</p>" for line in _notes(benchmarks, kept, total)),
        "benchmarks": "".join(f"<option>{escape(each.benchmark)}" for each in benchmarks),
        "verdicts": _verdict_boxes(benchmarks),
        "sections": "".join(_section(i, each, common) for i, each in enumerate(benchmarks)),
    }
    listed = [
        {
            "name": benchmark.benchmark,
            "measure": "percent right" if benchmark.says_right else "mean reward",
            "problems": [problem_data(p, benchmark.says_right) for p in benchmark.problems],
        }
        for benchmark in benchmarks
    ]
    data = {"data": {"benchmarks": listed, "verdicts": VERDICTS}}
    content = render_page(
        title,
        fill(_asset("assets/evaluation.html"), parts),
        styles=_asset("assets/evaluation.css"),
        scripts=[_asset("assets/evaluation.js")],
        libraries=["katex"],
        data=data | {f"texts-{b}-{p}": said for (b, p), said in texts.items()},
    )
    write_whole(path, content)


def _summary_table(benchmarks: Sequence[GradedBenchmark]) -> str:
    names, rows = results_table(benchmarks)
    links = [f"<a href='#b{i}'>{escape(name)}</a>" for i, name in enumerate(names[1:])]
    links[len(benchmarks) :] = map(escape, names[len(benchmarks) + 1 :])  # the mean has no section
    return html_table(links, ((name, texts) for name, *texts in rows))


def _notes(benchmarks: Sequence[GradedBenchmark], kept: int, total: int) -> list[str]:
    lines = reading_notes(benchmarks)
    if any(benchmark.numbers["truncated"] > 0 for benchmark in benchmarks):
        lines.append(
            "Below, each response has one verdict: one that was cut and is not right is truncated, "
            "with an answer or without. The table counts every response that was cut, and every "
            "one without an answer."
        )
    if kept < total:
        lines.append(
            f"The page holds the texts of {kept:,} of {total:,} responses, the first ones of each "
            "problem, and all verdicts. The other texts are in samples.jsonl."
        )
    return lines


def _verdict_boxes(benchmarks: Sequence[GradedBenchmark]) -> str:
    counts = Counter(
        verdict(response) for benchmark in benchmarks for response in benchmark.responses
    )
    return "".join(
        f"<label class=chip><input type=checkbox name=verdict value={letter} checked>"
        f"<span class='cell {letter}' aria-hidden=true></span>{name} "
        f"<small>{counts[letter]:,}</small></label>"
        for letter, name in VERDICTS.items()
        if counts[letter] or letter in ("tug" if counts["g"] else "rwtnu")
    )


def _section(index: int, benchmark: GradedBenchmark, common: Mapping[str, str]) -> str:
    name, settings = escape(benchmark.benchmark), flat(benchmark.settings, common)
    return (
        f"<section id='b{index}' class=benchmark><h2>{name}</h2>{definition_list(settings)}"
        f"<div class=grid role=grid aria-label='{name}: problems and samples'></div></section>"
    )


def verdict(response: Response) -> str:
    """The letter of a response; one that was cut and is not right is truncated."""
    grade = response.grade
    if grade.undecided:
        return "u"
    if grade.correct:
        return "r"
    if response.finish == "length":
        return "t"
    if grade.correct is None:
        return "g"
    return "n" if grade.no_answer else "w"


def problem_data(problem: GradedProblem, says_right: bool = True) -> Mapping[str, Any]:
    """Everything about a problem but the texts of its responses."""
    share = problem.value(says_right)
    return {
        "id": problem.problem.id,
        "prompt": problem.problem.prompt,
        "gold": problem.problem.answer,
        "share": None if math.isnan(share) else share,
        "rewards": [grade.reward if not grade.undecided else None for grade in problem.grades],
        "verdicts": "".join(map(verdict, problem.responses)),
        "answers": [grade.answer for grade in problem.grades],
        "reasons": [grade.reason for grade in problem.grades],
        "samples": [response.id for response in problem.responses],
        "seeds": [str(response.seed) for response in problem.responses],  # too large for JavaScript
        "tokens": [response.length for response in problem.responses],
        "finishes": [response.finish for response in problem.responses],
    }


def said(response: Response) -> Said:
    """What a page shows of a response; control characters of the environment are symbols."""
    return [
        {
            "text": turn.text,
            "observation": "\n".join(map(visible, turn.observation.split("\n"))),
            "note": _note(turn),
        }
        for turn in response.turns
    ] or response.text


def _note(turn: TurnRecord) -> str:
    """The reward of a turn, its calls, and why the conversation ended."""
    uses = [visible(f"{use.name}: {use.error}" if use.error else use.name, 80) for use in turn.uses]
    parts = [f"reward {turn.reward:.3g}", f"calls {', '.join(uses)}" if uses else ""]
    return "; ".join(filter(None, [*parts, ENDS.get(turn.end, "")]))


def kept_texts(
    benchmarks: Sequence[GradedBenchmark], budget: int
) -> tuple[dict[tuple[int, int], list[Said]], int, int]:
    """The responses that fit: all first ones, then all second ones, and so on.

    Args:
        benchmarks: what was evaluated.
        budget: bytes of JSON.

    Returns:
        (texts by index of benchmark and problem, number of texts, number of responses).
    """
    problems: dict[tuple[int, int], GradedProblem] = {}
    for b, benchmark in enumerate(benchmarks):
        problems |= {(b, p): problem for p, problem in enumerate(benchmark.problems)}
    first_ones_first = sorted(
        (sample, index) for index, p in problems.items() for sample in range(len(p.responses))
    )
    kept: dict[tuple[int, int], list[Said]] = {index: [] for index in problems}
    for sample, index in first_ones_first:
        text = said(problems[index].responses[sample])
        budget -= len(script_safe(text))
        if budget < 0:
            break
        kept[index].append(text)
    return kept, sum(map(len, kept.values())), len(first_ones_first)
