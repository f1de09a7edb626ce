"""Evaluate a model: read problems, sample responses, grade them, summarise."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from rlobj.base.errors import Argument, ConfigError, RunError, reported
from rlobj.base.launched import absent_variables, started_processes
from rlobj.base.paths import file_name, nearby
from rlobj.base.seeds import seed_generators
from rlobj.base.targets import object_name, object_text
from rlobj.conversations.driving import Conversations
from rlobj.conversations.opening import open_conversations
from rlobj.conversations.settings import named_tools
from rlobj.data import Problem, format_prompt
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.engines import Engine, ModelSource, find_model, open_engine
from rlobj.evaluation.identity import fingerprint, model_identity, module_identity, require_same
from rlobj.evaluation.problem_sets import Caller, Problems, ProblemSet, named_problems, problem_sets
from rlobj.evaluation.progress import followed
from rlobj.evaluation.protocols import Protocol, find_protocol
from rlobj.evaluation.publishing import publish
from rlobj.evaluation.responses import open_keys, sample_and_grade
from rlobj.evaluation.result import EvaluationResult
from rlobj.installation import session
from rlobj.runs.evaluation_samples import FORMAT, Samples
from rlobj.samplers.types import check_prompts
from rlobj.settings.layers import Layer, merged, nested, reward_of_environment, reward_settings
from rlobj.settings.presets import flattened
from rlobj.settings.run_config import settings_of
from rlobj.settings.starting import refuse_tools
from rlobj.settings.trust import imports, require_trust

WAIT = timedelta(days=1)
"""How long a process waits for others that are slower. It does not wait for one that has ended."""


class Team:
    """This process, and the others that a launcher has started with it.

    Args:
        alone: this process evaluates alone, whatever has started it.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.

    Raises:
        ConfigError: the other processes are not there.
    """

    def __init__(self, alone: bool) -> None:
        self.rank, self.size = 0, 1
        if alone or started_processes() == 1:
            return
        from accelerate import PartialState
        from accelerate.utils import patch_environment

        absent_variables()  # refuses processes that cannot find each other
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # Otherwise Accelerate opens DeepSpeed where its launcher names it, and sets the threads.
        threads = torch.get_num_threads()
        with patch_environment(ACCELERATE_USE_DEEPSPEED="false", OMP_NUM_THREADS=threads):
            # They meet on CPUs: Gloo notices at once when one of them has ended.
            self._state: Any = PartialState(cpu=True, timeout=WAIT)
        self.rank, self.size = self._state.process_index, self._state.num_processes

    def meet(self) -> None:
        """Wait until all processes are here.

        Raises:
            RunError: one of them has ended.
        """
        if self.size > 1:
            what = "another process of the evaluation has ended: start all of them again"
            with reported(RunError, what, RuntimeError):
                self._state.wait_for_everyone()

    def share(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Those for this process: one of `size` neighbours, so that all take equally long."""
        return keys[self.rank :: self.size]


AUTO = "auto"
"""As a folder: one under evals/ whose name belongs to the model and all settings."""
BLOCK = {"transformers": 256}
"""Responses sampled and graded at a time; engines with their own scheduler get more."""
LARGE_BLOCK = 2048


