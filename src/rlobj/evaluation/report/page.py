"""`report.html`, one file: problems, samples, responses, without a network."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from rlobj.base.files import packaged, write_whole
from rlobj.conversations.environment import ENDS
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.measures import number
from rlobj.evaluation.report.results import facts, flat, reading_notes, results_table, shared
from rlobj.reporting import visible
from rlobj.reporting.pages import definition_list, fill, html_table, render_page
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
"""Class in the page -> verdict."""
FINISHES = {"stop": "stopped", "length": "cut at the limit"}


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
    texts, notes = _texts_that_fit(benchmarks, budget), reading_notes(benchmarks)
    counts = Counter(verdict(r) for benchmark in benchmarks for r in benchmark.responses)
    if len(texts) < counts.total():
        notes.append(
            f"The page holds the texts of {len(texts):,} of {counts.total():,} responses, the "
            "first ones of each problem. The other texts are in samples.jsonl."
        )
    title = str(about.get("model", "evaluation"))
    names, rows = results_table(benchmarks)
    links = [f"<a href='#b{i}'>{escape(name)}</a>" for i, name in enumerate(names[1:])]
    links[len(benchmarks) :] = names[len(benchmarks) + 1 :]  # the mean has no section
    sections = [_section(i, each, common, texts) for i, each in enumerate(benchmarks)]
    parts = {
        "title": escape(title),
        "facts": definition_list(facts(about)),
        "settings": definition_list(common),
        "summary": html_table(links, ((name, values) for name, *values in rows)),
        "notes": "".join(f"<p>{escape(line)}</p>" for line in notes),
        "verdicts": "".join(
            f"<label class=chip><input type=checkbox value={letter} checked>"
            f"<i class='cell {letter}'></i>{name} <small>{counts[letter]:,}</small></label>"
            for letter, name in VERDICTS.items()
            if counts[letter]
        ),
        "sections": "".join(sections).encode("utf-8", "backslashreplace"),
    }
    content = render_page(
        title,
        fill(_asset("assets/evaluation.html"), parts),
        styles=_asset("assets/evaluation.css"),
        scripts=[_asset("assets/evaluation.js")],
        libraries=["katex"],
        data={},
    )
    write_whole(path, content)


def _section(
    index: int, benchmark: GradedBenchmark, common: Mapping[str, str], texts: Mapping[int, str]
) -> str:
    """A benchmark: its own settings and its problems."""
    problems = [_problem(each, benchmark.says_right, texts) for each in benchmark.problems]
    width = min(32, max(len(each.problem.id) for each in benchmark.problems))
    return (
        f"<section id=b{index} class=benchmark style='--name: {width}ch'>"
        f"<h2>{escape(benchmark.benchmark)}</h2>"
        f"{definition_list(flat(benchmark.settings, common))}{''.join(problems)}</section>"
    )


def _problem(graded: GradedProblem, says_right: bool, texts: Mapping[int, str]) -> str:
    """A row with a cell for each response; it opens to the problem and its responses."""
    problem = graded.problem
    name = problem.id if len(problem.id) <= 32 else f"…{problem.id[-31:]}"  # ids differ at the end
    cells = "".join(
        f"<i class='cell {letter}' title='{VERDICTS[letter]}'></i>"
        for letter in map(verdict, graded.responses)
    )
    return (
        f"<details class=problem><summary><span title='{escape(problem.id)}'>{escape(name)}</span>"
        f"<span>{number(graded.value(says_right), says_right)}</span>"
        f"<span class=cells>{cells}</span>"
        f"<span class=one-line>{escape(problem.prompt[:300])}</span></summary>"
        f"<div class=text>{escape(problem.prompt)}</div>"
        f"{definition_list({'gold': problem.answer})}"
        f"{''.join(_response(response, texts) for response in graded.responses)}</details>"
    )


def _response(response: Response, texts: Mapping[int, str]) -> str:
    """One response; it opens to its text."""
    grade, letter = response.grade, verdict(response)
    lines = {
        "reason": grade.reason,
        "reward": "none" if grade.undecided else f"{grade.reward:.6g}",
        "tokens": f"{response.length:,}",
        "end": FINISHES.get(response.finish, "unknown"),
        "seed": str(response.seed),
    }
    answer = f"answer <span class=answer>{escape(grade.answer or '')}</span>"
    if grade.answer is None:
        answer = "no answer"
    return (
        f"<details class='response {letter}'><summary><i class='cell {letter}'></i>"
        f"<span>sample {response.id}</span><bdi class=one-line>{answer}</bdi></summary>"
        f"{definition_list({'verdict': VERDICTS[letter], **lines})}"
        f"{texts.get(id(response), '<p>The text is in samples.jsonl.</p>')}</details>"
    )


def _texts_that_fit(benchmarks: Sequence[GradedBenchmark], budget: int) -> dict[int, str]:
    """`id(response)` -> its text as HTML: all first ones, then all second ones, while they fit."""
    problems = [problem for benchmark in benchmarks for problem in benchmark.problems]
    placed = [pair for problem in problems for pair in enumerate(problem.responses)]
    texts: dict[int, str] = {}
    for _, response in sorted(placed, key=lambda pair: pair[0]):
        turns = "".join(_turn(number, turn) for number, turn in enumerate(response.turns))
        text = turns or f"<div class=text>{escape(response.text)}</div>"
        budget -= len(text.encode(errors="backslashreplace"))
        if budget < 0:
            break
        texts[id(response)] = text
    return texts


def _turn(number: int, turn: TurnRecord) -> str:
    """A turn of the policy, and what the environment answered."""
    uses = [visible(f"{use.name}: {use.error}" if use.error else use.name, 80) for use in turn.uses]
    row = f"row {turn.row}, {turn.began}" if turn.row else ""
    parts = [row, f"reward {turn.reward:.3g}", f"calls {', '.join(uses)}" if uses else ""]
    note = "; ".join(filter(None, [*parts, ENDS.get(turn.end, "")]))
    heard = "\n".join(map(visible, turn.observation.split("\n")))
    return (
        f"<h3>policy, turn {number} <small>{escape(note)}</small></h3>"
        f"<div class=text>{escape(turn.text)}</div>"
        + (f"<h3>environment</h3><pre class=heard>{escape(heard)}</pre>" if heard else "")
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
