"""The engine behind `rlobj eval`: a sampler of a policy, and how problems are put to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlobj.config.run_config import RunConfig
    from rlobj.samplers import Sampler

__all__ = ["Engine", "opened"]

SMALL = 10_000_000
"""Parameters below which one CPU thread is faster than two that wait for each other."""


@dataclass(frozen=True)
class Engine:
    """An open sampler with its tokenizer.

    Attributes:
        sampler: draws responses.
        tokenizer: the model's.
        chat: whether prompts go through the chat template.
        context: positions of the model; None where it does not say.
        facts: short texts for people, by name.
        settings: what changes numbers: the engine's name and its arithmetic.
    """

    sampler: Sampler
    tokenizer: Any
    chat: bool
    context: int | None
    facts: dict[str, str]
    settings: dict[str, Any]

    def encoder(self, template: str) -> Callable[[Any], list[int]]:
        """Problem -> prompt token ids, in this template."""
        from rlobj.data import encode_prompt, format_prompt

        return lambda problem: encode_prompt(
            self.tokenizer, format_prompt(template, problem), self.chat
        )


@contextlib.contextmanager
def opened(config: RunConfig, source: str) -> Iterator[Engine]:
    """The engine that `sampling.engine` names, with the model of a folder or hub id.

    Raises:
        ConfigError: no such model, or a server that holds another one.
    """
    open_one = _with_transformers if config.sampling.engine == "transformers" else _with_vllm
    engine = open_one(config, source)
    try:
        yield engine
    finally:
        engine.sampler.close()


def _with_transformers(config: RunConfig, source: str) -> Engine:
    import torch

    from rlobj.models.policy import arithmetic, load_policy
    from rlobj.samplers import TransformersSampler

    policy = load_policy(config.model, config.data, source)
    parameters = sum(p.numel() for p in policy.model.parameters())
    gpu = torch.cuda.is_available()
    if not gpu and parameters < SMALL:
        torch.set_num_threads(1)
    policy.model.to("cuda" if gpu else "cpu")
    dtype = arithmetic(config.model)
    sampler = TransformersSampler(
        policy.model,
        policy.tokenizer,
        batch_tokens=config.sampling.batch_tokens,
        autocast=dtype,
    )
    device = "cuda" if gpu else f"cpu, {torch.get_num_threads()} thread(s)"
    return Engine(
        sampler,
        policy.tokenizer,
        policy.chat,
        _context(policy.model.config),
        {"policy": f"{source}, {parameters:,} parameters", "device": device},
        {"name": "transformers", "dtype": _name(dtype or torch.float32)},
    )


def _with_vllm(config: RunConfig, source: str) -> Engine:
    import torch
    from transformers import AutoConfig, GenerationConfig

    from rlobj.models.policy import arithmetic, load_tokenizer
    from rlobj.samplers import eos_ids
    from rlobj.samplers.vllm import VllmSampler, VllmServerSampler

    tokenizer, chat = load_tokenizer(config.model, source)
    try:
        generation = GenerationConfig.from_pretrained(source)
    except OSError:  # a model without one
        generation = None
    eos = eos_ids(SimpleNamespace(generation_config=generation), tokenizer)
    trusted = config.model.trust_remote_code
    described = AutoConfig.from_pretrained(source, trust_remote_code=trusted)
    name, dtype = config.sampling.engine, arithmetic(config.model) or torch.float32
    if name == "vllm":
        sampler: Any = VllmSampler(
            source,
            tokenizer,
            eos=eos,
            settings=config.sampling.vllm,
            dtype=dtype,
            trust_remote_code=trusted,
        )
        device = "cuda" if torch.cuda.is_available() else "cpu"
    else:
        server = config.sampling.server
        sampler = VllmServerSampler(server, tokenizer, eos=eos, model_config=described)
        sampler.require_model(source)
        dtype, device = sampler.dtype, server.url
    facts = {"policy": source, "engine": name, "device": device}
    settings: dict[str, Any] = {"name": name, "dtype": _name(dtype)}
    if name == "vllm" and config.sampling.vllm.extra:
        settings["extra"] = dict(config.sampling.vllm.extra)
    return Engine(sampler, tokenizer, chat, _context(described), facts, settings)


def _context(config: Any) -> int | None:
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
