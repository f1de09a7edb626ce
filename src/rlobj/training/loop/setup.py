"""The parts of a run that its configuration names: processes, problems, policy, sampler."""

from __future__ import annotations

import copy
import functools
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from rlobj.base.errors import ConfigError, DataError
from rlobj.config.embedded_profile import OWN_PROBLEMS_TASK, PROFILES
from rlobj.config.run_config import RunConfig
from rlobj.data import Problem, format_prompt, load_problems
from rlobj.data.tasks import TASKS
from rlobj.models import lora
from rlobj.models.embedded import RECIPES, embedded_policy
from rlobj.models.policy import Policy, arithmetic, load_model, load_policy
from rlobj.objectives.objective import Objective
from rlobj.records.texts import TokenTexts
from rlobj.samplers import Sampler, TransformersSampler
from rlobj.scoring import PolicyScorer
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.given import Given
from rlobj.training.parallel import Parallel, open_parallel
from rlobj.training.parallel.agreement import together
from rlobj.training.rollouts.collector import Response
from rlobj.training.rollouts.sharding import Judge
from rlobj.training.storage.run_directory import RunDirectory

logger = logging.getLogger(__name__)


class InitialPolicy:
    """Makes the trained policy, and frozen copies of the model as it was before training.

    Args:
        config: the run.
        given: the caller's policy, or None.
        parallel: the processes.
        callbacks: their `warm_starting` is called while the embedded policy is made.
        stack: removes temporary files when the run ends.

    Attributes:
        source: folder or hub id of the model.
    """

    def __init__(
        self,
        config: RunConfig,
        given: Policy | None,
        parallel: Parallel,
        callbacks: Sequence[Callback],
        stack: ExitStack,
    ) -> None:
        self._config = config
        self._given = given
        self._device = parallel.device
        self._original: Any = None if given is None else given.model
        if given is None:
            self.source = config.model.name or _make_embedded(config, parallel, callbacks)
            return
        self.source = given.source
        if config.sampling.engine == "vllm":  # vLLM loads from a folder
            self.source = stack.enter_context(tempfile.TemporaryDirectory(prefix="rlobj-policy-"))
            given.model.save_pretrained(self.source)
            given.tokenizer.save_pretrained(self.source)

    def frozen(self) -> Any:
        """A copy of the model before training, on the device, that is never trained."""
        if self._original is None:
            model: Any = load_model(self._config.model, self.source)
        else:
            model = copy.deepcopy(self._original)
        return model.to(self._device).eval().requires_grad_(False)

    def reference(self, objective: Objective) -> PolicyScorer | None:
        """The scorer of the reference policy; None if the objective reads none.

        With LoRA there is none either: the policy without its adapters is the reference.
        """
        read = "ref_logprobs" in objective.needs.ever
        if not read or self._config.model.lora is not None:
            return None
        return PolicyScorer(self.frozen(), self._config.training.packed)

    def trained(self, checkpoint: Path | None) -> Policy:
        """The policy to train, on the device: with the weights of a checkpoint if there is one."""
        config = self._config
        adapter = weights = None
        if checkpoint is not None and config.model.lora is not None:
            adapter = checkpoint / "adapter"
        elif checkpoint is not None:
            weights = str(checkpoint / "model")
        if self._given is None:
            policy = load_policy(config.model, config.data, weights or self.source, adapter)
        else:
            policy = self._given
            if weights is not None:
                self._original = copy.deepcopy(policy.model)
                policy.model.load_state_dict(load_model(config.model, weights).state_dict())
            if config.model.lora is not None:
                model = lora.adapted(policy.model, config.model.lora, adapter)
                policy = replace(policy, model=model)
        policy.model.to(self._device).train()  # recomputing activations needs training mode
        if config.training.gradient_checkpointing:
            policy.recompute_activations()
        return policy


def _embedded_task(config: RunConfig) -> str:
    """The task whose embedded policy a run without a model trains."""
    source = str(config.data.source)
    return source if source in PROFILES else OWN_PROBLEMS_TASK


def _make_embedded(config: RunConfig, parallel: Parallel, callbacks: Sequence[Callback]) -> str:
    """The folder of the embedded policy. On first use one process of each machine makes it."""

    def progress(done: int, total: int, loss: float) -> None:
        for callback in callbacks:
            callback.warm_starting(done, total, loss)

    task, folder = _embedded_task(config), ""
    for first in (True, False):
        with together(parallel.comm, "making the embedded policy"):
            if first == parallel.accelerator.is_local_main_process:
                folder = str(embedded_policy(task, progress=progress))
    return folder


def hardware(config: RunConfig) -> tuple[Parallel, torch.dtype | None]:
    """The processes that share the run, and the arithmetic of forward passes (None = float32).

    Sets the number of torch's threads; on a CPU the default is one, which is the fastest.
    """
    gpu = torch.cuda.is_available()
    threads = config.training.threads
    if threads == "auto":
        threads = torch.get_num_threads() if gpu else 1
    torch.set_num_threads(threads)
    autocast = arithmetic(config.model)
    training = config.training
    parallel = open_parallel(
        training.strategy,
        max_grad_norm=training.max_grad_norm,
        autocast=autocast,
        seed=config.seed,
    )
    return parallel, autocast


