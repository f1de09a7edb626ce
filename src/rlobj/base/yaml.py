"""PyYAML with YAML 1.2's plain scalars: imported only when a file is read."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["Loader"]


class Loader(yaml.SafeLoader):
    """`on`, `off`, `yes` and `no` are text; `1e-6` is a number; a key is a text, given once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for place, _ in node.value:
            if place.tag == "tag:yaml.org,2002:merge":  # <<, which PyYAML resolves below
                continue
            key = self.construct_object(place, deep=True)  # type: ignore[no-untyped-call]
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"a key must be text, got {key!r}", place.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", place.start_mark
                )
            seen.append(key)
        return super().construct_mapping(node, deep)


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
