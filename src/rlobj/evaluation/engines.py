"""The engine of an evaluation: a sampler with the model in it, and the model's tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from rlobj.base.errors import ConfigError, counted
from rlobj.config.run_config import RunConfig
from rlobj.data import Problem, encode_prompt, format_prompt
from rlobj.models.policy import arithmetic, load_policy, load_tokenizer, uses_chat_template
from rlobj.samplers import Sampler, TransformersSampler

SMALL = 10_000_000
"""Parameters below which one CPU thread is faster than several."""


@dataclass(frozen=True)
class Engine:
    """An open sampler with its tokenizer.

    Attributes:
        sampler: samples responses.
        tokenizer: the model's.
        chat: whether prompts go through the chat template.
        context: positions of the model; None if it does not say.
        facts: short texts for people, by name.
        settings: what changes numbers: the engine's name and its arithmetic.
    """

    sampler: Sampler
    tokenizer: Any
    chat: bool
    context: int | None
    facts: dict[str, str]
    settings: dict[str, Any]

    def encoder(self, template: str) -> Callable[[Problem], list[int]]:
        """A function from a problem to the token ids of its prompt."""
        return lambda problem: encode_prompt(
            self.tokenizer, format_prompt(template, problem), self.chat
        )


@contextlib.contextmanager
def open_engine(config: RunConfig, model: Any, tokenizer: Any = None) -> Iterator[Engine]:
    """Open the engine that `sampling.engine` names.

    Args:
        config: the settings.
        model: a folder or hub id, or with a tokenizer a transformers model, used as it is.
        tokenizer: the model's.

    Raises:
        ConfigError: no such model, a server that holds another one, or vLLM for a model object.
    """
    in_process = tokenizer is not None or config.sampling.engine == "transformers"
    engine = (_in_process if in_process else _with_vllm)(config, model, tokenizer)
    try:
        yield engine
    finally:
        engine.sampler.close()


def _in_process(config: RunConfig, model: Any, tokenizer: Any) -> Engine:
    if config.sampling.engine != "transformers":
        raise ConfigError(
            f"sampler is {config.sampling.engine}, and a model object is sampled with "
            "transformers: leave sampler out, or save the model to a folder and pass the folder"
        )
    name, dtype = str(config.model.name), arithmetic(config.model)
    if tokenizer is None:
        policy = load_policy(config.model, config.data, model)
        name, model, tokenizer = model, policy.model, policy.tokenizer
        gpu = torch.cuda.is_available()
        if not gpu and _parameters(model) < SMALL:
            torch.set_num_threads(1)
        model.to("cuda" if gpu else "cpu")
    elif config.model.dtype == "auto":
        dtype = None
    weights = next(model.parameters())
    device = weights.device.type
    threads = f", {counted(torch.get_num_threads(), 'thread')}" if device == "cpu" else ""
    return Engine(
        TransformersSampler(
            model, tokenizer, batch_tokens=config.sampling.batch_tokens, autocast=dtype
        ),
        tokenizer,
        uses_chat_template(tokenizer, config.model, name),
        _context(model.config),
        {"policy": f"{name}, {_parameters(model):,} parameters", "device": device + threads},
        {"name": "transformers", "dtype": _name(dtype or weights.dtype)},
    )


def _with_vllm(config: RunConfig, source: str, _: None) -> Engine:
    from transformers import AutoConfig, GenerationConfig

    from rlobj.models.vllm import vllm_sampler

    tokenizer, chat = load_tokenizer(config.model, source)
    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # a model without one
        generation = None
    trusted = config.model.trust_remote_code
    described = AutoConfig.from_pretrained(source, trust_remote_code=trusted)
    model = SimpleNamespace(config=described, generation_config=generation)
    sampler: Any = vllm_sampler(config, source, tokenizer, model)
    name = config.sampling.engine
    settings: dict[str, Any] = {"name": name}
    if name == "vllm":
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if config.sampling.vllm.extra:
            settings["extra"] = dict(config.sampling.vllm.extra)
    else:
        sampler.require_model(source)
        device = config.sampling.server.url
    settings["dtype"] = _name(sampler.dtype)
    facts = {"policy": source, "engine": name, "device": device}
    return Engine(sampler, tokenizer, chat, _context(described), facts, settings)


def _parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def _context(config: Any) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
