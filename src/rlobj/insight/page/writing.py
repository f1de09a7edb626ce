"""`inspect.html`: the tokens of a run as a page that needs no network."""

from collections import Counter
from functools import partial
from html import escape
from pathlib import Path

from rlobj.base.arrow import pc
from rlobj.base.files import packaged, write_whole
from rlobj.insight.numbers import listed, share
from rlobj.insight.page.rows import PageRows, read_rows
from rlobj.insight.page.rules import described_rule, rules_of
from rlobj.insight.page.store import store_data
from rlobj.objectives.rules.columns import COLUMNS as RULE_COLUMNS
from rlobj.reporting import visible
from rlobj.reporting.pages import definition_list, fill, render_page
from rlobj.runs.columns import COLUMNS
from rlobj.runs.layout import named_folder
from rlobj.runs.metrics import Progress

__all__ = ["write_inspection_page"]
_asset = partial(packaged, "rlobj.insight.page")
VIEWS = ("page", "filter", "details", "values", "responses", "tokens", "planes", "inspect")


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
    page = read_rows(run, progress=progress)
    rules = rules_of(page.objective)
    name = visible(named_folder(run).name, 100)
    body = {"title": escape(name), "facts": definition_list(_facts(page))}
    body["notes"] = escape(" ".join(visible(note, 500) for note in _notes(page)))
    described = {name: {"meaning": meaning} for name, (meaning, *_) in RULE_COLUMNS.items()}
    described |= {k: {"unit": c.unit, "meaning": c.meaning} for k, c in COLUMNS.items()}
    if critic := page.objective and page.objective.critic:
        described[f"{critic}_value"] = described.pop("value")
    about = {
        "touched": page.touched,
        "critic": critic,
        "rules": [described_rule(rule, field) for rule, field in rules.items()],
        "columns": described,
    }
    meta, columns = store_data(page)
    content = render_page(
        f"{name}: tokens",
        fill(_asset("assets/inspect.html"), body),
        styles=_asset("assets/inspect.css"),
        scripts=[_asset(f"assets/{name}.js") for name in ("store", *VIEWS)],
        data={"about": about, "store-meta": meta},
        packed=columns,
        libraries=["echarts"],
    )
    write_whole(path, content)
    return path


def _facts(page: PageRows) -> dict[str, str]:
    """The head of the page: what decides, steps, and counts of tokens by effect."""
    facts: dict[str, str] = {}
    for rule, field in rules_of(page.objective).items():
        facts[field] = f"{facts[field]}; {rule}" if field in facts else str(rule)
    if page.objective and page.objective.mismatch:
        facts["mismatch"] = str(page.objective.mismatch)
    counts: Counter[str] = Counter()
    for update in page.counts:
        counts["tokens"] += update.tokens
        for clause in update.clauses:
            counts[clause.effect] += clause.tokens
    if steps := {update.step for update in page.counts}:
        facts["steps"] = listed(steps).removeprefix("steps ").removeprefix("step ")
    for name, count in counts.items():
        text = f"{count:,}" if name == "tokens" else share(count, counts["tokens"])
        facts[visible(name, 20)] = text
    return {name: visible(text, 400) for name, text in facts.items()}


def _notes(page: PageRows) -> list[str]:
    """Which tokens the page has, and what is left out."""
    whole = {update["step"] for update in page.updates}
    others = {*pc.unique(page.rows["step"]).to_pylist()} - whole
    lines = [f"All tokens of {listed(whole)}."] if whole else []
    if others:
        which = "Of the other steps" if whole else "Of each step"
        part = "the" if page.touched else "the first"
        lines.append(f"{which}, this page has {part} touched and spurious tokens of each update.")
    return [*lines, *page.notes]