def evaluate(
    model: Any,
    on: Problems = None,
    protocol: str | None = None,
    n: int | None = None,
    *,
    tokenizer: Any = None,
    checkpoint: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    template: str | None = None,
    reward: str | Callable[..., Any] | None = None,
    environment: str | Callable[[], Any] | None = None,
    tools: str | Sequence[str | Callable[..., Any]] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    sampler: str | None = None,
    data_dir: Path | str | None = None,
    settings: Mapping[str, Any] | Sequence[Layer] = (),
    out: Path | str | None = None,
    trust: bool = False,
    processes: int | None = None,
    progress: bool = True,
    callback: EvaluationCallback | None = None,
) -> EvaluationResult:
    """Sample responses to problems, grade them, and estimate how often the model is right.

    Equal arguments give equal responses. With `out`, an evaluation that was stopped is continued by
    the same call, and nothing is sampled twice.

    Args:
        model: a hub id, a model folder, a GGUF file, a run (its newest checkpoint), "embedded", or
            a transformers model with `tokenizer`. A model object is used as it is: on its device
            and in its dtype.
        on: what is asked: names of benchmarks ("math500", "aime24,aime25"), of groups ("standard",
            "all") or of tasks, files, folders or hub ids; one of them, several between commas, or a
            list. Or an iterable of dicts with the columns problem and answer. None = the held-out
            problems of a run or of the embedded policy.
        protocol: a paper's settings: stapo, stapo-sampled, justrl, stare, dapo or lp-reg. Arguments
            below change single ones.
        n: responses for each problem. Default: the protocol's, else 4.
        tokenizer: of a model object.
        checkpoint: of a run: "newest" (the default), "best" (highest held-out accuracy or reward
            during training), a step such as "100", or "initial", its model before training.
        temperature: of sampling; 0 is greedy. Default: the protocol's, else the run's, else 1.
        top_p: nucleus. Default: the protocol's, else the run's, else 1.
        max_tokens: longest response. Default: the protocol's, else the run's; 20480 on benchmarks,
            or what the model's context leaves; else 1024.
        template: text around a problem, with {prompt} in it.
        reward: "math", "math_verify", "exact", "file.py:function", or a function
            `f(response, answer, **columns)` that returns a number, None for undecided, or
            `{"reward": 0.2, "correct": False}`. With numbers, mean rewards take the place of
            accuracies. Default: math for benchmarks and files, exact for tasks.
        environment: who answers the policy in conversations of several turns: "calculator",
            "file.py:Class", or a class or function that makes an environment. Its verdict grades
            if no reward is given. Default: the run's.
        tools: what the policy may call: names such as "python" or "file.py:function", and Python
            functions. Default: the run's.
        limit: ask only the first problems of each benchmark, so many.
        seed: of sampling. Default: 0.
        sampler: "transformers", "vllm" or "vllm-server". Default: transformers.
        data_dir: folder with files of benchmarks, such as math500.jsonl, in place of the hub.
        settings: any other setting by its dotted name, such as {"evaluation.top_k": 20}.
        out: folder for settings, responses, grades, results.json, results.md and report.html.
            "auto" = a folder under evals/ whose name belongs to the model and all settings. None =
            everything is kept in memory and no file is written.
        trust: import the code that the settings of a run name: its reward, if that grades, its
            environment and tools, and its model's.
        processes: None = with `out`, all processes that torchrun or accelerate launch has started
            call this and share the work, and each returns the result; 1 = this process alone.
        progress: show the progress on stderr, in the first process: a bar, or on no terminal a line
            now and then. Without effect beside a callback.
        callback: receives the progress instead, in the first process; see `EvaluationCallback`.

    Returns:
        Accuracies, intervals, a row for each problem, and every response.

    Raises:
        ConfigError: settings that are not possible, other settings than those in `out`, or code of
            a run without `trust`.
        DataError: problems that cannot be read.
        RunError: sampling or writing failed.

    Example:
        >>> import rlobj
        >>> sums = [{"problem": f"{a}+3=", "answer": str(a + 3)} for a in (20, 41, 56)]
        >>> result = rlobj.evaluate("embedded", on=sums, n=4, seed=1)
        >>> 0 <= result.interval.low <= result.accuracy <= result.interval.high <= 1
        True
        >>> for row in result.rows:
        ...     print(row["prompt"], row["gold"], len(row["responses"]))
        20+3= 23 4
        41+3= 44 4
        56+3= 59 4
    """
    if processes not in (None, 1):
        raise ConfigError(
            f"processes is {processes}; expected None or 1. Start this program with torchrun "
            f"--nproc-per-node {processes}, or type: rlobj eval MODEL --processes {processes}"
        )
    tools = None if tools is None else named_tools(tools)
    objects: dict[str, Any] = {
        "reward": reward if callable(reward) else None,
        "environment": environment if callable(environment) else None,
        "tools": tools if any(map(callable, tools or ())) else None,
    }
    arguments = {
        "limit": ("data.limit", limit),
        "template": ("data.template", template),
        "reward": ("rewards", None if reward is None else reward_settings(reward)),
        "environment": ("environment.target", environment and _name(environment)),
        "tools": ("environment.tools", None if tools is None else [*map(_name, tools)]),
        "temperature": ("evaluation.temperature", temperature),
        "top_p": ("evaluation.top_p", top_p),
        "max_tokens": ("sampling.max_tokens", max_tokens),
        "n": ("evaluation.samples", n),
        "seed": ("seed", seed),
        "sampler": ("sampling.engine", sampler),
    }
    if isinstance(settings, Mapping):
        settings = [(path, nested(path, value)) for path, value in settings.items()]
    layers = [(name, nested(*pair)) for name, pair in arguments.items() if pair[1] is not None]
    names = named_problems(on)
    source = find_model(model, tokenizer, names, checkpoint)
    caller = Caller(
        _with_environment([*settings, *layers]),
        None if protocol is None else find_protocol(protocol),
        None if data_dir is None else Path(data_dir),
    )
    sets = problem_sets(names, source.layer, caller)
    for problem_set in () if trust else sets:
        require_trust(source.name, settings_of(problem_set.config), merged(caller.layers))
    sets = [dataclasses.replace(problem_set, **objects) for problem_set in sets]
    out = out if out in (None, AUTO) else Path(out).absolute()
    team = Team(alone=processes == 1 or out is None)
    with followed(None if team.rank else callback, progress) as callback:
        return EvaluationSpec(source, sets, caller.protocol, out, team, callback).run()


