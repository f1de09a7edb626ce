"""The vLLM sampler that a configuration names."""

from typing import Any

import torch

from rlobj.models.loading import arithmetic
from rlobj.samplers import eos_ids
from rlobj.samplers.vllm import VllmSampler, VllmServerSampler
from rlobj.settings.run_config import RunConfig


def vllm_sampler(
    config: RunConfig,
    source: str,
    tokenizer: Any,
    model: Any,
    *,
    primary: bool = True,
    lora_rank: int = 0,
) -> VllmSampler | VllmServerSampler:
    """The sampler of `sampling.engine`, in this process or a client of a server.

    Args:
        config: the settings.
        source: folder or hub id of the model.
        tokenizer: the model's.
        model: has the model's `config` and `generation_config`.
        primary: as in `VllmServerSampler`.
        lora_rank: of the adapter that it gets; 0 = it gets merged weights.

    Raises:
        MissingExtra: a package is not installed.
        ConfigError: vLLM refuses the settings, or the server holds another model.
    """
    eos, settings = eos_ids(model, tokenizer), config.sampling
    if settings.engine == "vllm":
        return VllmSampler(
            source,
            tokenizer,
            eos=eos,
            settings=settings.vllm,
            dtype=arithmetic(config.model) or torch.float32,
            trust_remote_code=config.model.trust_remote_code,
            lora_rank=lora_rank,
            recompute_cache=settings.recompute_cache,
        )
    return VllmServerSampler(
        settings.server,
        tokenizer,
        eos=eos,
        model_config=model.config,
        primary=primary,
        lora_rank=lora_rank,
        recompute_cache=settings.recompute_cache,
    )
