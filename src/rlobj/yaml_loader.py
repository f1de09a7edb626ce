"""PyYAML with YAML 1.2's plain scalars: imported only when a file is read."""

from __future__ import annotations

import re
from typing import Any

import yaml

__all__ = ["Loader"]


class Loader(yaml.SafeLoader):
    """`on`, `off`, `yes` and `no` are text; `1e-6` is a number; a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]  # type: ignore[no-untyped-call]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", node.value[i][0].start_mark
                )
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
