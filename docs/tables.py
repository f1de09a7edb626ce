"""The generated tables of the documentation: of presets/*.yaml, of the code, and of results.

A page has each table between `<!-- table: NAME -->` and `<!-- end of table: NAME -->`.

    python docs/tables.py --write    # writes all tables into their pages
    python docs/tables.py --check    # fails if a page has another table

A new table needs only its first marker in a page: `--write` adds the rest.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import markdown_tables as md
from recipes import ESTIMATES
from results import RESULTS

import rlobj
from rlobj.base.primitives import Primitive
from rlobj.base.validation import Model
from rlobj.base.yaml import dump_yaml, load_yaml
from rlobj.evaluation.protocols import PROTOCOLS, Protocol
from rlobj.objectives.advantages import Advantage
from rlobj.objectives.controllers import Controller
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.rules import COLUMNS, Level, Number, Rule
from rlobj.objectives.rules.nodes import Column
from rlobj.objectives.rules.operators import FUNCTIONS
from rlobj.objectives.settings import bounds_of
from rlobj.objectives.surrogates import Surrogate
from rlobj.rewards import Reward
from rlobj.runs.columns import COLUMNS as RECORDED
from rlobj.runs.logs import NAMES as LOGGED
from rlobj.settings.layers import flattened
from rlobj.settings.presets import Preset, load_preset, preset_names, read_yaml
from rlobj.settings.run_config import RunConfig

__all__ = ["PAGES", "TABLES", "filled"]

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

FAMILIES: dict[str, type[Primitive]] = {
    "advantage": Advantage,
    "surrogate": Surrogate,
    "divisor": Divisor,
    "penalties": Penalty,
    "controllers": Controller,
    "mismatch": Mismatch,
    "rewards": Reward,
}
_TABLE = re.compile(
    r"^<!-- table: (\S+) -->$(?:.*?^<!-- end of table: \1 -->$)?", re.MULTILINE | re.DOTALL
)


def filled(text: str) -> str:
    """A page with its tables as they are now.

    Raises:
        KeyError: a marker names an unknown table.
    """

    def table(marked: re.Match[str]) -> str:
        name = marked[1]
        return f"<!-- table: {name} -->\n\n{TABLES[name]()}\n\n<!-- end of table: {name} -->"

    return _TABLE.sub(table, text)


def _setting(value: Any) -> str:
    """Format a value as YAML on one line."""
    text = dump_yaml(value, flow=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


# Presets.


def _cited(paper: str) -> str:
    """Link the arXiv number of a citation."""
    link = r"[arXiv:\1](https://arxiv.org/abs/\1)"
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", link, paper)


def presets_table() -> str:
    """List every preset with its paper, its formula, and where it departs from the source."""
    presets = [load_preset(name) for name in preset_names()]
    rows = [
        (
            f"`{preset.name}`: {md.cell(preset.summary)}<br>{_cited(md.cell(preset.paper))}",
            md.code(formula(preset)),
            "<br>".join(departures(preset.name)),
        )
        for preset in presets
    ]
    return md.table(("preset and paper", "formula", "what it assumes: in the source → here"), rows)


LONGEST = {"": 60, "drop": 130, "keep": 130, "reweight": 130, "shape": 130, "split": 130}
"""Characters of a rule in the table of presets, and of other settings; the rest is `…`."""


def formula(preset: Preset) -> str:
    """The objective of a preset in one line, with the settings that are not the defaults."""
    settings = dict(preset.config["objective"])
    if settings.get("advantage") == "group_normalized":  # as in most presets, the page says
        del settings["advantage"]
    parts = [_part(settings.pop(name, None), sign) for name, sign in SIGNS.items()]
    for name, value in settings.items():
        primitives = value if isinstance(value, list) else [value]
        parts += [_part(primitive, name) for primitive in primitives]
    return "; ".join(filter(None, parts))


SIGNS = {"advantage": "A", "surrogate": "S", "divisor": "Z"}
"""The primitives that each objective has, and their letters."""


def _part(primitive: Any, sign: str) -> str:
    """`S clip(low=0.2, high=0.28)`; of `let` only the names."""
    if primitive is None:
        return ""
    if isinstance(primitive, Mapping) and "kind" in primitive:
        settings = [f"{k}={_short(v)}" for k, v in primitive.items() if k != "kind"]
        return f"{sign} {primitive['kind']}({', '.join(settings)})"
    if sign == "let":
        return f"let {', '.join(primitive)}"
    if isinstance(primitive, Mapping):
        return f"{sign} {', '.join(f'{name} = {_short(v)}' for name, v in primitive.items())}"
    return f"{sign} {_short(primitive, LONGEST.get(sign, LONGEST['']))}"


def _short(value: Any, longest: int = LONGEST[""]) -> str:
    text = value if isinstance(value, str) else _setting(value)
    return text if len(text) <= longest else "…"


def pinned(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a preset beside its objective, by dotted path; each has a source."""
    sections = ("data", "sampling", "rewards", "training")
    return flattened({name: config[name] for name in sections if name in config})


