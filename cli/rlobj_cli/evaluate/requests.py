"""What `rlobj eval` was asked for: a policy, and problems with the settings to put them to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, DataError, nearest
from rlobj.config.layers import Layer
from rlobj.config.presets import merge
from rlobj.config.run_config import RunConfig, build_config
from rlobj.data import Problem, load_problems
from rlobj.data.benchmarks import BENCHMARKS, GROUPS, load_benchmark
from rlobj.data.catalogue import NAMED_SOURCES
from rlobj.data.tasks import TASKS
from rlobj.evaluation.protocols import Protocol
from rlobj.evaluation.provenance import text_digest
from rlobj.models.location import require_model
from rlobj.samplers import SamplingSettings
from rlobj.training import RunDirectory

__all__ = ["Benchmark", "Options", "Target", "find_target"]

Locate = Callable[[Callable[[int, int, float], None]], str]
"""Finds or makes the model folder, or names the hub id; told (done, total, loss) meanwhile."""

LONGEST = 20_480
"""Tokens of a response to a published benchmark's problem, where neither a protocol nor the user
says, and as far as the model's context goes."""


@dataclass(frozen=True)
class Options:
    """What the user said, over everything else.

    Attributes:
        settings: option -> (dotted path in RunConfig, value).
        layers: of `--set`.
        protocol: a paper's settings, under the options.
        data_dir: where files of benchmarks lie.
    """

    settings: Mapping[str, tuple[str, Any]]
    layers: Sequence[Layer] = ()
    protocol: Protocol | None = None
    data_dir: Path | None = None


@dataclass(frozen=True)
class Benchmark:
    """Problems, and how they are asked and graded.

    Attributes:
        name: for people and files.
        config: settings.
        problems: what is asked.
        source: where the problems came from.
        notes: what to know about them.
        fitted: the length limit is our own, to be lowered to the model's context.
    """

    name: str
    config: RunConfig
    problems: list[Problem]
    source: str
    notes: tuple[str, ...] = ()
    fitted: bool = False

    @property
    def settings(self) -> SamplingSettings:
        """How responses are drawn."""
        return self.config.evaluation_settings()

    def under(self, protocol: Protocol | None) -> str | None:
        """The protocol's name, with what was changed of it."""
        if protocol is None:
            return None
        own, evaluation = protocol.for_benchmark(self.name), self.config.evaluation
        used = {
            "samples": evaluation.samples,
            "temperature": evaluation.temperature,
            "top_p": evaluation.top_p,
            "max_tokens": self.config.sampling.max_tokens,
            "template": self.config.data.template,
        }
        changed = [name for name, value in used.items() if getattr(own, name) != value]
        return f"{protocol.name}, but for {' and '.join(changed)}" if changed else protocol.name

    @property
    def data_digest(self) -> str:
        """A hash of every id, question and gold answer that is asked."""
        rows = (
            f"{item.id}\0{item.prompt}\0{item.answer}\0{item.extra.get('alternatives', '')}\0"
            for item in self.problems
        )
        return text_digest("".join(rows))


@dataclass(frozen=True)
class Target:
    """A policy and its benchmarks.

    Attributes:
        name: what the user called it.
        locate: finds or makes the model.
        benchmarks: at least one.
    """

    name: str
    locate: Locate
    benchmarks: list[Benchmark]


