"""The results of an evaluation, for people and for programs.

results_json         results.json: every number with its standard error and settings
results_markdown     a table to paste into a README or a paper
write_page           report.html, one file: problems, samples, responses, without a network
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from rlobj.base.files import packaged, write_whole
from rlobj.config.layers import flattened
from rlobj.conversations.environment import ENDS
from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.samples import GradedProblem, ResponseRecord
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary, MacroAverage, macro_average
from rlobj.reporting import visible
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.reporting.pages import definition_list, fill, html_table, render_page, script_safe
from rlobj.rewards import Graded
from rlobj.rewards.functions import MAPPING

__all__ = ["results_json", "results_markdown", "write_page"]

UNKNOWN = "–"
OF_RIGHT = (" right", "tokens, wrong", "without an answer")
"""The ends of the rows that mean nothing where nothing says which responses are right."""
OF_RIGHT_JSON = {
    *("solve_all", "solve_none", "no_answer", "wrong_causes"),
    *("reward_bounds", "pass@k", "length_right", "length_wrong"),
}
"""The same of the names in results.json."""
COUNTS = ("solve_all", "solve_none", "truncated", "format", "no_answer", "undecided")
Value = TypeVar("Value")


def summary_table(summaries: Sequence[BenchmarkSummary]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmarks across and the average of several; their numbers down."""
    texts = {summary.benchmark: _measures(summary) for summary in summaries}
    if len(summaries) > 1 and math.isfinite((macro := macro_average(summaries)).mean):
        sampling, shares = macro.standard_errors.sampling, summaries[0].says_right
        texts[f"mean of {len(summaries)}"] = _headline(macro, sampling, shares)
    most_first = sorted(texts.values(), key=len, reverse=True)
    names = dict.fromkeys(name for own in most_first for name in own)
    return ["", *texts], [[name, *(own.get(name, "") for own in texts.values())] for name in names]


def _measures(summary: BenchmarkSummary) -> dict[str, str]:
    """The numbers of a benchmark as text, shares in percent, by name."""
    right = {"avg@n if undecided ones were right": percent(summary.bounds[1])}
    estimates = {f"pass@{k}": each for k, each in summary.pass_at.items() if k > 1}
    estimates |= {f"maj@{k}": each for k, each in summary.maj_at.items()}
    rows = {
        "problems": f"{summary.problems:,}",
        "n": f"{summary.samples_per_problem:,}",
        **_headline(summary.estimate, summary.standard_errors.sampling, summary.says_right),
        **(right if summary.undecided else {}),
        **{name: _estimated(each, summary.problems) for name, each in estimates.items()},
        "problems, all responses right": f"{summary.solve_all:,}",
        "problems, no response right": f"{summary.solve_none:,}",
        "responses, undecided": f"{summary.undecided:,}",
        "% of responses, cut at the limit": percent(summary.truncated),
        "% of responses, without an answer": percent(summary.no_answer),
        r"% of responses, with a \boxed answer": percent(summary.format),
        **{
            f"tokens, {name}": UNKNOWN if math.isnan(value) else f"{value:,.0f}"
            for name, value in asdict(summary.lengths).items()
        },
    }
    return {k: v for k, v in rows.items() if summary.says_right or not k.endswith(OF_RIGHT)}


def _headline(found: Estimate | MacroAverage, sampling: float, shares: bool) -> dict[str, str]:
    """avg@n or the mean reward, with its interval and errors; an error of 0 says only that all
    values are equal."""
    return {
        "avg@n" if shares else "mean reward": number(found.mean, shares),
        "95% interval": number_range(*found.interval[:2], shares),
        "standard error, similar problems": number(found.stderr or math.nan, shares),
        "standard error, same problems": number(sampling or math.nan, shares),
    }


def number(value: float, shares: bool, sign: str = "") -> str:
    """A share in percent with one decimal, or a reward; a dash if it is not finite.

    Args:
        value: the share or the reward.
        shares: it is a share.
        sign: "+" for a difference.
    """
    text = f"{100 * value:{sign}.1f}" if shares else f"{value:{sign}.3f}"
    return (text.replace("-", "−") if sign else text) if math.isfinite(value) else UNKNOWN


def number_range(low: float, high: float, shares: bool, sign: str = "") -> str:
    """Two numbers; a dash if they are not finite."""
    ends = (number(each, shares, sign) for each in (low, high))
    return " to ".join(ends) if math.isfinite(low) else UNKNOWN


def percent(value: float) -> str:
    """A share in percent with one decimal; a dash for nan."""
    return number(value, True)


def percent_signed(value: float) -> str:
    """A difference of shares in percent points, with its sign."""
    return number(value, True, "+")


