"""The parts of a run that its configuration names: processes, problems, sampler."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rlobj.base.errors import ConfigError, DataError
from rlobj.config.run_config import RunConfig
from rlobj.data import Problem, format_prompt, load_problems
from rlobj.data.tasks import TASKS
from rlobj.models import lora
from rlobj.models.embedded.tokenizer import alphabet_of
from rlobj.models.policy import Policy, arithmetic
from rlobj.records.texts import TokenTexts
from rlobj.samplers import Sampler, TransformersSampler
from rlobj.training.loop.given import Given
from rlobj.training.loop.initial_policy import InitialPolicy
from rlobj.training.parallel import Parallel, open_parallel
from rlobj.training.rollouts.collector import Response
from rlobj.training.rollouts.sharding import Judge

logger = logging.getLogger(__name__)


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
    given: Given,
) -> tuple[list[Problem], list[Problem]]:
    """The training and held-out problems whose prompts the policy can read.

    Raises:
        ConfigError: no problem is short enough, or the embedded policy lacks a character.
    """
    if config.model.name is None and given.policy is None:
        alphabet = alphabet_of(policy.tokenizer)
        _require_readable(alphabet, policy.template, train)
        _require_readable(alphabet, policy.test_template, test)
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


def _require_readable(alphabet: str, template: str, problems: Sequence[Problem]) -> None:
    """Check that the embedded policy has a token for every character of the prompts.

    Raises:
        ConfigError: a prompt with other characters.
    """
    for problem in problems:
        text = format_prompt(template, problem)
        if unknown := "".join(each for each in dict.fromkeys(text) if each not in alphabet):
            shown = text if len(text) <= 60 else f"{text[:60]}..."
            raise ConfigError(
                f"the embedded policy reads only the characters {alphabet!r}, and the prompt "
                f"{shown!r} contains {unknown[:20]!r}. Train another model (--model with a hub id "
                "or a folder), or use problems of these characters with data.template={prompt}"
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
    config: RunConfig,
    policy: Policy,
    parallel: Parallel,
    initial: InitialPolicy,
    autocast: torch.dtype | None,
) -> Sampler:
    """The engine that draws responses, as configured.

    Args:
        config: the run.
        policy: the policy, before training.
        parallel: the processes.
        initial: the policy before training; weights come with the first sync.
        autocast: arithmetic of forward passes.
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
            autocast=autocast,
            own_copy=apart,
        )
    from rlobj.models.vllm import vllm_sampler

    inner, primary = lora.base(policy.model), parallel.rank == 0
    return vllm_sampler(config, initial.source, policy.tokenizer, inner, primary=primary)
