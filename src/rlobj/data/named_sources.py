"""Published training sets by name, with their sources and templates. Their reward is `math`.

| name | problems |
|---|---|
| dapo-math-17k | 17,000 competition problems with integer answers |
| deepscaler | 40,000 competition problems |
| gsm8k | 7,473 word problems; 1,319 for testing |
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

import yaml
from pydantic.dataclasses import dataclass

from rlobj.data.hub import HubSource
from rlobj.data.layouts import Columns
from rlobj.data.prompts import MATH_TEMPLATE


@dataclass(frozen=True)
class NamedSource:
    """A published data set.

    Attributes:
        name: its name in `data.source`.
        description: one line for users.
        hub: split (train, test) -> data sets on the hub, in the order in which they are tried.
        template: the default of `data.template`; `{prompt}` if the questions contain instructions.
        columns: columns without a common name; a copy may lack them.
    """

    name: str
    description: str
    hub: Mapping[str, tuple[HubSource, ...]]
    template: str = MATH_TEMPLATE
    columns: Columns = Columns()


_FILE = files("rlobj.data") / "named_sources.yaml"
NAMED_SOURCES: dict[str, NamedSource] = {
    name: NamedSource(name, **keys)
    for name, keys in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()
}
"""Name -> training set."""
