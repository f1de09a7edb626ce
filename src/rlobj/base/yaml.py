"""YAML 1.2. Import it only to read or write.

Without quotes, `010` is 10, `0o10` is 8, `0x10` is 16, `1e3` and `.5` are numbers, and `1:30`,
`yes`, `no`, `on`, `off` and `2026-01-31` are text.
"""

from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver

from rlobj.base.files import packaged

MOST_TEXT, MOST_VALUES, MOST_LEVELS, MOST_DIGITS = 1 << 18, 20_000, 40, 40
"""The longest text that is read; the most values, those that aliases repeat counted again; the most
levels of nesting; and the most digits of a whole number."""
_TAG = "tag:yaml.org,2002:"


class _Resolver(VersionedResolver):
    """The core schema has no dates."""

    def add_version_implicit_resolver(
        self, version: Any, tag: Any, regexp: Any, first: Any
    ) -> None:
        if tag not in (f"{_TAG}timestamp", f"{_TAG}value"):
            super().add_version_implicit_resolver(version, tag, regexp, first)


class _Composer(Composer):
    """Refuses a text of which too many values would be made, before one is made."""

    def get_single_node(self) -> Any:
        root = super().get_single_node()
        nodes, left = [] if root is None else [root], MOST_VALUES
        while nodes:
            node = nodes.pop()
            inner = _inner(node)
            left -= len(inner) + (len(node.value) // 100 if isinstance(node, ScalarNode) else 0)
            if left < 0:
                raise _refusal(node, f"more than {MOST_VALUES:,} values, with those of aliases")
            nodes += inner
        return root


def _inner(node: Node) -> list[Node]:
    """The nodes in a node, whose keys must be text, and each given once; whole numbers are text."""
    if isinstance(node, ScalarNode):
        if str(node.tag) == f"{_TAG}int" and len(node.value) > MOST_DIGITS:
            raise _refusal(node, f"a whole number of more than {MOST_DIGITS} digits")
        return []
    if not isinstance(node, MappingNode):
        return node.value
    names: set[str] = set()
    for key, value in node.value:
        if key.tag == f"{_TAG}int" and value.tag != f"{_TAG}null":
            key.tag = f"{_TAG}str"
        if str(key.tag) not in (f"{_TAG}str", f"{_TAG}merge"):
            what = f"a key must be text, got {key.value}; put quotes around a text with a comma"
            raise _refusal(key, what)
        if key.value in names:
            raise _refusal(key, f"the key {key.value!r} is given twice")
        names.add(key.value)
    return [inner for pair in node.value for inner in pair]


def _refusal(node: Node, what: str) -> ComposerError:
    return ComposerError(None, None, what, node.start_mark)


class _Representer(SafeRepresenter):
    """Escapes line breaks: a quoted text over several lines has a blank line for a break."""

    def represent_str(self, data: str) -> Any:
        style = '"' if data and data.splitlines() != [data] else None
        return self.represent_scalar(f"{_TAG}str", data, style=style)


_Representer.add_representer(str, _Representer.represent_str)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver, yaml.Composer, yaml.Representer = _Resolver, _Composer, _Representer
    yaml.max_depth = MOST_LEVELS
    return yaml


def load_yaml(text: str) -> Any:
    """The value of a text, in bounded time and memory, whoever wrote it.

    Raises:
        ValueError: the text is not valid YAML, or it is too long; with the line.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"it has more than {MOST_TEXT:,} characters")
    try:
        return _yaml().load(text)
    except Exception as error:  # a tag on a wrong value raises many others than YAMLError
        raise ValueError(str(error)) from error


def packaged_table(package: str, name: str) -> Any:
    """A table that rlobj contains as a YAML file."""
    return YAML(typ="safe").load(packaged(package, name))


def dump_yaml(value: Any, *, flow: bool | None = False, width: int = 80) -> str:
    """The YAML text from which `load_yaml` reads an equal value.

    Args:
        value: plain data.
        flow: whether to write `{key: value}` on one line; None = only of the innermost values.
        width: characters of a line.
    """
    yaml, stream = _yaml(), StringIO()
    yaml.default_flow_style, yaml.width = flow, width
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.dump(value, stream)
    return stream.getvalue()