def find_target(model: str, on: str | None, options: Options) -> Target:
    """The policy and the problems, all read and checked before anything is sampled.

    Args:
        model: run directory, model folder, hub id, or "embedded".
        on: benchmarks, groups of them, tasks, files, folders or hub ids, separated by commas;
            None = the run's own.
        options: over what the run or the defaults say.

    Raises:
        ConfigError: no such policy, or settings that cannot be.
        DataError: problems that cannot be read.
    """
    names: list[str | None] = [None] if on is None else [*_split(on)]
    path = Path(model).expanduser()
    if model == "embedded":
        below, locate = _embedded(names)
    elif (path / "config.resolved.yaml").is_file():
        below, locate = _run(path)
    else:
        require_model(model)
        below, locate = ("MODEL", {"model": {"name": model}}), lambda _: model
    benchmarks = [_benchmark(name, below, options) for name in names]
    called = [each.name for each in benchmarks]
    if repeated := {name for name in called if called.count(name) > 1}:
        raise ConfigError(
            f"several sources are called {', '.join(sorted(repeated))}: results are kept by name. "
            "Rename a file, or evaluate them one after the other"
        )
    return Target(model, locate, benchmarks)


def _embedded(names: Sequence[str | None]) -> tuple[Layer, Locate]:
    """The embedded policy of the first task asked for that has one; else the default."""
    from rlobj.models.embedded import EMBEDDED_PROFILE, PROFILES, embedded_policy

    profile = next((PROFILES[name] for name in names if name in PROFILES), EMBEDDED_PROFILE)
    task = profile["data"]["source"]
    return ("embedded", profile), lambda told: str(embedded_policy(task, progress=told))


def _run(path: Path) -> tuple[Layer, Locate]:
    """A run's settings, and the model of its newest checkpoint."""
    run, config = RunDirectory.open(path)
    newest = run.latest()
    if newest is None:
        raise ConfigError(f"{path} has no checkpoint yet. Continue it: rlobj train --resume {path}")
    stored = config.model_dump(mode="json", by_alias=True)
    stored["sampling"] = {**stored["sampling"], "engine": "transformers", "async_depth": 0}
    return (str(path), stored), lambda _: str(newest / "model")


def _benchmark(name: str | None, below: Layer, options: Options) -> Benchmark:
    if name is None:
        return _held_out(below, options)
    _refuse_unknown(name)
    published = name in BENCHMARKS
    above = _above(name, "template", options)
    config = build_config([below, ("--on", _asked(name, published)), *above])
    if published:
        given = any("max_tokens" in layer.get("sampling", {}) for _, layer in above)
        return _published(name, config, options, fitted=not given)
    # With `split: test`, "train" is the source's test part, or all of a source without parts.
    problems = load_problems(config.data, "train")
    return Benchmark(_short(name), config, problems, name, _notes(options, name))


def _refuse_unknown(name: str) -> None:
    """A name without a path, a suffix or an owner is one of ours.

    Raises:
        DataError: it is not.
    """
    known = [*BENCHMARKS, *GROUPS, *TASKS, *NAMED_SOURCES]
    if name in known or Path(name).exists() or "/" in name or Path(name).suffix:
        return
    raise DataError(
        f"--on {name}: there is no '{name}'.{nearest(name, known, spell_out=False)} Benchmarks: "
        f"{', '.join(BENCHMARKS)}; groups: {', '.join(GROUPS)}; tasks: {', '.join(TASKS)}; or a "
        "file, a folder or a hub id owner/name"
    )


def _held_out(below: Layer, options: Options) -> Benchmark:
    """A run's own test problems, asked as the run asks them."""
    if "data" not in below[1]:
        nowhere = below[1].get("model", {}).get("name", "")
        said = (
            "" if Path(nowhere).exists() else f"there is no folder '{nowhere}' here. For a hub id, "
        )
        raise ConfigError(
            f"{said}name the problems: --on {','.join(list(BENCHMARKS)[:3])}, --on all, a built-in "
            f"task ({', '.join(TASKS)}), a file or a hub id. Only a run brings its own."
        )
    test = below[1]["data"].get("test")
    config = build_config([below, *_above(test, "test_template", options)])
    data = config.data.model_copy(update={"template": config.data.asked_in_tests})
    config = config.model_copy(update={"data": data})
    if test in BENCHMARKS:
        return _published(test, config, options, fitted=False)
    source = str(test or data.source)
    problems = load_problems(data, "test")
    name = source if source in TASKS else f"{_short(source)} (held out)"
    return Benchmark(name, config, problems, source, _notes(options, name))


