"""The problems of an evaluation, and the settings of each set of problems.

Settings, later over earlier: those of the model (a run, the embedded policy), those that come with
the problems, the protocol, and single settings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlobj.base.digests import files_digest
from rlobj.base.errors import Argument, ConfigError, DataError, nearest
from rlobj.base.paths import path_of
from rlobj.base.targets import require_file
from rlobj.data import Chat, Problem, load_problems
from rlobj.data.benchmarks import BENCHMARKS, GROUPS, load_benchmark
from rlobj.data.gym import REWARD, is_gym
from rlobj.data.problems import digest
from rlobj.data.sources import NAMED_SOURCES, source_names
from rlobj.data.tasks import TASKS
from rlobj.evaluation.engines import Engine
from rlobj.evaluation.protocols import Protocol
from rlobj.rewards import Grader, function_grader
from rlobj.samplers import Distribution, SamplingSettings
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, flattened
from rlobj.settings.profiles import PROFILES
from rlobj.settings.run_config import RunConfig
from rlobj.settings.trust import named_code

LONGEST = 20_480
"""Default of `max_tokens` on published benchmarks, if the model's context has room for it."""
ROWS = "problems"
"""Name of problems that a Python program gives as rows."""

Problems = str | Path | Sequence[str | Path] | Iterable[Mapping[str, Any]] | None
"""Names or files of problems, or rows; None = the model's own held-out problems."""


@dataclass(frozen=True)
class Caller:
    """What the caller sets for all problems.

    Attributes:
        layers: (where it comes from, partial RunConfig), later over earlier. `data.template` is
            the text around a problem, also around a run's held-out ones.
        protocol: a paper's settings, below the layers.
        data_dir: folder with files of benchmarks.
    """

    layers: Sequence[Layer] = ()
    protocol: Protocol | None = None
    data_dir: Path | None = None

    def above(self, benchmark: str | None) -> list[Layer]:
        """The layers for one benchmark; a protocol may have settings of its own for it.

        Raises:
            ConfigError: settings that only apply to training.
        """
        for origin, layer in self.layers:
            for name in flattened(layer):
                section, _, key = name.partition(".")
                if section in ("objective", "training", "checkpoint", "output"):
                    raise ConfigError(f"{origin}: {section} is for training and has no effect here")
                if section == "sampling" and key in Distribution.model_fields:
                    raise ConfigError(f"{origin}: {name} is for training. Use evaluation.{key}")
        if self.protocol is None:
            return list(self.layers)
        protocol = asdict(self.protocol.for_benchmark(benchmark or ""))
        sampling, data = ({name: protocol.pop(name)} for name in ("max_tokens", "template"))
        layer = {"sampling": sampling, "data": data, "evaluation": protocol}
        return [(f"protocol={self.protocol.name}", layer), *self.layers]