def sources_of(preset: Preset) -> dict[str, str]:
    """Where each pinned setting comes from, by dotted path; the nearest preset that says so."""
    return {
        setting: source
        for path in [*(load_preset(name).path for name in reversed(preset.bases)), preset.path]
        for source, settings in read_yaml(path).get("sources", {}).items()
        for setting in settings
    }


def _text(name: str) -> str:
    """What a file beside this one says."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _written(name: str) -> Any:
    """What a YAML file beside this one has."""
    return load_yaml(_text(name))


def departures(name: str) -> list[str]:
    """What the source of a preset does, and what the preset does instead, but minor ones."""
    rows = [row for row in _written("departures.yaml") if name in row["presets"]]
    rows = [row for row in rows if not row.get("minor")]
    return [f"{md.cell(row['source'])} → {md.cell(row['here'])}" for row in rows]


# Evaluation.


def protocols() -> str:
    """Describe each protocol: its settings, its source, and its differences from the paper."""
    return "\n\n".join(_protocol(protocol) for protocol in PROTOCOLS.values())


def _protocol(protocol: Protocol) -> str:
    """Describe a protocol; benchmarks with the same settings share a row."""
    groups: dict[Any, list[str]] = {}
    for name, settings in protocol.exceptions.items():
        groups.setdefault(settings, []).append(f"`{name}`")
    groups.setdefault(protocol.settings, []).append("all others" if groups else "all")
    rows = [
        (
            ", ".join(names),
            str(settings.samples),
            str(settings.temperature),
            str(settings.top_p),
            f"{settings.max_tokens:,}",
            md.code(_setting(settings.template)),
        )
        for settings, names in groups.items()
    ]
    header = ("benchmarks", "responses", "temperature", "top-p", "tokens", "template")
    notes = "\n".join(f"- {note}" for note in protocol.notes)
    return (
        f"### {protocol.name}\n\n{_cited(protocol.source)}.\n\n{md.table(header, rows)}\n\n{notes}"
    )


# The language of rules.


def columns_table() -> str:
    """List the columns of rules, and the TokenBatch columns that each needs."""
    rows = [
        (
            f"`{name}`",
            md.cell(column.meaning),
            column.level.name.lower(),
            ", ".join(f"`{read}`" for read in column.reads) or "none",
        )
        for name, column in COLUMNS.items()
    ]
    return md.table(("column", "meaning", "level", "needs in the TokenBatch"), rows)


def methods_of_numbers() -> str:
    """List the methods of numbers with their arguments and the level of the result."""
    return _methods(Number, Column("entropy"), "x")


def methods_of_rules() -> str:
    """List the methods of rules with their arguments and the level of the result."""
    return _methods(Rule, Column("entropy") > 1, "rule")


def _methods(kind: type[Number | Rule], example: Number | Rule, owner: str) -> str:
    rows = []
    for name, method in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        parameters = [*inspect.signature(method).parameters.values()][1:]
        shown = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        needed = {p.name: 0.2 for p in parameters if p.default is p.empty}
        made = method(example, **needed)
        by = made.level != Level.TOKEN and any(p.name == "by" for p in parameters)
        gives = "rule" if made.is_rule else "number"
        gives += f" per {'`by`' if by else made.level.name.lower()}"
        about = inspect.cleandoc(method.__doc__ or "").split("\n\n")[0]
        about = re.sub(r"; the arguments are those of .*", ".", " ".join(about.split()))
        rows.append((f"`{owner}.{name}({', '.join(shown)})`", md.cell(about), gives))
    return md.table(("method", "meaning", "gives"), rows)


def functions() -> str:
    """List the functions of the language."""
    rows = []
    for name, function in FUNCTIONS.items():
        about = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0]
        arguments = ", ".join(inspect.signature(function).parameters)
        rows.append((f"`{name}({arguments})`", md.cell(about)))
    return md.table(("function", "meaning"), rows)


# Settings.


def configuration() -> str:
    """List the settings of each section of RunConfig."""
    top, sections = [], []
    for name, field in RunConfig.model_fields.items():
        inner = field.annotation
        if inner is Reward:
            continue
        if isinstance(inner, type) and issubclass(inner, Model):
            sections += [f"### {name}", _first_paragraph(inner), _settings(inner)]
        else:
            top.append(name)
    return "\n\n".join(["### top level", _settings(RunConfig, only=top), *sections])


def primitives() -> str:
    """Describe every kind of each family of primitives: equation, source, settings."""
    parts = []
    for name, family in FAMILIES.items():
        parts.append(f"### {name} kinds")
        shared = list(family.model_fields)
        if shared:
            parts += ["Settings of every kind:", _settings(family, only=shared)]
        for kind, member in family.registry.items():
            parts += [f"#### {kind}", md.block("text", inspect.cleandoc(member.__doc__ or ""))]
            own = [key for key in member.model_fields if key not in shared]
            if own:
                parts.append(_settings(member, only=own))
    return "\n\n".join(parts)


def _settings(model: type[Model], only: Sequence[str] | None = None) -> str:
    names = model.model_fields if only is None else only
    rows = [row for name in names for row in _rows(model, name, "")]
    return md.table(("key", "type", "default", "meaning"), rows)


def _rows(model: type[Model], name: str, prefix: str) -> list[tuple[str, str, str, str]]:
    """Return the row of a field and the rows of the mapping inside it."""
    field = model.model_fields[name]
    key = f"{prefix}{field.alias or name}"
    inner = [
        part
        for part in (get_args(field.annotation) or (field.annotation,))
        if isinstance(part, type) and issubclass(part, Model)
    ]
    plain = [part for part in inner if not issubclass(part, Primitive)]
    default = "required" if field.is_required() else md.code(_default(field.get_default()))
    if plain and field.get_default() is not None:
        default = "–"
    elif field.default_factory is not None:
        default = md.code("{}") if field.default_factory is dict else "computed"
    meaning = model.meanings()[field.alias or name]
    bounds = bounds_of(field)
    kind = _type(field.annotation)
    if bounds is not None:
        kind = f"{bounds} or an expression{' or null' if bounds.optional else ''}"
    row = (f"`{key}`", md.cell(kind), default, _meaning(meaning))
    nested = [r for part in plain for n in part.model_fields for r in _rows(part, n, f"{key}.")]
    return [row, *nested]


def _meaning(text: str) -> str:
    """Escape a description, so that Markdown shows it as it is; code needs no escapes."""
    parts = md.cell(text).split("`")
    parts[::2] = [re.sub(r"[<*]", r"\\\g<0>", prose) for prose in parts[::2]]
    return "`".join(parts)


def _default(value: Any) -> str:
    if isinstance(value, Primitive):
        return _setting(value.kind)
    if isinstance(value, tuple):
        return _setting(list(value))
    plain = value is None or isinstance(value, int | float | str | dict)
    return _setting(value) if plain else str(value)


def _type(annotation: Any) -> str:
    """Name a type in the terms of YAML."""
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    if get_origin(annotation) in (tuple, list):
        return "list"
    if get_origin(annotation) is dict:
        return "mapping"
    names = {int: "integer", float: "number", str: "text", bool: "true or false"}
    if annotation in names:
        return names[annotation]
    if annotation is type(None):
        return "null"
    name = getattr(annotation, "__name__", str(annotation))
    known = {"Rule": "rule", "Number": "number or expression"}
    if name in known:
        return known[name]
    return "kind or mapping" if issubclass(annotation, Primitive) else "mapping"


def _first_paragraph(model: type) -> str:
    return inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]


def verifier_policy() -> str:
    """The verifier's decisions where fair judges could differ, with examples."""
    rows = [
        [row["question"], *(", ".join(map(md.code, texts)) for texts in ([row["gold"]], *both))]
        for row in _written("verifier-policy.yaml")
        for both in [(row["right"], row["wrong"])]
    ]
    return md.table(("question", "gold", "right", "wrong"), rows)


