"""`inspect.html`: the tokens of a run as a page that needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError
from rlobj.base.files import packaged, write_whole
from rlobj.base.targets import importing
from rlobj.config.run_folder import Progress, named_folder
from rlobj.insight.filtering import TOKEN_BY_TOKEN, deciding
from rlobj.insight.inspecting import share, tokens_by_step
from rlobj.insight.page.store import PageRows, listed, read_rows, store_data
from rlobj.objectives.objective import Objective
from rlobj.objectives.planning import flat
from rlobj.objectives.rules import Expr, Rule
from rlobj.objectives.rules.columns import COLUMNS as RULE_COLUMNS
from rlobj.objectives.rules.nodes import Column, Compare, Constant, Cut, Logic, When
from rlobj.records.reading import COLUMNS
from rlobj.reporting import visible
from rlobj.reporting.figures import definition_list, fill, render_page

_asset = partial(packaged, "rlobj.insight.page")
STORE = ("rules", "evaluate", "store")
"""Scripts that read the rows of a page: `rules` and `openStore`."""
VIEWS = ("page", "scales", "filter", "details", "responses", "tokens", "planes", "inspect")


def write_inspection_page(
    run: Path | str,
    path: Path | str | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Write a page that shows the tokens of a run and what its objective did to them.

    The page is one file without a network: a browser opens it from the disk. Steps with full tables
    show all tokens, the others their recorded tokens; the page has at most a million of both.
    Nothing in the run's folder is executed.

    Args:
        run: the run's folder; the run may still be going on.
        path: the file; None = `inspect.html` in the run's folder.
        progress: called with (full tables read, all full tables).

    Returns:
        The file.

    Raises:
        ConfigError: no run there, or neither records nor full tables, or damaged ones.
        RunError: the disk refused.
    """
    run = Path(run)
    path = run / "inspect.html" if path is None else Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no folder {path.parent}")
    page = read_rows(run, progress=progress)
    tokens = tokens_by_step(run)
    objective = _objective(page)
    found = deciding(objective).values() if objective else ()
    rules: dict[Expr, str] = {rule: ", ".join(fields) for rule, fields in found}
    given: list[tuple[str, Any]] = [(field, rule) for rule, field in rules.items()]
    if objective and objective.mismatch:
        given.append(("mismatch", objective.mismatch))
    name = visible(named_folder(run).name, 100)
    body = {
        "title": escape(name),
        "facts": definition_list(_facts(page, tokens, given)),
        "notes": escape(" ".join(visible(note, 500) for note in _notes(page))),
    }
    about = {
        "tokens": tokens,
        "rules": [{"field": field, "parts": _parts(rule)} for rule, field in rules.items()],
        "examples": _examples(page, rules),
        "columns": {
            **{n: {"meaning": each[0]} for n, each in RULE_COLUMNS.items()},
            **{n: {"unit": each.unit, "meaning": each.meaning} for n, each in COLUMNS.items()},
        },
    }
    meta, columns = store_data(page)
    content = render_page(
        f"{name}: tokens",
        fill(_asset("assets/inspect.html"), body),
        styles=_asset("assets/inspect.css"),
        scripts=[_asset(f"assets/{name}.js") for name in (*STORE, *VIEWS)],
        data={"about": about, "store-meta": meta},
        packed=columns,
        libraries=["echarts"],
    )
    write_whole(path, content)
    return path


def _objective(page: PageRows) -> Objective | None:
    """The objective of a run; None if this version or this computer cannot read it."""
    try:
        with importing(False):  # a run's folder is not trusted
            return Objective(**page.settings["objective"])
    except (ConfigError, ValidationError, TypeError, KeyError):
        return None


def _conditions(expression: Expr) -> list[Rule]:
    """A rule, or the conditions in a number."""
    if isinstance(expression, Rule):
        return [expression]
    return [node.rule for node in expression.walk() if isinstance(node, When)]


def _parts(expression: Expr) -> list[dict[str, Any]]:
    """The parts of a rule, of which the page says whether they hold for a token."""
    either = [each for rule in _conditions(expression) for each in flat(rule, Logic, "|")]
    parts = [part for each in either for part in flat(each, Logic, "&")]
    return [
        {
            "text": str(part),
            "population": not all(isinstance(node, TOKEN_BY_TOKEN) for node in part.walk()),
            "bounds": list(_bounds(part)),
        }
        for part in dict.fromkeys(parts)
    ]


def _bounds(rule: Expr | None) -> Iterator[dict[str, Any]]:
    """The bounds of a rule on single columns; that of a cut has no number yet."""
    match rule:
        case Compare(operator, Column(name), Constant(value)):
            below = operator.startswith("<")
            yield {"text": str(rule), "column": name, "value": value, "below": below}
        case Cut(side, Column(name)):
            yield {"text": str(rule), "column": name, "value": None, "below": side == "bottom"}
            yield from _bounds(rule.within)


def _examples(page: PageRows, rules: Iterable[Expr]) -> list[str]:
    """Rules to choose for the filter, the run's own first."""
    found = [str(rule) for each in rules for rule in _conditions(each)]
    if page.rows["spurious"].null_count < len(page.rows):
        found.append("(spurious > 0) & (kept > 0)")
    if page.rows["prob"].null_count < len(page.rows):
        found.append("prob < 0.001")
    return [*dict.fromkeys(found)]


def _facts(
    page: PageRows, tokens: Mapping[int, float], given: Iterable[tuple[str, Any]]
) -> dict[str, str]:
    """The head of the page: what decides, steps, and counts of touched and spurious tokens."""
    rows = page.rows
    facts: dict[str, str] = {}
    for field, each in given:
        facts[field] = f"{facts[field]}; {each}" if field in facts else str(each)
    steps = pc.unique(rows["step"]).to_pylist()
    facts["steps"] = f"{min(steps)} to {max(steps)}" if len(steps) > 1 else f"{steps[0]}"
    probability, effect = rows["inclusion_probability"], rows["effect"].cast("string")
    exact = tokens.keys() >= {*steps}  # the record may be ahead of metrics.jsonl
    total = sum(tokens[step] for step in steps) if exact else _count(probability)
    facts["tokens"] = f"{'' if exact else '≈ '}{total:,.0f}"
    marked = {name: pc.equal(effect, name) for name in pc.unique(effect).drop_null().to_pylist()}
    for name, chosen in (marked | {"spurious": rows["spurious"]}).items():
        if len(p := probability.filter(chosen)):
            about = "≈ " * bool(pc.min(p).as_py() < 1)
            facts[visible(name, 20)] = about + share(_count(p), total)
    return {name: visible(text, 400) for name, text in facts.items()}


def _count(probability: Any) -> float:
    """The number of tokens that stand in the page with these probabilities."""
    return pc.sum(pc.divide(1.0, probability)).as_py()


def _notes(page: PageRows) -> list[str]:
    """What is exact and what is estimated, and what is left out."""
    whole = {update["step"] for update in page.updates}
    others = {*pc.unique(page.rows["step"]).to_pylist()} - whole
    lines = [f"Steps with all their tokens: {listed(whole)}."] if whole else []
    if others:
        lines.append(
            f"{'Of the other steps' if whole else 'Of each step'}, this page has what was "
            "recorded: touched and spurious tokens, and a sample of the others. A count that uses "
            "a sample is marked ≈."
        )
    return [*lines, *page.notes]