@dataclass(frozen=True)
class ProblemSet:
    """Problems with all settings for sampling and grading.

    Attributes:
        name: of the benchmark in results and files.
        config: the settings.
        problems: the problems.
        source: where the problems come from.
        notes: what a reader of the results should know.
        lower_to_context: whether `max_tokens` is a default that may be lowered to the model's
            context.
        reward: a Python function that grades, in place of the one that `config` names.
        environment: makes the environment of a conversation, in place of the one that `config`
            names.
        tools: names and Python functions that the policy may call, in place of those that `config`
            names.
    """

    name: str
    config: RunConfig
    problems: list[Problem]
    source: str
    notes: tuple[str, ...] = ()
    lower_to_context: bool = False
    reward: Callable[..., Any] | None = None
    environment: Callable[[], Any] | None = None
    tools: Sequence[str | Callable[..., Any]] | None = None

    def open_grader(self) -> Grader:
        """The grader, to be entered with `with`."""
        if self.reward is None:
            return self.config.rewards.seen_from(Path.cwd()).open()
        name = getattr(self.config.rewards, "target", "reward")
        return function_grader(self.reward, name, self.config.rewards)

    @property
    def count(self) -> int:
        """Responses for each problem."""
        return self.config.evaluation.samples

    @property
    def total(self) -> int:
        """Responses for all problems."""
        return len(self.problems) * self.count

    @property
    def settings(self) -> SamplingSettings:
        """How responses are sampled."""
        return self.config.evaluation_settings()

    @property
    def data_digest(self) -> str:
        """Hash of every id, question, gold answer and template of its own."""
        rows = (
            f"{item.id}\0{item.prompt}\0{item.answer}\0{item.extra.get('alternatives', '')}\0"
            + (f"{item.template}\0" if item.template is not None else "")
            for item in self.problems
        )
        return digest("".join(rows))[:16]

    def recorded(self, engine: Engine, protocol: Protocol | None) -> dict[str, Any]:
        """Everything about the set that changes a number, as settings.json keeps it."""
        chat = engine.chat or Chat()
        template = getattr(engine.tokenizer, "chat_template", None) if engine.chat else None
        return {
            "source": self.source,
            "problems": len(self.problems),
            "data": self.data_digest,
            "samples": self.count,
            "protocol": None if protocol is None else self._changed(protocol),
            "seed": self.config.seed,
            **self.settings.model_dump(mode="json", exclude_none=True),
            "template": self.config.data.template,
            "chat": engine.chat is not None,
            "chat_template": None if template is None else digest(str(template))[:16],
            **({"system": chat.system} if chat.system else {}),
            **({"chat_template_kwargs": dict(chat.arguments)} if chat.arguments else {}),
            "reward": self.config.rewards.seen_from(Path.cwd()).recorded(),
            **self._environment(),
            "notes": [*self.notes, *(protocol.notes if protocol else ())],
        }

    def _changed(self, protocol: Protocol) -> str:
        """The protocol's name, with the settings that were changed."""
        template = self.config.data.template
        used = {"samples": self.count, **self.settings.model_dump(), "template": template}
        original = asdict(protocol.for_benchmark(self.name))
        changed = [name for name, value in original.items() if used[name] != value]
        return f"{protocol.name}, but for {' and '.join(changed)}" if changed else protocol.name

    def _environment(self) -> dict[str, Any]:
        """The settings of an environment that change numbers, with a hash of its code's files."""
        settings = self.config.environment.seen_from(Path.cwd())
        if not settings.active:
            return {}
        targets = named_code({"environment": settings.model_dump(mode="json")})
        code = [require_file(target) for target in targets if ".py:" in target]
        recorded = settings.model_dump(mode="json", exclude={"workers", "at_limit"})
        return {"environment": recorded | ({"code": files_digest(code)} if code else {})}


def problem_sets(sources: Sequence[Any] | None, model: Layer, caller: Caller) -> list[ProblemSet]:
    """Read and check all problems and settings, before anything is sampled.

    Args:
        sources: what `named_problems` gives.
        model: the settings that come with the model.
        caller: what the user sets.

    Raises:
        ConfigError: settings that are not possible.
        DataError: problems that cannot be read.
    """
    if sources is None:
        return [_held_out(model, caller)]
    if sources and isinstance(sources[0], Mapping):
        config = build_config([model, ("on", _source_settings(ROWS)), *caller.above(ROWS)])
        answers = config.rewards.needs_answers
        problems = load_problems(config.data, "train", sources, answers=answers)
        return [ProblemSet(ROWS, config, problems, "rows given in Python")]
    sets = [_named(name, model, caller) for name in sources]
    names = [problem_set.name for problem_set in sets]
    if repeated := sorted(name for name in {*names} if names.count(name) > 1):
        raise ConfigError(f"several sources are called {', '.join(repeated)}: rename a file")
    return sets


def named_problems(on: Problems) -> list[Any] | None:
    """A list of names, each once, groups in full; a list of rows; or None.

    Raises:
        ConfigError: nothing is named.
    """
    if on is None:
        return None
    sources = [on] if isinstance(on, str | Path) else list(on)
    if sources and isinstance(sources[0], Mapping):
        return sources
    names = [name for source in sources for name in _split(str(source))]
    if not names:
        raise ConfigError(f"on is {on!r}; expected {', '.join(BENCHMARKS)}, a task or a file")
    return list(dict.fromkeys(names))


