"""Reading YAML, with the plain scalars of YAML 1.2. Import it only to read a file."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rlobj.base.files import packaged


class Loader(yaml.SafeLoader):
    """A loader that reads `on`, `off`, `yes` and `no` as text and `1e-6` as a number.

    Keys must be text, and a key must not be given twice.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
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
            seen.append(key)
        return super().construct_mapping(node, deep)


def packaged_table(package: str, name: str) -> Any:
    """A table that rlobj contains as a YAML file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is built
    return yaml.load(packaged(package, name), loader)


_OURS = ("bool", "float", "timestamp")
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
