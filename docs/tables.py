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
from studies import STUDIES

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
from rlobj.objectives.rules import COLUMNS, Level, Number, Rule, operators
from rlobj.objectives.rules.columns import FUNCTIONS, LEVELS
from rlobj.objectives.rules.nodes import Column
from rlobj.objectives.settings import bounds_of
from rlobj.objectives.surrogates import Surrogate
from rlobj.rewards import Reward
from rlobj.runs.columns import COLUMNS as RECORDED
from rlobj.settings.layers import flattened
from rlobj.settings.presets import Preset, difference, load_preset, preset_names, read_yaml
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
    text = dump_yaml(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


# Presets.


def _cited(paper: str) -> str:
    """Link the arXiv number of a citation."""
    link = r"[arXiv:\1](https://arxiv.org/abs/\1)"
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", link, paper)


def presets_table() -> str:
    """List every preset with its paper and summary."""
    presets = [load_preset(name) for name in preset_names()]
    rows = [(f"`{p.name}`", _cited(md.cell(p.paper)), md.cell(p.summary)) for p in presets]
    return md.table(("preset", "paper", "what it does"), rows)


RECIPE = ("data", "sampling", "rewards", "training")
"""The sections of a preset that are its recipe."""


def recipe(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a recipe by dotted path."""
    return flattened({name: config[name] for name in RECIPE if name in config})


def sources_of(preset: Preset, *, own: bool = False) -> dict[str, str]:
    """The source of each setting, by dotted path; the nearest preset that names one counts.

    Args:
        preset: the preset.
        own: only what its own file names.
    """
    bases = [] if own else [load_preset(name).path for name in reversed(preset.bases)]
    return {
        setting: _place(source, place)
        for path in [*bases, preset.path]
        for source, settings in read_yaml(path).get("sources", {}).items()
        for setting, place in settings.items()
    }


def _place(source: str, place: Any) -> str:
    """`script.sh, line 42`."""
    if place is None:
        return source
    numbers = re.fullmatch(r"[\d, -]+", str(place))
    lines = ("lines " if re.search(r"[,-]", str(place)) else "line ") if numbers else ""
    return f"{source}: {lines}{place}"


def recipes_table() -> str:
    """Compare the recipes of all presets; an empty cell is the library's default."""
    presets = [load_preset(name) for name in preset_names()]
    columns = {
        "prompts": "sampling.prompts_per_step",
        "responses": "sampling.group_size",
        "tokens": "sampling.max_tokens",
        "prompt tokens": "data.max_prompt_tokens",
        "temperature": "sampling.temperature",
        "dynamic by": "sampling.dynamic.by",
        "batches": "sampling.dynamic.max_batches",
        "oversampling": "sampling.dynamic.oversampling",
        "updates": "training.updates_per_step",
        "passes": "training.passes",
        "learning rate": "training.learning_rate",
        "warm-up": "training.warmup_steps",
        "weight decay": "training.weight_decay",
        "gradient norm": "training.max_grad_norm",
    }
    rows = []
    for preset in presets:
        settings = recipe(preset.config)
        cells = [str(settings.get(path, "")) for path in columns.values()]
        rows.append((f"[{preset.name}](#{preset.name})", *cells))
    return md.table(("preset", *columns), rows)


def preset_sections() -> str:
    """Describe each preset: its file, its formula, its changes."""
    return "\n\n".join(_preset_section(load_preset(name)) for name in preset_names())


def _preset_section(preset: Preset) -> str:
    training = preset.config.get("training", {})
    updates = training.get("updates_per_step", 0) * training.get("passes", 1)
    parts = [
        f"## {preset.name}",
        f"{preset.summary[0].upper()}{preset.summary[1:]}. {_cited(preset.paper)}.",
        md.block("yaml", without_sources(preset.text)),
        "Formula:",
        md.block("text", str(preset.objective.explain(updates or None))),
        _recipe(preset),
    ]
    if rows := departures(preset.name):
        parts += ["Departures from the source:", md.table(("in the source", "here"), rows)]
    other = preset.bases[0] if preset.bases else "grpo"
    if other != preset.name:
        parts.append(f"Changes to [{other}](#{other}):{_changes(load_preset(other), preset)}")
    return "\n\n".join(parts)


def without_sources(text: str) -> str:
    """The file of a preset without `sources`, which its recipe has."""
    return re.sub(r"^sources:.*\n(?: .*\n)*", "", text, flags=re.MULTILINE)


def _text(name: str) -> str:
    """What a file beside this one says."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _written(name: str) -> Any:
    """What a YAML file beside this one has."""
    return load_yaml(_text(name))


def departures(name: str) -> list[tuple[str, str]]:
    """What the source of a preset does, and what the preset does instead."""
    rows = [row for row in _written("departures.yaml") if name in row["presets"]]
    return [(md.cell(row["source"]), md.cell(row["here"])) for row in rows]


def recipe_rows(preset: Preset) -> list[tuple[str, str, str]]:
    """Each setting of a recipe, its value and its source."""
    sources = sources_of(preset)
    return [
        (f"`{path}`", md.code(_setting(value)), md.cell(sources[path]))
        for path, value in recipe(preset.config).items()
    ]


def _recipe(preset: Preset) -> str:
    """The recipe of a preset, without the settings that are those of its base."""
    base = preset.bases[0] if preset.bases else None
    known = recipe_rows(load_preset(base)) if base else []
    rows = [row for row in recipe_rows(preset) if row not in known]
    others = f"as [{base}](#{base})" if known else ""
    if not rows:
        return f"Recipe: {others or 'none'}."
    title = f"Recipe, otherwise {others}:" if others else "Recipe:"
    scripts = list(dict.fromkeys(row[2].partition(": ")[0] for row in rows if "/" in row[2]))
    names = {script: f"({place})" for place, script in enumerate(scripts, 1)}
    cells = [(*row[:2], _shortened(row[2], names)) for row in rows]
    parts = [title, md.table(("setting", "value", "source"), cells)]
    if names:
        parts.append("<br>\n".join(f"{name} `{script}`" for script, name in names.items()))
    return "\n\n".join(parts)


def _shortened(source: str, names: Mapping[str, str]) -> str:
    """`(1) line 42` for a place in the first script."""
    script, _, place = source.partition(": ")
    return f"{names[script]} {place}".rstrip() if script in names else source


def _changes(below: Preset, preset: Preset) -> str:
    """The changes to a base, or to the objective of another preset, without those of the recipe."""

    def shown(value: Any) -> str:
        return "–" if value is None else md.code(_setting(value))

    rows = [
        (f"`{path}`", shown(old), shown(new))
        for path, old, new in difference(below.config, preset.config)
        if path.startswith("objective.") or (preset.bases and path.split(".")[0] not in RECIPE)
    ]
    if not rows:
        return " the recipe only."
    return f"\n\n{md.table(('setting', below.name, preset.name), rows)}"


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
            md.cell(meaning),
            LEVELS.get(name, "token"),
            ", ".join(f"`{column}`" for column in reads) or "none",
        )
        for name, (meaning, reads) in COLUMNS.items()
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
    rows = [("`abs(number)`", md.cell("|x|."))]
    for name, arguments in FUNCTIONS.items():
        if name != "abs":
            about = inspect.cleandoc(getattr(operators, name).__doc__).split("\n\n")[0]
            rows.append((f"`{name}({', '.join(arguments)})`", md.cell(about)))
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
    "preset-sections": preset_sections,
    "recipes": recipes_table,
    "columns": columns_table,
    "methods-of-numbers": methods_of_numbers,
    "methods-of-rules": methods_of_rules,
    "functions": functions,
    "configuration": configuration,
    "primitives": primitives,
    "records": records_table,
    "modules": modules_table,
    "verifier-policy": verifier_policy,
    **ESTIMATES,
    **STUDIES,
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
