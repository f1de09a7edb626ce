"""Settings of the vLLM samplers. Nothing of vLLM is imported here."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rlobj.base.errors import ConfigError
from rlobj.base.validation import Model

__all__ = ["RESERVED", "ServerSettings", "VllmSettings", "check_extra"]

RESERVED = frozenset(
    {
        *("model", "tokenizer", "skip_tokenizer_init", "trust_remote_code", "dtype", "seed"),
        *("logprobs_mode", "max_logprobs", "generation_config", "override_generation_config"),
        *(
            "worker_extension_cls",
            "worker_cls",
            "enable_sleep_mode",
            "distributed_executor_backend",
        ),
        *("data_parallel_size", "speculative_config", "gpu_memory_utilization"),
        *("kv_cache_memory_bytes", "max_model_len", "enforce_eager", "use_tqdm_on_load"),
    }
)
"""Engine arguments that rlobj sets itself: what weights, log-probs and seeds depend on."""


def check_extra(arguments: dict[str, Any], reserved: frozenset[str]) -> None:
    """Refuse engine arguments that would override rlobj's own.

    Raises:
        ConfigError: one that is reserved.
    """
    taken = sorted(name for name in arguments if name.replace("-", "_") in reserved)
    if taken:
        raise ConfigError(f"rlobj sets {', '.join(taken)} itself; leave it out")


class VllmSettings(Model):
    """vLLM in the training process (`--sampler vllm`)."""

    gpu_memory_utilization: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of GPU memory for vLLM; the trainer has the rest",
    )
    kv_cache_bytes: int | Literal["auto"] = Field(
        default="auto",
        description="bytes of key-value cache (auto: 256 MiB on a CPU; what fits on a GPU)",
    )
    max_model_len: int | Literal["auto"] = Field(
        default="auto",
        description="longest prompt and response together, tokens (auto: as long as the model "
        "and the cache allow)",
    )
    enforce_eager: bool | Literal["auto"] = Field(
        default="auto", description="neither compile nor capture graphs (auto: true on a CPU)"
    )
    sleep_level: Literal[0, 1, 2] = Field(
        default=1,
        description="GPU memory given to the trainer between rollouts: 0 none, 1 all (weights wait "
        "in CPU memory), 2 all (weights are dropped); a CPU keeps everything",
    )
    extra: dict[str, Any] = Field(
        default_factory=dict, description="more arguments of vllm.LLM, by name"
    )

    @field_validator("extra")
    @classmethod
    def _not_ours(cls, extra: dict[str, Any]) -> dict[str, Any]:
        check_extra(extra, RESERVED | {"tensor_parallel_size", "pipeline_parallel_size"})
        return extra


class ServerSettings(Model):
    """A server that `rlobj serve` started (`--sampler vllm-server`).

    Its key is no setting: it is read from RLOBJ_API_KEY in the environment, or for a server on this
    machine from the file that `rlobj serve` wrote.
    """

    url: str = Field(default="http://127.0.0.1:8000", description="where the server listens")
    transport: Literal["auto", "file", "broadcast"] = Field(
        default="auto",
        description="how weights travel: shared-memory files or gloo/NCCL broadcast (auto: files "
        "where the server can read the trainer's)",
    )
    timeout: float = Field(
        default=60.0,
        gt=0,
        description="longest silence of the server, seconds; generating responses may take longer, "
        "loading weights ten times as long",
    )
    retries: int = Field(default=4, ge=0, description="attempts after a first that failed")
    backoff: float = Field(
        default=1.0, ge=0, description="pause before the first retry, seconds; it doubles each time"
    )
    broadcast_address: str | None = Field(
        default=None,
        description="the trainer's address, as the server reaches it (null: the one it sees)",
    )
    broadcast_port: int = Field(
        default=0, ge=0, le=65535, description="port on the trainer for broadcasts (0: a free one)"
    )

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{url}' is no address of a server, such as http://127.0.0.1:8000")
        return url.rstrip("/")