def ablations(group: str) -> str:
    """The variants of a preset, with the settings that change it."""
    return md.table(
        ("variant", "what changes", "settings"),
        [
            (f"`{row['name']}`", md.cell(row["change"]), " ".join(map(md.code, row["settings"])))
            for row in _written("ablations.yaml")[group]
        ],
    )


def records_table() -> str:
    """List the columns of records/."""
    rows = [
        [md.code(name), md.cell(column.type), md.cell(column.unit), md.cell(column.meaning)]
        for name, column in RECORDED.items()
    ]
    return md.table(["column", "type", "unit", "meaning"], rows)


def logs_table() -> str:
    """List what other trainers log, by its name in metrics.jsonl."""
    rows = [
        [md.code(name), *(md.code(row[key]) if key in row else "" for key in ("trl", "verl"))]
        for name, row in LOGGED.items()
    ]
    return md.table(["metric", "TRL", "verl"], rows)


def modules_table() -> str:
    """List the modules of the reference, with the names that each defines."""
    names = re.findall(r"^   (rlobj\.\S+)$", _text("contents.rst"), re.MULTILINE)
    return md.table(("module", "what it holds", "names"), [_module_row(name) for name in names])


def _module_row(name: str) -> list[str]:
    module = importlib.import_module(name)
    path = Path(inspect.getfile(module)).relative_to(Path(rlobj.__file__).parents[1])
    defined = [
        key
        for key, value in vars(module).items()
        if callable(value) and value.__module__ == name and not key.startswith("_")
    ]
    public = getattr(module, "__all__", defined)
    about = md.cell((module.__doc__ or "").splitlines()[0])
    return [f"[`{name}`](../src/{path})", about, ", ".join(map(md.code, public))]


TABLES: dict[str, Callable[[], str]] = {
    **{
        f"ablations-{group}": partial(ablations, group)
        for group in ("stapo", "stare", "stare-gates", "ar", "lopti")
    },
    "presets": presets_table,
    "protocols": protocols,
    "columns": columns_table,
    "methods-of-numbers": methods_of_numbers,
    "methods-of-rules": methods_of_rules,
    "functions": functions,
    "configuration": configuration,
    "primitives": primitives,
    "records": records_table,
    "logs": logs_table,
    "modules": modules_table,
    "verifier-policy": verifier_policy,
    **ESTIMATES,
    **RESULTS,
}


def main() -> str | None:
    """Write the tables, or compare them; the text says which pages differ."""
    parser = argparse.ArgumentParser(description="The generated tables of the documentation.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write all tables into their pages")
    what.add_argument("--check", action="store_true", help="fail if a page has another table")
    write = parser.parse_args().write
    differ = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (current := filled(text)) != text:
            differ.append(str(page.relative_to(ROOT)))
            if write:
                page.write_text(current, encoding="utf-8")
    if write or not differ:
        return None
    return f"Tables differ in {', '.join(differ)}: run python docs/tables.py --write"


if __name__ == "__main__":
    sys.exit(main())
