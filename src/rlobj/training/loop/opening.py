"""Opening a run: from its settings, and what the caller hands in, to a `Trainer`.

`open_run` opens everything in its order, and the functions below it stand in the same order.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from rlobj.base.errors import Argument, ConfigError, counted
from rlobj.base.folders import refuse_links
from rlobj.base.paths import nearby
from rlobj.conversations.driving import Conversations
from rlobj.conversations.opening import check_named, open_conversations
from rlobj.data import Problem, ProblemStream, format_prompt
from rlobj.data.tasks import TASKS
from rlobj.models.adapters import without_adapters
from rlobj.models.embedded import ALPHABETS
from rlobj.models.hollow import reading
from rlobj.models.loading import arithmetic
from rlobj.models.policy import Policy, prompt_limit, short_enough
from rlobj.models.threads import parameters, usual_threads
from rlobj.models.vllm_sampler import vllm_sampler
from rlobj.ranks import ProcessGroup, together
from rlobj.runs.checkpoints import newest_sound
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import is_run
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.texts import TokenTexts
from rlobj.samplers import Response, Sampler, TransformersSampler
from rlobj.scoring import PolicyScorer
from rlobj.settings.profiles import embedded_task
from rlobj.settings.resuming import changed, refuse_changes
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.starting import refuse_unknown_accuracy
from rlobj.sizing.choosing import smallest_cards
from rlobj.sizing.sizes import own_card
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.clock import Clock
from rlobj.training.loop.critic import Critic
from rlobj.training.loop.initial import InitialPolicy
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.learner import Learner
from rlobj.training.loop.scores import hints_of, open_scores
from rlobj.training.loop.trainer import Trainer
from rlobj.training.parallel import Parallel, open_parallel, open_processes
from rlobj.training.parallel.processes import launched
from rlobj.training.resolving import Hardware, ResolvedRun, RunRequest, resolve
from rlobj.training.rollouts.collector import Judge
from rlobj.training.rollouts.own_columns import OwnColumns
from rlobj.training.trackers import close_trackers, open_trackers, require_trackers


@contextlib.contextmanager
def open_run(request: RunRequest, inputs: CallerInputs) -> Iterator[Trainer]:
    """A run that is ready for `run_step`; closed at the end of the `with` block.

    Raises:
        ConfigError: the input was wrong; nothing was written.
        RunError: something cannot be opened.
    """
    with ExitStack() as stack:
        hardware, accelerator = _open_processes(request.config, stack)
        comm = hardware.comm
        folder = _open_folder(request, comm, stack)
        run = resolve(request, hardware, inputs)
        config = run.config
        for callback in inputs.callbacks:
            callback.opened(run)
        parallel = _open_parallel(config, accelerator, stack, config.training.max_grad_norm)
        opening = partial(_opening, inputs.callbacks, comm)
        with opening("loading the problems"):
            train, test = run.problems
            columns = stack.enter_context(OwnColumns(config))
            columns.check(train)
            check_named(config.environment, inputs.passed("environment"), inputs.tools)
            if config.model.name is None and inputs.passed("model") is None:
                _require_readable(config, train, test)
        with opening("checking the reward"):
            grader = stack.enter_context(inputs.grader(config, [*train, *test]))
            grader.check([*train, *test])
            refuse_unknown_accuracy(config, grader.says_right)
        initial = InitialPolicy(config, inputs, parallel, stack)
        with together(comm, "reading the checkpoint"):
            resumes = run.resumed and comm.rank == 0
            newest = newest_sound(folder.path, set_aside=True) if resumes else None
        newest = comm.broadcast(newest)
        objective = config.resolved_objective()
        with opening("loading the model"):
            policy = initial.trained(newest)
            _use_threads(config, policy.model)
            size = _size(policy.model)
            limit = prompt_limit(config, policy.model.config)
            train = short_enough(train, policy.encode, limit, "training")
            test = short_enough(test, policy.encode_test, limit, "held-out")
            hints = hints_of(config, policy, objective.read_scores, train)
            scores = open_scores(config, objective, policy, parallel, initial.of_score)
            stream = ProblemStream(train, config.data.weights, seed=config.seed)
            with reading(policy.model):
                scorer = PolicyScorer(policy.model, config.training.packed)
        clock, autocast = Clock(inputs.callbacks, parallel.device), arithmetic(config.model)
        learner = Learner(config, objective, parallel, scorer, scores, autocast, clock)
        _open_critic(learner, partial(initial.value, policy, newest), stack, opening)
        with opening("opening the sampler"):
            sampler = inputs.passed("sampler") or _sampler(config, policy, parallel, initial)
            if sampler is not inputs.sampler:
                stack.callback(sampler.close)
            conversations = _conversations(config, policy, sampler, inputs, [*train, *test], stack)
        trainer = Trainer(
            inputs.callbacks, policy, learner, stream, test, sampler, grader, folder, conversations
        )
        collector = trainer.pipeline.collector
        collector.hints, collector.columns = hints, columns
        collector.judge = judge(config, inputs, policy.tokenizer)
        stack.push(trainer.pipeline.end)
        changes = trainer.prepare_folder(newest, run.resumed, stack)
        with together(comm, "opening the trackers"):
            open_trackers(parallel.accelerator, config, folder.path, learner.steps)
        stack.callback(close_trackers, parallel.accelerator)
        trainer.start(_facts(trainer, run, size, changes))
        yield trainer


def _open_processes(config: RunConfig, stack: ExitStack) -> tuple[Hardware, Any]:
    """The processes that a launcher has started, their GPUs, and Accelerate's view of them.

    Processes of one machine share its cores, unless OMP_NUM_THREADS is set. torch has its number of
    threads again when the stack closes.
    """
    threads = torch.get_num_threads()
    stack.callback(torch.set_num_threads, threads)
    if "OMP_NUM_THREADS" not in os.environ:
        processes = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
        torch.set_num_threads(max(1, threads // int(processes)))
    accelerator = None
    if launched(os.environ):
        accelerator = open_processes(stack, grouped=True, timeout=config.training.hang_timeout)
    comm = ProcessGroup("cpu" if accelerator is None else accelerator.device)
    return Hardware(comm, smallest_cards(comm.gather(own_card()))), accelerator


@contextlib.contextmanager
def _opening(callbacks: Sequence[Callback], comm: ProcessGroup, what: str) -> Iterator[None]:
    """`together`, of which the callbacks hear."""
    with together(comm, what):
        for callback in callbacks:
            callback.opening(what)
        yield


def _open_parallel(
    config: RunConfig, accelerator: Any, stack: ExitStack, max_grad_norm: float
) -> Parallel:
    """The strategy with which the processes share the policy, or the value."""
    training = config.training
    parallel = open_parallel(
        training.strategy,
        max_grad_norm=max_grad_norm,
        autocast=arithmetic(config.model),
        seed=config.seed,
        offload=training.offload == "cpu",
        accelerator=accelerator,
    )
    stack.callback(parallel.close)
    return parallel


def _use_threads(config: RunConfig, model: Any) -> None:
    """Let torch compute with the threads of the configuration."""
    threads = config.training.threads
    torch.set_num_threads(usual_threads(model) if threads == "auto" else threads)


def _open_critic(
    learner: Learner, load: Callable[[], Policy], stack: ExitStack, opening: Callable[..., Any]
) -> None:
    """Let the learner train the value that the objective reads, if it reads one."""
    config, accelerator = learner.config, learner.parallel.accelerator
    if config.critic is not None:
        with opening("loading the value"):
            value = load()
        parallel = _open_parallel(config, accelerator, stack, config.critic.max_grad_norm)
        learner.critic = Critic(learner, parallel, value)


def _open_folder(request: RunRequest, comm: ProcessGroup, stack: ExitStack) -> RunFolder:
    """The run directory; one to resume is locked, a new one is not created yet."""
    run, config = RunFolder(comm.broadcast(str(request.path))), request.config
    require_trackers(config.output.trackers)
    with together(comm, "opening the run"):
        if not request.resumed:
            run.refuse_if_taken()
        elif comm.rank == 0:
            if is_run(run.path):
                refuse_links(run.path)
            stack.enter_context(run.locked())
            changes = changed(read_settings(run.path), settings_of(config)).items()
            # What is `auto` keeps the value that it has in the run: see `resolve`.
            refuse_changes(run.path, [name for name, (_, value) in changes if value != "auto"])
    return run


def _require_readable(config: RunConfig, train: Sequence[Problem], test: Sequence[Problem]) -> None:
    """Check that the embedded policy has a token for every character of the prompts.

    Raises:
        ConfigError: a prompt with other characters.
    """
    alphabet, data = ALPHABETS[embedded_task(config.data.source)], config.data
    for template, problems in ((data.template, train), (data.template_for_tests, test)):
        for text in (format_prompt(template, problem) for problem in problems):
            if unknown := {*text}.difference(alphabet):
                raise ConfigError(
                    f"the embedded policy reads only {alphabet!r}, and the prompt {text[:60]!r} "
                    f"has {min(unknown)!r}. Train another model: ",
                    Argument("model", "NAME"),
                )


def judge(config: RunConfig, inputs: CallerInputs, tokenizer: Any) -> Judge | None:
    """What finds the spurious tokens of responses that were graded right, if the task can say."""
    task = TASKS.get(str(config.data.source))
    if task is None or task.judge is None or inputs.passed("data") is not None:
        return None
    find, texts, special = task.judge, TokenTexts(tokenizer), {*tokenizer.all_special_ids}

    def judged(response: Response) -> Sequence[float]:
        if not response.grade.correct:
            return [math.nan] * len(response.tokens)
        written = ["" if token in special else texts.text(token) for token in response.tokens]
        return [float(mark) for mark in find(response.problem.prompt, written)]

    return judged


def _sampler(
    config: RunConfig, policy: Policy, parallel: Parallel, initial: InitialPolicy
) -> Sampler:
    """The engine that draws responses, as configured.

    Args:
        config: the run.
        policy: the policy, before training.
        parallel: the processes.
        initial: the policy before training; weights come with the first sync.
    """
    settings = config.sampling
    if settings.engine == "object":
        raise ConfigError("sampling.engine is object: pass a Python object as sampler=...")
    if settings.engine == "transformers":
        apart = parallel.shards or settings.ahead
        return TransformersSampler(
            initial.frozen() if apart else policy.model,
            policy.tokenizer,
            batch_tokens=settings.batch_tokens,
            autocast=arithmetic(config.model),
            own_copy=apart,
            recompute_cache=settings.recompute_cache,
        )
    inner, primary = without_adapters(policy.model), parallel.rank == 0
    source, rank = initial.source, config.model.synced_rank
    return vllm_sampler(config, source, policy.tokenizer, inner, primary=primary, lora_rank=rank)


def _conversations(
    config: RunConfig,
    policy: Policy,
    sampler: Sampler,
    inputs: CallerInputs,
    problems: Sequence[Problem],
    stack: ExitStack,
) -> Conversations | None:
    """What holds conversations about problems, if the run has an environment or tools.

    Raises:
        ConfigError: the environment or the tools cannot be used, or a problem leaves no room.
    """
    context = config.sampling.context
    if config.bootstraps and sampler.context is not None:  # a value reads one token more
        context = min(context or sampler.context, sampler.context - 1)
    conversations = stack.enter_context(
        open_conversations(
            config.environment,
            sampler,
            policy.tokenizer,
            policy.chat,
            partial(format_prompt, policy.template),
            environment=inputs.passed("environment"),
            tools=inputs.tools,
            context=context,
        )
    )
    if conversations is not None:
        conversations.check(problems)
    return conversations


def _facts(
    trainer: Trainer, run: ResolvedRun, size: str, changes: Mapping[str, tuple[Any, Any]]
) -> dict[str, str]:
    """What the run works with, in short texts by name.

    Args:
        trainer: the run.
        run: its settings and what was chosen.
        size: of the model.
        changes: settings that a resumed run has changed.
    """
    config, parallel, policy = trainer.config, trainer.parallel, trainer.policy
    name, depth = config.model.name or "embedded", config.sampling.async_depth
    ahead, continuous = (
        f", {counted(depth, 'step')} ahead" * (depth > 0),
        config.sampling.continuous,
    )
    if continuous:
        ahead = f", continuous, {config.sampling.prompts_in_flight} prompts in flight"
    if run.inputs.passed("model") is not None:
        name = policy.source or "given"
    autocast, whole_rows = trainer.learner.autocast, trainer.learner.forward.whole_rows
    device = [parallel.device.type, "float32" if autocast is None else "bfloat16"]
    if device[0] == "cpu":
        device.append(counted(torch.get_num_threads(), "thread"))
    if parallel.size > 1 or parallel.strategy != "ddp":
        device.append(f"{parallel.size} process(es), {parallel.strategy}")
    saving = " where that saves tokens" * (config.training.shared_prompts == "auto")
    facts = {
        "policy": f"{name}, {size}",
        "problems": f"{len(trainer.stream)} to train on, {len(trainer.test_problems)} held out",
        "device": ", ".join(device),
        "prompts": f"computed once per response: {whole_rows}"
        if whole_rows
        else f"computed once for all responses{saving}",
        "sampler": config.sampling.engine + ahead,
        "run": str(nearby(trainer.run.path)),
        "chosen": run.chosen,
    }
    if (critic := trainer.learner.critic) is not None:
        alone = critic.settings.value_warmup - trainer.learner.steps
        warm = f", value warm-up: trained alone for {counted(alone, 'step')}" * (alone > 0)
        facts["value"] = f"{critic.name}, {_size(critic.policy.model)}{warm}"
    changed_now = [f"{path} {before} → {now}" for path, (before, now) in changes.items()]
    if run.resumed and continuous:
        changed_now.append("continuous: what was in flight is drawn again, numbers do not repeat")
    facts[f"from step {trainer.learner.steps + 1}"] = "; ".join(changed_now)
    return {name: text for name, text in facts.items() if text}


def _size(model: Any) -> str:
    """The number of parameters in words."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    adapters = f", {trained:,} in adapters" if trained < parameters(model) else ""
    return f"{parameters(model):,} parameters{adapters}"
