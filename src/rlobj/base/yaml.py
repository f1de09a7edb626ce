"""YAML with the plain scalars of YAML 1.2, its core schema. Import it only to read or write.

Without quotes, `010` is 10, `0o10` is 8, `0x10` is 16, `1e3` and `.5` are numbers, and `1:30`,
`1_000`, `yes`, `no`, `on` and `off` are text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from rlobj.base.files import packaged

MOST_TEXT, MOST_VALUES, MOST_LEVELS, MOST_DIGITS = 1 << 18, 20_000, 40, 40
"""The longest text that is read; the most values, those that aliases repeat counted again; the most
levels of nesting; and the most digits of a whole number."""


class Loader(yaml.SafeLoader):
    """A loader of a stranger's text: keys must be text, and a key must not be given twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values, self._level = 0, 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event, before = self.peek_event(), self._values  # type: ignore[no-untyped-call]
        self._level += 1
        if self._level > MOST_LEVELS:
            raise _refusal(event, f"nested more than {MOST_LEVELS} levels deep")
        node: Any = super().compose_node(parent, index)
        self._level -= 1
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise _refusal(event, f"*{event.anchor} contains itself")
            self._values += self._sizes[node]
        else:
            text = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            self._values += 1 + text // 100
            self._sizes[node] = self._values - before
        if self._values > MOST_VALUES:
            raise _refusal(event, f"more than {MOST_VALUES:,} values, with those of aliases")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<`: PyYAML resolves it below
                continue
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if not isinstance(key, str):
                message = f"a key must be text, got {key!r}; put quotes around a text with a comma"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built


class _PackagedLoader(_Fast):
    """A loader of rlobj's own files."""


class _Dumper(yaml.SafeDumper):
    """A dumper that puts quotes around a text which YAML 1.1 or 1.2 reads as something else."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if _BREAKS.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_BREAKS = re.compile("[\n\x85\u2028\u2029\ufeff]")
"""Escapes are easier to read than a quoted text over several lines, where a blank line is a break.
PyYAML reads the rare breaks as another one, or not at all, unless they are escaped."""


def _refusal(at: Any, what: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, at.start_mark)


def load_yaml(text: str) -> Any:
    """The value of a text, in bounded time and memory, whoever wrote it.

    Raises:
        ValueError: the text is not valid YAML, or it is too long; with the line.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has more than {MOST_TEXT:,} characters")
    try:
        return yaml.load(text, Loader=Loader)
    except Exception as error:  # a tag on a wrong value raises many others than YAMLError
        raise ValueError(str(error)) from error


def packaged_table(package: str, name: str) -> Any:
    """A table that rlobj contains as a YAML file."""
    return yaml.load(packaged(package, name), _PackagedLoader)


def dump_yaml(value: Any, **options: Any) -> str:
    """The YAML text from which `load_yaml` reads an equal value.

    Args:
        value: plain data.
        **options: of `yaml.dump`, such as `default_flow_style`.
    """
    return yaml.dump(value, Dumper=_Dumper, **options)


_CORE = {
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    "float": (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
}
"""The plain scalars of YAML 1.2's core schema, and their first characters; null is that of 1.1."""
_OF_1_1 = {f"tag:yaml.org,2002:{name}" for name in (*_CORE, "timestamp", "value")}


def _whole_number(loader: Any, node: yaml.ScalarNode) -> int:
    text = _matched(loader, node, "int")
    if len(text) > MOST_DIGITS:
        raise _refusal(node, f"a whole number of more than {MOST_DIGITS} digits")
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _number(loader: Any, node: yaml.ScalarNode) -> float:
    text = _matched(loader, node, "float").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _truth(loader: Any, node: yaml.ScalarNode) -> bool:
    return _matched(loader, node, "bool").lower() == "true"


def _matched(loader: Any, node: yaml.ScalarNode, kind: str) -> str:
    """The text of a scalar, which a tag may have made one of this kind."""
    text = loader.construct_scalar(node)
    if not _CORE[kind][0].fullmatch(text):
        raise _refusal(node, f"{text[:80]!r} is no {kind} of YAML 1.2")
    return text


for _loader in (Loader, _PackagedLoader):
    _loader.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] not in _OF_1_1]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    for _kind, _construct in (("int", _whole_number), ("float", _number), ("bool", _truth)):
        _loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct)
_Dumper.add_representer(str, _Dumper.represent_str)
for _class in (Loader, _PackagedLoader, _Dumper):
    for _kind, (_form, _first) in _CORE.items():
        _whole = re.compile(rf"(?:{_form.pattern})\Z")
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _whole, list(_first))