def problems(config: RunConfig, given: Given) -> tuple[list[Problem], list[Problem], str]:
    """Training problems, held-out problems, and a note that says why there are none of these.

    If a source has no test part, all of it is trained on and the run is not evaluated.

    Raises:
        DataError: a source that cannot be read, or a test part that was required and is missing.
    """
    if given.train_problems is not None:
        train = list(given.train_problems)
    else:
        train = load_problems(config.data, "train")
    if not config.evaluation.every:
        return train, [], ""
    if given.test_problems is not None:
        return train, list(given.test_problems)[: config.evaluation.problems], ""
    if given.train_problems is not None and config.data.test is None:
        return train, [], " (no test problems were given)"
    try:
        test = load_problems(config.data, "test")
    except DataError as error:
        if config.data.test is not None or config.data.test_fraction:
            raise
        logger.warning("no held-out evaluation: %s", error)
        note = " (no test split; to evaluate, set data.test=FILE or data.test_fraction=0.1)"
        return train, [], note
    return train, test[: config.evaluation.problems], ""


def judge(config: RunConfig, given: Given, tokenizer: Any) -> Judge | None:
    """What finds the spurious tokens of responses that were graded right, if the task can say."""
    task = TASKS.get(config.data.source or "")
    if task is None or task.judge is None or given.train_problems is not None:
        return None
    find, texts = task.judge, TokenTexts(tokenizer)
    special = set(tokenizer.all_special_ids)

    @functools.lru_cache(4096)  # good policies repeat themselves
    def marks(prompt: str, tokens: tuple[int, ...]) -> list[float]:
        written = ["" if token in special else texts.text(token) for token in tokens]
        return [float(mark) for mark in find(prompt, written)]

    def judged(response: Response) -> Sequence[float]:
        tokens = response.sample.tokens
        if not response.grade.correct:
            return [math.nan] * len(tokens)
        return marks(response.problem.prompt, tuple(tokens))

    return judged


def fitting(
    config: RunConfig,
    policy: Policy,
    train: Sequence[Problem],
    test: Sequence[Problem],
) -> tuple[list[Problem], list[Problem]]:
    """The training and held-out problems whose prompts the policy can read.

    Raises:
        ConfigError: no problem is short enough.
    """
    limit = _prompt_limit(config, policy)
    return (
        _short_enough(train, policy.encode, limit, "training"),
        _short_enough(test, policy.encode_test, limit, "held-out"),
    )


def _prompt_limit(config: RunConfig, policy: Policy) -> int | None:
    """Tokens that a prompt may have: as configured, and at most what the model's context leaves."""
    configured = config.data.max_prompt_tokens
    context = getattr(policy.model.config.get_text_config(), "max_position_embeddings", None)
    if context is None:
        return configured
    longest = config.sampling.max_tokens
    if longest >= context:
        raise ConfigError(
            f"sampling.max_tokens={longest} leaves no room for a prompt: the model's context is "
            f"{context} tokens. Set sampling.max_tokens to less than {context}"
        )
    return min(configured or context, context - longest)


def require_readable(config: RunConfig, train: Sequence[Problem], test: Sequence[Problem]) -> None:
    """Check that the embedded policy has a token for every character of the prompts.

    It is not made for problems that it cannot read: that takes most of a minute.

    Raises:
        ConfigError: a prompt with other characters.
    """
    alphabet, data = RECIPES[_embedded_task(config)].alphabet, config.data
    prompts = chain(
        (format_prompt(data.template, problem) for problem in train),
        (format_prompt(data.template_for_tests, problem) for problem in test),
    )
    for text in prompts:
        if unknown := "".join(each for each in dict.fromkeys(text) if each not in alphabet):
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise ConfigError(
                f"the embedded policy reads only the characters {alphabet!r}, and the prompt "
                f"{shown!r} contains {unknown[:20]!r}. Train another model (model=NAME with a hub "
                "id or a folder), or use problems of these characters with data.template={prompt}"
            )


def _short_enough(
    problems: Sequence[Problem],
    encode: Callable[[Problem], list[int]],
    limit: int | None,
    kind: str,
) -> list[Problem]:
    """The problems whose prompts fit; the number of the others is logged.

    Raises:
        ConfigError: none fits.
    """
    if limit is None or not problems:
        return list(problems)
    kept = [problem for problem in problems if len(encode(problem)) <= limit]
    if not kept:
        raise ConfigError(
            f"none of the {len(problems)} {kind} problems has a prompt of at most {limit} tokens. "
            "Lower sampling.max_tokens, or set data.max_prompt_tokens"
        )
    if len(kept) < len(problems):
        left_out = len(problems) - len(kept)
        logger.warning("left out %d %s problems: prompts over %d tokens", left_out, kind, limit)
    return kept


def sampler(
    config: RunConfig, policy: Policy, parallel: Parallel, initial: InitialPolicy, run: RunDirectory
) -> Sampler:
    """The engine that draws responses, as configured.

    Args:
        config: the run.
        policy: the policy, before training.
        parallel: the processes.
        initial: the policy before training; weights come with the first sync.
        run: takes the lease of a server.
    """
    settings = config.sampling
    if settings.engine == "object":
        raise ConfigError(
            "sampling.engine is object: this run samples with a Python object; pass it as "
            "sampler=..."
        )
    if settings.engine == "transformers":
        apart = parallel.strategy in ("zero3", "fsdp2") or settings.async_depth > 0
        return TransformersSampler(
            initial.frozen() if apart else policy.model,
            policy.tokenizer,
            batch_tokens=settings.batch_tokens,
            autocast=arithmetic(config.model),
            own_copy=apart,
        )
    from rlobj.models.vllm import vllm_sampler

    inner, primary = lora.base(policy.model), parallel.rank == 0
    holder = f"{run.id} {quote(str(run.path.resolve()))}"
    return vllm_sampler(
        config, initial.source, policy.tokenizer, inner, primary=primary, holder=holder
    )