def _with_environment(layers: list[Layer]) -> list[Layer]:
    """The layers above what follows from an environment or tools among them.

    A run's tools do not stay beside another environment, nor its environment beside other tools. An
    environment grades, unless a reward is set.
    """
    settings = merged(layers)
    flat, follows = flattened(settings), {}
    if flat.get("environment.target"):
        follows = nested("environment.tools", []) | reward_of_environment(settings)
    elif flat.get("environment.tools"):
        follows = nested("environment.target", None)
    return [("environment", follows), *layers]


def _name(value: str | Callable[..., Any]) -> str:
    """What settings say of a name, or of a Python object."""
    return value if isinstance(value, str) else object_text(object_name(value))


@dataclass(frozen=True)
class EvaluationSpec:
    """What is evaluated, with all settings, in one of its processes.

    Attributes:
        source: the model.
        sets: the problems.
        protocol: a paper's settings.
        out: the folder; AUTO = one whose name belongs to the settings; None = in memory.
        team: this process, and the others.
        callback: receives the events.
    """

    source: ModelSource
    sets: list[ProblemSet]
    protocol: Protocol | None
    out: Path | str | None
    team: Team
    callback: EvaluationCallback

    def run(self) -> EvaluationResult:
        """Sample and grade what is missing, and summarise."""
        team, callback, source = self.team, self.callback, self.source
        callback.started(source.name)
        self._check()
        model = source.locate()
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(open_engine(self.sets[0].config, model, source.tokenizer))
            sets = [self._fitted(problem_set, engine) for problem_set in self.sets]
            held = [stack.enter_context(_conversations(of, engine)) for of in sets]
            for problem_set, conversations in zip(sets, held, strict=True):
                if conversations is not None:
                    conversations.check(problem_set.problems)
            settings = self._settings(model, engine, sets)
            out = self.out
            if out == AUTO:
                out = Path("evals", _folder_name(source.name, settings))
            samples = Samples(out, team.rank)
            facts = dict(engine.facts)
            if source.name not in facts["policy"]:  # a folder of the cache
                facts["policy"] = facts["policy"].replace(str(model), source.name)
            if samples.path is not None:
                facts["folder"] = str(nearby(samples.path))
            if team.size > 1:
                facts["processes"] = f"{team.size}; the progress is that of the first"
            callback.ready(facts)
            if not team.rank:
                stack.enter_context(samples.locked())
                self._begin(samples, settings, sets)
            team.meet()
            self._sample(samples, engine, sets, held)
        team.meet()
        if team.rank:
            samples.read()
        return publish(samples, callback)

    def _check(self) -> None:
        """Find what is wrong before the model is loaded.

        Raises:
            ConfigError: a reward, tools or a folder that cannot be used.
        """
        for imported in {imports(settings_of(each.config)) for each in self.sets} - {""}:
            self.callback.noted(imported)
        for problem_set in self.sets:
            refuse_tools(problem_set.config)
            with contextlib.closing(problem_set.open_grader()) as grader:
                grader.check(problem_set.problems)
        if self.out != AUTO:
            Samples(self.out).require_free()

    def _fitted(self, problem_set: ProblemSet, engine: Engine) -> ProblemSet:
        """Check that the model can read every prompt, before a folder is made.

        A default of `max_tokens` is lowered to what the model's context leaves.

        Raises:
            ConfigError: a prompt that does not fit, or no prompt that the tokenizer can read.
        """
        config, context, name = problem_set.config, engine.context, problem_set.name
        prompts = list(map(engine.encoder(config.data.template), problem_set.problems))
        if all(engine.unknown in prompt for prompt in prompts):
            raise ConfigError(
                f"{self.source.name} cannot answer {name}: every prompt has characters that its "
                "tokenizer does not know. Name other problems or another model, or set ",
                Argument("template", "TEXT"),
            )
        room = 0 if context is None else context - max(map(len, prompts))
        if problem_set.lower_to_context and 0 < room < config.sampling.max_tokens:
            self.callback.noted(f"{name}: at most {room} tokens per response fit the context")
            sampling = config.sampling.model_copy(update={"max_tokens": room})
            config = config.model_copy(update={"sampling": sampling})
            return dataclasses.replace(problem_set, config=config)
        check_prompts(prompts, config.sampling.max_tokens, context, f"model, on {name}")
        return problem_set

    def _settings(self, model: Any, engine: Engine, sets: Sequence[ProblemSet]) -> dict[str, Any]:
        """Everything that changes a number, as settings.json keeps it."""
        identity: dict[str, Any] = {"source": None}
        if isinstance(model, str):
            identity = {"source": model, **model_identity(model)}
        elif self.out is not None:
            identity |= module_identity(model)
        return {
            "model": {"name": self.source.name, **identity},
            "engine": engine.settings,
            "benchmarks": {of.name: of.recorded(engine, self.protocol) for of in sets},
        }

    def _begin(self, samples: Samples, settings: Mapping[str, Any], sets: list[ProblemSet]) -> None:
        """Read what is stored, and store settings and problems.

        Raises:
            ConfigError: an evaluation with other settings is stored.
        """
        stored = samples.settings()
        if stored:
            samples.take_over()
            samples.read()
        if samples.responses:
            require_same(samples.path, stored, settings)
        else:  # nothing was sampled under the stored settings
            stored = {}
        problems: dict[str, Sequence[Problem]] = dict(samples.problems()) if stored else {}
        samples.write_problems(problems | {s.name: s.problems for s in sets})
        benchmarks = {**stored.get("benchmarks", {}), **settings["benchmarks"]}
        sessions = [*stored.get("sessions", []), session("started")]
        samples.write_settings(
            {"format": FORMAT, **settings, "benchmarks": benchmarks, "sessions": sessions}
        )
        for problem_set in sets:
            if drawn := sum(name == problem_set.name for name, _, _ in samples.responses):
                there = f"{drawn:,} of {problem_set.total:,} responses are there already"
                self.callback.noted(f"{problem_set.name}: {there}")

    def _sample(
        self,
        samples: Samples,
        engine: Engine,
        sets: Sequence[ProblemSet],
        held: Sequence[Conversations | None],
    ) -> None:
        """Sample and grade the missing responses; the first process takes over those of others."""
        team = self.team
        if team.rank:
            samples.read()
        todo = [open_keys(samples, of.name, of.problems, of.count) for of in sets]
        team.meet()  # nothing is stored before every process knows what there is to do
        for problem_set, keys, conversations in zip(sets, todo, held, strict=True):
            if not keys:
                continue
            config = problem_set.config
            seed_generators(config.seed)
            with problem_set.open_grader() as grader:
                sample_and_grade(
                    engine.sampler,
                    engine.encoder(config.data.template),
                    problem_set.problems,
                    grader,
                    problem_set.settings,
                    count=problem_set.count,
                    seed=config.seed,
                    benchmark=problem_set.name,
                    samples=samples,
                    callback=self.callback,
                    block=BLOCK.get(engine.settings["name"], LARGE_BLOCK),
                    keys=team.share(keys),
                    conversations=conversations,
                )
        team.meet()
        if not team.rank:
            samples.take_over()
            samples.read()


def _conversations(problem_set: ProblemSet, engine: Engine) -> AbstractContextManager[Any]:
    """What holds the conversations of a set, or None: a response is one turn."""
    return open_conversations(
        problem_set.config.environment,
        engine.sampler,
        engine.tokenizer,
        engine.chat,
        lambda problem: format_prompt(problem_set.config.data.template, problem),
        environment=problem_set.environment,
        tools=problem_set.tools,
        context=problem_set.config.sampling.context,
    )


def _folder_name(model: str, settings: Mapping[str, Any]) -> str:
    """A readable name that is the same for the same settings only."""
    names = "+".join(settings["benchmarks"])
    names = names if len(names) <= 40 else f"{len(settings['benchmarks'])}-benchmarks"
    return f"{file_name(model)}-{file_name(names)}-{fingerprint(settings)[:8]}"