def _above(name: str | None, template: str, options: Options) -> list[Layer]:
    """What the user said: a protocol, then single settings, then options.

    Raises:
        ConfigError: sampling settings of training, which mean nothing here.
    """
    layers: list[Layer] = []
    if options.protocol is not None:
        own = _protocol(options.protocol, name, template)
        layers.append((f"--protocol {options.protocol.name}", own))
    for origin, layer in options.layers:
        for section in ("objective", "training", "checkpoint", "output"):
            if section in layer:
                raise ConfigError(f"{origin}: {section} is for training and means nothing here")
        wrong = [key for key in ("temperature", "top_p", "top_k", "min_p") if key in
                 layer.get("sampling", {})]  # fmt: skip
        if wrong:
            raise ConfigError(
                f"{origin}: sampling.{wrong[0]} is for training. Here it is evaluation.{wrong[0]}"
            )
        layers.append((origin, layer))
    for option, (place, value) in options.settings.items():
        where = f"data.{template}" if place == "data.template" else place
        layers.append((option, _nested(where, value)))
    return layers


def _published(name: str, config: RunConfig, options: Options, *, fitted: bool) -> Benchmark:
    loaded = load_benchmark(name, data_dir=options.data_dir, limit=config.data.limit)
    notes = (*loaded.notes, *_notes(options, name))
    return Benchmark(name, config, loaded.problems, loaded.source, notes, fitted)


def _notes(options: Options, name: str) -> tuple[str, ...]:
    return options.protocol.told(name) if options.protocol else ()


def _asked(name: str, published: bool) -> dict[str, Any]:
    """The settings that come with the problems: nothing of a run's own data stays."""
    columns = {"prompt": None, "answer": None, "id": None}
    data: dict[str, Any] = {"source": name, "split": "test", "columns": columns}
    data |= {"name": None, "test": None, "test_fraction": 0.0, "limit": None}
    if name in TASKS:
        return {"data": {**data, "template": None}, "rewards": {"kind": "exact"}}
    if name in NAMED_SOURCES:
        reward = NAMED_SOURCES[name].reward
        return {"data": {**data, "template": None}, "rewards": {"kind": reward}}
    if published:
        layer = {"data": {**data, "template": None}, "rewards": {"kind": "math"}}
        return merge(layer, {"sampling": {"max_tokens": LONGEST}})
    return {"data": data}


def _protocol(protocol: Protocol, name: str | None, template: str) -> dict[str, Any]:
    own = protocol.for_benchmark(name or "")
    return {
        "evaluation": {
            "samples": own.samples,
            "temperature": own.temperature,
            "top_p": own.top_p,
        },
        "sampling": {"max_tokens": own.max_tokens},
        "data": {template: own.template},
    }


def _nested(place: str, value: Any) -> dict[str, Any]:
    head, _, rest = place.partition(".")
    return {head: _nested(rest, value) if rest else value}


def _short(name: str) -> str:
    """A file by its name without folders; a hub id whole."""
    path = Path(name).expanduser()
    return path.name if path.exists() else name


def _split(on: str) -> list[str]:
    """Names between commas, groups in full, each once; a path may hold commas itself."""
    if on.strip() and Path(on).exists():
        return [on]
    names = [_spelled(name) for name in (part.strip() for part in on.split(",")) if name]
    if not names:
        raise ConfigError(f"--on {on!r} names nothing: {', '.join(BENCHMARKS)}, a task or a file")
    whole = [each for name in names for each in GROUPS.get(name, (name,))]
    return list(dict.fromkeys(whole))


def _spelled(name: str) -> str:
    """AIME-24 is aime24."""
    plain = name.lower().replace("-", "")
    return plain if plain in BENCHMARKS or plain in GROUPS else name
