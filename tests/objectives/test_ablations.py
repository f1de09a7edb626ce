"""Every variant on the page of studies is valid, and is another objective than each preset."""

from __future__ import annotations

import re
from functools import reduce
from pathlib import Path

from rlobj import Objective, load_preset
from rlobj.base.yaml import load_yaml
from rlobj.objectives.penalties import ProxyKL
from rlobj.settings.layers import parse_setting
from rlobj.settings.presets import merge, preset_names

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "studies.md").read_text(encoding="utf-8").partition("\n## Variants of ")[2]
PRESETS = {"stapo": "stapo", "stare": "stare", "stare-gates": "stare", "ar": "ar", "lopti": "lopti"}
PROXY = re.compile(r"^\| `([\w-]+)` \| `(\w+): (.*?)` \|", re.MULTILINE)
FILE = re.compile(r"^```yaml\n# ([\w-]+)\.yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def variants() -> dict[str, Objective]:
    """The objective of each row of the tables, by `preset/variant`."""
    found, rows = {}, load_yaml((DOCS / "ablations.yaml").read_text(encoding="utf-8"))
    assert rows.keys() == PRESETS.keys()
    for group, preset in PRESETS.items():
        for row in rows[group]:
            settings = [parse_setting(text) for text in row["settings"]]
            config = reduce(merge, settings, load_preset(preset).config)
            found[f"{preset}/{row['name']}"] = Objective(**config["objective"])
    return found


def test_variants_differ_and_can_be_explained_and_read_back(tmp_path):
    found = variants()
    for name, text in FILE.findall(PAGE):
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    files = {path.stem: load_preset(path).objective for path in tmp_path.glob("*.yaml")}
    presets = {str(load_preset(name).objective) for name in preset_names()}
    texts = {str(objective) for objective in found.values()}
    assert len(texts) == len(found) > 40
    assert not presets & texts
    for objective in (*found.values(), *files.values()):
        assert objective == Objective(**objective.model_dump(mode="json", by_alias=True))
        assert str(objective.explain()).startswith("loss = ")


KL_TYPES = {"kl": "k1", "abs": "abs", "mse": "k2", "low-var-kl": "k3"}


def test_a_setting_of_the_proxy_means_what_the_release_computes():
    rows = PROXY.findall(PAGE)
    found = {name: ProxyKL(**parse_setting(f"{key}={value}")) for name, key, value in rows}
    assert found == {
        **{f"kl-type-{name}": ProxyKL(estimator=kind) for name, kind in KL_TYPES.items()},
        "fixed-threshold": ProxyKL(relative=False),
        "temperature": ProxyKL(temperature=0.6),
        "current-policy": ProxyKL(policy="current"),
    }
