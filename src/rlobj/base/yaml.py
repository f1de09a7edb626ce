"""Reading YAML, with the plain scalars of YAML 1.2. Import it only to read a file."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rlobj.base.files import packaged

MOST_TEXT, MOST_VALUES, MOST_LEVELS, MOST_DIGITS = 1 << 18, 20_000, 40, 40
"""The longest text that is read; the most values, those that aliases repeat counted again; the most
levels of nesting; and the most digits of a whole number."""


class Loader(yaml.SafeLoader):
    """A loader that reads `on`, `off`, `yes` and `no` as text and `1e-6` as a number.

    Keys must be text, and a key must not be given twice.
    """

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

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > MOST_DIGITS:
            raise _refusal(node, f"a whole number of more than {MOST_DIGITS} digits")
        return super().construct_yaml_int(node)

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
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built
    return yaml.load(packaged(package, name), loader)


_OURS = ("bool", "float", "timestamp")
Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0].rpartition(":")[2] not in _OURS]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