def reading_notes(summaries: Sequence[BenchmarkSummary]) -> list[str]:
    """What the main numbers are, why some are missing, and what was not compared."""
    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    rewarded = ", ".join(each.benchmark for each in summaries if not each.says_right)
    about = (
        f"The reward of {rewarded} does not say which responses are right: mean rewards take the "
        "place of avg@n, and pass@k, maj@k and other numbers of right responses are left out. A "
        f"function says what is right with a mapping such as {MAPPING}."
    )
    counted = "enter no mean reward" if rewarded else "count as wrong"
    counts = {
        f"Undecided responses {counted}": [each.undecided_reasons for each in summaries],
        "Responses that are wrong without a comparison": [each.wrong_causes for each in summaries],
    }
    notes = []
    for what, found in counts.items():
        parts = [
            f"{summary.benchmark} {count:,} ({reason.replace('_', ' ')})"
            for summary, own in zip(summaries, found, strict=True)
            for reason, count in own.items()
        ]
        notes += [f"{what}: {', '.join(parts)}."] if parts else []
    return [
        f"{'Means' if rewarded else 'Percent'} of n responses per problem. The interval is for "
        f"similar problems: {', '.join(methods)}.",
        *([about] if rewarded else []),
        *notes,
    ]


def shared(settings: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that are the same in all."""
    first, *others = settings or [{}]
    return {k: v for k, v in first.items() if all(k in each and each[k] == v for each in others)}


def flat(settings: Mapping[str, Any], common: Container[str] = ()) -> dict[str, str]:
    """Settings by dotted name, each as one line of text, without the common ones."""
    found = flattened(settings).items()
    return {name: _line(value) for name, value in found if name not in common}


def _line(value: Any) -> str:
    if isinstance(value, str) and value.strip() == value and value.isprintable() and value:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Model, versions, hardware and the like, one line of text each."""
    lines: dict[str, str] = {}
    for name, value in about.items():
        if isinstance(value, Mapping):
            lines[name] = ", ".join(f"{key} {text}" for key, text in flat(value).items())
        elif value is not None:
            lines |= flat({name: value})
    return lines


def _estimated(estimate: Estimate, problems: int) -> str:
    """The mean in percent, with the number of problems if it is not all of them."""
    fewer = f" (of {estimate.problems:,})" if estimate.problems < problems else ""
    return percent(estimate.mean) + fewer


def results_json(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` is for these very problems.
    Intervals are at 95%. Undecided responses count as wrong everywhere; `avg@n_bounds` is avg@n if
    all of them are wrong, and if all are right. `pass@k_problems` is the number of problems with at
    least k responses, if it is not all of them. Where nothing says which responses are right,
    `reward` takes the place of `avg@n`, and there are no numbers of right responses.

    Args:
        results: one per benchmark.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
    """
    found = {**about, "settings": shared([each.settings for each in results])}
    found["results"] = {each.summary.benchmark: _benchmark(each) for each in results}
    summaries = [each.summary for each in results]
    if len(results) > 1 and math.isfinite((macro := macro_average(summaries)).mean):
        name = "avg" if results[0].summary.says_right else "reward"
        found["macro_average"] = {
            "benchmarks": list(macro.benchmarks),
            **_numbers(name, macro),
            f"{name}_stderr_sampling": macro.standard_errors.sampling,
        }
    return from_json(to_json(found, inf_nan_mode="null"))


def results_markdown(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> str:
    """A table to paste, with notes on what its numbers mean and how they were measured.

    Args:
        results: one per benchmark.
        about: as for `results_json`.
    """
    summaries = [each.summary for each in results]
    notes = reading_notes(summaries) + _settings(results)
    notes += [f"{_listed(facts(about))}."] if about else []
    table = markdown_table(*summary_table(summaries))
    return "\n\n".join([table, *map(escaped, notes)]) + "\n"


def _settings(results: Sequence[BenchmarkResult]) -> list[str]:
    common = shared([flat(each.settings) for each in results])
    own = {f"{each.summary.benchmark}: ": flat(each.settings, common) for each in results}
    parts = [f"{name}{_listed(those)}" for name, those in ({"": common} | own).items() if those]
    return [f"Settings: {'. '.join(parts)}."] if parts else []


def _listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _benchmark(result: BenchmarkResult) -> dict[str, Any]:
    summary, n = result.summary, result.summary.samples_per_problem
    main = f"avg@{n}" if summary.says_right else "reward"
    numbers: dict[str, Any] = {
        "problems": summary.problems,
        "samples": n,
        "responses": summary.responses,
        **_numbers(main, summary.estimate),
        f"{main}_stderr_sampling": summary.standard_errors.sampling,
        f"{main}_interval_method": summary.interval.method,
        f"{main}_bounds": list(summary.bounds),
    }
    for name, estimates in (("pass", summary.pass_at), ("maj", summary.maj_at)):
        for k, estimate in estimates.items():
            numbers |= _numbers(f"{name}@{k}", estimate)
            if estimate.problems < summary.problems:
                numbers[f"{name}@{k}_problems"] = estimate.problems
    every = [summary.pass_at_k(k) for k in range(1, n + 1)]
    numbers |= {
        "pass@k": [estimate.mean for estimate in every if estimate.values],
        **{name: getattr(summary, name) for name in COUNTS},
        "undecided_reasons": dict(summary.undecided_reasons),
        "wrong_causes": dict(summary.wrong_causes),
        **{f"length_{name}": value for name, value in asdict(summary.lengths).items()},
        "settings": dict(result.settings),
    }
    known = summary.says_right
    return {k: v for k, v in numbers.items() if known or k not in OF_RIGHT_JSON}


def _numbers(name: str, estimate: Estimate | MacroAverage) -> dict[str, Any]:
    interval = list(estimate.interval[:2])
    return {name: estimate.mean, f"{name}_stderr": estimate.stderr, f"{name}_interval": interval}


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
        "facts": definition_list(facts(about)),
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
            "measure": "percent right" if each.summary.says_right else "mean reward",
            "problems": [problem_data(p, each.summary.says_right) for p in each.graded.problems],
        }
        for each in results
    ]
    data = {"data": {"benchmarks": benchmarks, "verdicts": VERDICTS}}
    content = render_page(
        title,
        fill(_asset("assets/evaluation.html"), parts),
        styles=_asset("assets/evaluation.css"),
        scripts=[_asset("assets/evaluation.js")],
        libraries=["katex"],
        data=data | {f"texts-{b}-{p}": each for (b, p), each in texts.items()},
    )
    write_whole(path, content)


def _summary_table(results: Sequence[BenchmarkResult]) -> str:
    names, rows = summary_table([each.summary for each in results])
    links = [f"<a href='#b{i}'>{escape(name)}</a>" for i, name in enumerate(names[1:])]
    links[len(results) :] = map(escape, names[len(results) + 1 :])  # the mean has no section
    return html_table(links, ((name, texts) for name, *texts in rows))


def _notes(results: Sequence[BenchmarkResult], kept: int, total: int) -> list[str]:
    lines = reading_notes([each.summary for each in results])
    if any(each.summary.truncated > 0 for each in results):
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
        if counts[letter] or letter in ("tug" if counts["g"] else "rwtnu")
    )


def _section(index: int, result: BenchmarkResult, common: Mapping[str, str]) -> str:
    name, own = escape(result.summary.benchmark), flat(result.settings, common)
    return (
        f"<section id='b{index}' class=benchmark><h2>{name}</h2>{definition_list(own)}"
        f"<div class=grid role=grid aria-label='{name}: problems and samples'></div></section>"
    )


def verdict(response: ResponseRecord, grade: Graded) -> str:
    """The letter of a response; one that was cut and is not right is truncated."""
    if grade.undecided:
        return "u"
    if grade.correct:
        return "r"
    if response.finish == "length":
        return "t"
    if grade.correct is None:
        return "g"
    return "n" if grade.no_answer else "w"


def problem_data(each: GradedProblem, says_right: bool = True) -> Mapping[str, Any]:
    """Everything about a problem but the texts of its responses."""
    share = each.value(says_right)
    return {
        "id": each.problem.id,
        "prompt": each.problem.prompt,
        "gold": each.problem.answer,
        "share": None if math.isnan(share) else share,
        "rewards": [grade.reward if not grade.undecided else None for grade in each.grades],
        "verdicts": "".join(map(verdict, each.responses, each.grades)),
        "answers": [grade.answer for grade in each.grades],
        "reasons": [grade.reason for grade in each.grades],
        "samples": [response.sample for response in each.responses],
        "seeds": [str(response.seed) for response in each.responses],  # too large for JavaScript
        "tokens": [response.tokens for response in each.responses],
        "finishes": [response.finish for response in each.responses],
    }


Said = str | list[dict[str, str]]
"""A response; of a conversation, the `text`, `observation` and `note` of each turn."""


def said(response: ResponseRecord) -> Said:
    """What a page shows of a response; control characters of the environment are symbols."""
    return [
        {
            "text": str(turn["text"]),
            "observation": "\n".join(map(visible, str(turn["observation"]).split("\n"))),
            "note": _note(turn),
        }
        for turn in response.turns
    ] or response.text


def _note(turn: Mapping[str, Any]) -> str:
    """The reward of a turn, its calls, and why the conversation ended."""
    uses = [
        visible(f"{use['name']}: {use['error']}" if use["error"] else str(use["name"]), 80)
        for use in turn.get("uses", ())
    ]
    parts = [f"reward {turn['reward']:.3g}", f"calls {', '.join(uses)}" if uses else ""]
    return "; ".join(filter(None, [*parts, ENDS.get(turn["end"], "")]))


def kept_texts(
    results: Sequence[BenchmarkResult], budget: int
) -> tuple[dict[tuple[int, int], list[Said]], int, int]:
    """The responses that fit: all first ones, then all second ones, and so on.

    Args:
        results: the benchmarks.
        budget: bytes of JSON.

    Returns:
        (texts by index of benchmark and problem, number of texts, number of responses).
    """
    problems: dict[tuple[int, int], GradedProblem] = {}
    for b, result in enumerate(results):
        problems |= {(b, p): each for p, each in enumerate(result.graded.problems)}
    first_ones_first = sorted(
        (sample, index) for index, each in problems.items() for sample in range(len(each.responses))
    )
    kept: dict[tuple[int, int], list[Said]] = {index: [] for index in problems}
    for sample, index in first_ones_first:
        text = said(problems[index].responses[sample])
        budget -= len(script_safe(text))
        if budget < 0:
            break
        kept[index].append(text)
    return kept, sum(map(len, kept.values())), len(first_ones_first)