def _split(on: str) -> list[str]:
    """Names between commas; an existing path is one name, even with a comma in it."""
    if on.strip() and path_of(on).exists():
        return [on]
    names: list[str] = []
    for name in filter(None, map(str.strip, on.split(","))):
        plain = name.lower().replace("-", "")  # AIME-24 is aime24
        name = plain if plain in BENCHMARKS or plain in GROUPS else name
        names += GROUPS.get(name, (name,))
    return names


def _named(name: str, model: Layer, caller: Caller) -> ProblemSet:
    names = [*BENCHMARKS, *GROUPS, *TASKS, *NAMED_SOURCES]
    is_source = is_gym(name) or path_of(name).exists() or "/" in name or Path(name).suffix
    if name not in names and not is_source:
        raise DataError(
            Argument("on", name),
            f": there is no '{name}'.{nearest(name, names, spell_out=False)} Expected one of "
            f"{', '.join([*BENCHMARKS, *GROUPS, *TASKS])}, a file, a folder or a hub id owner/name",
        )
    above = caller.above(name)
    config = build_config([model, (f"on={name}", _source_settings(name)), *above])
    if name in BENCHMARKS:
        limited = any("max_tokens" in layer.get("sampling", {}) for _, layer in above)
        return _published(name, config, caller, lower_to_context=not limited)
    # With `split: test`, "train" is the source's test part, or all of a source without parts.
    problems = load_problems(config.data, "train", answers=config.rewards.needs_answers)
    return ProblemSet(_short(name), config, problems, name)


def _held_out(model: Layer, caller: Caller) -> ProblemSet:
    """A run's own test problems, with the run's settings."""
    if "data" not in model[1]:
        name = model[1]["model"]["name"]
        what = f"{name} is not a run, and only a run has its own problems: name some with "
        raise ConfigError(what, Argument("on", "all"))
    test = model[1]["data"].get("test")
    above = caller.above(test)
    config = build_config([model, *above])
    typed = any("template" in layer.get("data", {}) for _, layer in above)
    template = config.data.template if typed else config.data.template_for_tests
    # A test template also wins over those of several sources.
    for_tests = template if typed else config.data.test_template
    data = config.data.model_copy(update={"template": template, "test_template": for_tests})
    config = config.model_copy(update={"data": data})
    if test in BENCHMARKS:
        return _published(test, config, caller, lower_to_context=False)
    source = ", ".join(source_names(test or data.source))
    problems = load_problems(data, "test", answers=config.rewards.needs_answers)
    several = "" if test else "+".join(data.weights)
    name = source if source in TASKS else f"{several or _short(source)} (held out)"
    return ProblemSet(name, config, problems, source)


def _published(
    name: str, config: RunConfig, caller: Caller, *, lower_to_context: bool
) -> ProblemSet:
    of = load_benchmark(name, data_dir=caller.data_dir, limit=config.data.limit)
    return ProblemSet(name, config, of.problems, of.source, tuple(of.notes), lower_to_context)


def _source_settings(name: str) -> dict[str, Any]:
    """The settings that come with problems: nothing of a run's own data stays."""
    columns = {"prompt": None, "answer": None, "id": None}
    data: dict[str, Any] = {"source": name, "split": "test", "columns": columns}
    data |= {"name": None, "test": None, "test_fraction": 0.0, "limit": None}
    reward: dict[str, Any] = {"kind": "math"}
    if name in TASKS:
        reward = PROFILES[name]["rewards"]
    elif is_gym(name):
        reward = {"kind": REWARD}
    elif name not in {*BENCHMARKS, *NAMED_SOURCES}:
        return {"data": data}
    settings: dict[str, Any] = {"data": {**data, "template": None}, "rewards": reward}
    if name in TASKS:  # a task has its own environment with its stop strings, or none
        environment = PROFILES[name].get("environment", {})
        settings["environment"] = {"target": None, "tools": [], **environment}
        if environment:
            settings["sampling"] = {"stop": PROFILES[name]["sampling"]["stop"]}
    return settings | ({"sampling": {"max_tokens": LONGEST}} if name in BENCHMARKS else {})


def _short(name: str) -> str:
    """A file's name without its folders; a hub id whole."""
    path = path_of(name)
    return path.name if path.exists() else name
