"""Presets: published objectives as YAML files, each a partial run configuration.

    base: dapo-loss            # another preset that this one changes
    paper: "STAPO, Liu et al. 2026, arXiv:2602.15620"
    summary: drop rare tokens that a correct response would reinforce
    objective:
      drop: (advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)
    sampling: {group_size: 8}
    sources:                   # where settings come from, for the documentation
      arXiv:2602.15620: {sampling.group_size: section 5}

A mapping with a `kind`, or a text, replaces a primitive of the base. A mapping without a `kind`
changes its settings. null removes a setting.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.paths import path_of, there
from rlobj.base.targets import with_files

if TYPE_CHECKING:
    from rlobj.objectives.objective import Objective

FILE_KEYS = ("base", "paper", "summary", "sources", "objects")
"""Keys of a preset file or a configuration file that are no settings; no file has objects."""
_KEPT_KEYS = ("overlong",)
"""Settings that stay when the kind of a primitive changes."""
DEFAULT_MAX_TOKENS = 1024
"""`sampling.max_tokens` of a preset that does not set it."""


@dataclass(frozen=True)
class Preset:
    """A named, partial run configuration.

    Attributes:
        name: the file's stem.
        paper: citation.
        summary: one line.
        bases: the presets it builds on, nearest first.
        config: the merged partial RunConfig, plain data.
        path: the file it was read from.
        text: the file's text.
    """

    name: str
    paper: str
    summary: str
    bases: tuple[str, ...]
    config: Mapping[str, Any]
    path: Path
    text: str = field(repr=False)

    def __repr__(self) -> str:
        from rlobj.base.yaml import dump_yaml

        about = ": ".join(filter(None, (self.paper, self.summary)))
        return f"# {self.name}  {about}\n{dump_yaml(dict(self.config), flow=None, width=100)}"

    @cached_property
    def objective(self) -> Objective:
        """The objective, with lengths resolved at the preset's own `sampling.max_tokens`."""
        return self.resolved()

    def resolved(self, max_tokens: int | None = None) -> Objective:
        """The objective, with lengths resolved at so many tokens; None = the preset's own."""
        from rlobj.base.validation import InvalidFields
        from rlobj.objectives.objective import Objective  # torch: only when it is asked for
        from rlobj.settings.scores import with_names

        try:
            objective = Objective(**with_names(self.config).get("objective", {}))
        except InvalidFields as error:
            problems = [(f"objective.{path}", text) for path, text in error.problems]
            raise ConfigError(f"{self.path}:\n", InvalidFields(problems)) from None
        sampling = self.config.get("sampling")
        sampling = sampling if isinstance(sampling, dict) else {}
        usual = sampling.get("max_tokens", DEFAULT_MAX_TOKENS)
        return objective.resolve(usual if max_tokens is None else max_tokens)


def preset_folder() -> Path:
    """The folder of the presets: inside the installed package, or at the top of a checkout."""
    installed = Path(str(importlib.resources.files("rlobj"))) / "_presets"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "presets"


def preset_names() -> list[str]:
    """The names of the presets that rlobj contains, sorted."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def load_preset(name_or_path: str | Path) -> Preset:
    """Load a preset by name, or from a YAML file.

    Raises:
        ConfigError: no such preset (with the nearest name), or a file that cannot be read.
    """
    return _load(_find(str(name_or_path), None), ())


def _load(path: Path, above: tuple[Path, ...]) -> Preset:
    """Load a preset's file and its bases; `above` are the files that build on it."""
    content = read_yaml(path)
    if not content:
        raise ConfigError(f"{path} is empty; expected keys such as base, objective and training")
    settings = {key: setting for key, setting in content.items() if key not in FILE_KEYS}
    config = _beside(path, settings)
    bases: tuple[str, ...] = ()
    if content.get("base") is not None:
        with reported(ConfigError, f"{path}: base", ConfigError):
            base = _find(str(content["base"]), path)
        seen = (*above, path.resolve())
        if base.resolve() in seen:
            raise ConfigError(f"{path}: base '{content['base']}' leads back to itself")
        below = _load(base, seen)
        bases = (base.stem, *below.bases)
        config = merge(below.config, config)
    if not isinstance(config.get("objective", {}), dict):
        raise ConfigError(f"{path}: objective must be a mapping, got {config['objective']!r}")
    return Preset(
        name=path.stem,
        paper=str(content.get("paper", "")),
        summary=str(content.get("summary", "")),
        bases=bases,
        config=config,
        path=path,
        text=path.read_text(encoding="utf-8"),
    )


def _beside(file: Path, value: Any) -> Any:
    """What a file sets: `mine.py:Class` is beside it, or else in the current folder."""

    def beside(code: str) -> str:
        path = Path(os.path.abspath(file)).parent / code  # without ".."
        only_here = there(Path(code)) and not there(path)
        return code if only_here else str(path)

    return with_files(value, beside)


def _find(name: str, beside: Path | None) -> Path:
    """Find a preset's file, by its name in rlobj or by a path.

    Args:
        name: name or path.
        beside: the file that contains the name, if any; paths are relative to its folder.
    """
    bare = "/" not in name and not name.endswith((".yaml", ".yml"))
    if bare and name in preset_names():
        return preset_folder() / f"{name}.yaml"
    path = path_of(name)
    if beside is not None and not path.is_absolute():
        path = path_of(beside.parent / path)
    if path.is_file():
        return path
    if bare:
        near = nearest(name, preset_names(), spell_out=False)
        raise ConfigError(f"unknown preset '{name}'.{near} rlobj presets list shows all presets.")
    raise ConfigError(f"no preset file at {path}")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, with the core schema of YAML 1.2; a key given twice is an error.

    Raises:
        ConfigError: the file cannot be read, with its line.
    """
    from rlobj.base.yaml import load_yaml

    with reported(ConfigError, f"cannot read {path}", OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
    with reported(ConfigError, f"{path} is not valid YAML", ValueError):
        content = load_yaml(text)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a mapping, got {type(content).__name__}")
    return content


def merge(below: Any, above: Any) -> Any:
    """Merge `above` over `below`: mappings merge key by key, unless `above` has a `kind`.

    A text is the kind of a primitive: {scale: batch} over group_normalized changes its scale. The
    length penalty of `rewards` belongs to every kind of reward and is kept when the kind changes.
    A list of rewards is the kind `several`.
    """
    if isinstance(above, dict) and "kind" not in above:
        below = _primitive(below, above)
    if isinstance(below, dict) and not below.keys().isdisjoint(_KEPT_KEYS):
        above = _primitive(above, below)
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if "kind" in above:
        return {**{key: below[key] for key in _KEPT_KEYS if key in below}, **above}
    return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}


def _primitive(value: Any, other: Mapping[str, Any]) -> Any:
    """A text, or a list where the other has settings of several rewards, as a mapping."""
    if isinstance(value, list) and not other.keys().isdisjoint((*_KEPT_KEYS, "correct")):
        return {"kind": "several", "of": value}
    return {"kind": value} if isinstance(value, str) else value


def flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of all settings by dotted path.

    Example:
        >>> flattened({"training": {"steps": 3}, "seed": 1})
        {'training.steps': 3, 'seed': 1}
    """
    flat = {}
    for key, value in settings.items():
        inner = isinstance(value, Mapping) and bool(value)
        flat |= flattened(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List (path, left value, right value) of settings that differ; None = absent."""
    differences = []
    for key in sorted({*left, *right}):
        a, b = left.get(key), right.get(key)
        if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
            differences += [(f"{key}.{path}", *values) for path, *values in difference(a, b)]
        elif a != b:
            differences.append((key, a, b))
    return differences
