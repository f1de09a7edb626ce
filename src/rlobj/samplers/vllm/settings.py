"""Settings of the vLLM samplers. This module does not import vLLM."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from rlobj.base.addresses import Address
from rlobj.base.errors import ConfigError
from rlobj.base.validation import Model

_REFUSED = {
    "override_generation_config",  # changes the distribution
    "speculative_config",
    "data_parallel_size",  # vLLM returns the answers of the first engine only
    "api_server_count",
}
"""Engine arguments with which log-probs would be others, or weights could not be checked."""
_ALWAYS = {"logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
"""Engine arguments with which log-probs are the sampler's, and no generation_config.json counts."""

WHOLE_PROMPTS = {"enable_chunked_prefill": False}
"""Arguments of an engine on a CPU: it computes each prompt in one step. After a part of a prompt,
vLLM takes the draw of a token back, which torch cannot do on a CPU: the engine would end."""


ADAPTER = "policy"
"""The name of the trained adapter in vLLM; its number is 1."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters for which vLLM can have room."""


def engine_arguments(
    given: Mapping[str, Any], ours: Mapping[str, Any], lora_rank: int = 0
) -> dict[str, Any]:
    """The engine arguments that somebody gives, and those that rlobj sets itself.

    Args:
        given: by name.
        ours: by name.
        lora_rank: of an adapter for which there is room; 0 = there is none.

    Raises:
        ConfigError: one that is given is rlobj's, or refused.
    """
    named = {name.replace("-", "_"): value for name, value in given.items()}
    ours = {**ours, **_ALWAYS}
    if lora_rank:
        room = min((rank for rank in RANKS if rank >= lora_rank), default=lora_rank)
        ours |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}
    if taken := sorted(named.keys() & {*ours, *_REFUSED}):
        raise ConfigError(f"leave out these engine arguments, which rlobj sets: {', '.join(taken)}")
    return {**named, **ours}


UNFITTED: dict[str, Any] = {"gpu_memory_utilization": 0.5, "sleep_level": 1}
"""What `auto` stands for where no training shares the GPU, or nobody knows what it needs."""


class VllmSettings(Model):
    """vLLM in the training process (`--sampler vllm`)."""

    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | Literal["auto"] = "auto"
    """share of GPU memory for vLLM; the trainer uses the rest (auto: what training leaves; 0.5 in
    evaluations)"""
    kv_cache_bytes: int | Literal["auto"] = "auto"
    """bytes of key-value cache (auto: 256 MiB on a CPU; the rest of vLLM's share on a GPU)"""
    sleep_level: Literal["auto", 0, 1, 2] = "auto"
    """GPU memory that is freed between rollouts: 0 none, 1 all (weights move to CPU memory), 2 all
    (weights are deleted, as each sync brings all of them); no effect on a CPU, or while responses
    are drawn (auto: 2, or 1 if syncs bring adapters alone; with `continuous` 0)"""
    extra: dict[str, Any] = Field(default_factory=dict)
    """other arguments of vllm.LLM, by name, such as max_model_len"""

    def fitted(self) -> Self:
        """These settings, with a value in place of each `auto` that a run has not replaced."""
        open_ = {name: value for name, value in UNFITTED.items() if getattr(self, name) == "auto"}
        return self.model_copy(update=open_)


class ServerSettings(Model):
    """A server that `rlobj serve` started (`--sampler vllm-server`).

    The key of the server is not a setting. It is read from RLOBJ_API_KEY in the environment, or
    from the file that `rlobj serve` wrote if the server runs on this machine.
    """

    url: Address = "http://127.0.0.1:8000"
    """address of the server"""
    transport: Literal["auto", "file", "broadcast"] = "auto"
    """weight transfer: shared-memory files or gloo/NCCL broadcast (auto: files if the address is
    local)"""
    timeout: float = Field(default=60.0, gt=0)
    """seconds to wait for an answer of the server; generating responses may take longer, and
    loading weights ten times as long"""
    patience: float = Field(default=300.0, ge=0)
    """seconds to wait for a server that is gone, such as one that is restarted; then the run is
    saved and stops"""
    broadcast_address: str | None = None
    """address of the trainer for the server (null: detected)"""
