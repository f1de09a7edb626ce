"""vLLM in the training process: one engine a rank, given weights from an iterator."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers.types import Done, Sample, SamplingSettings
from rlobj.samplers.vllm import versions
from rlobj.samplers.vllm.extension import EXTENSION
from rlobj.samplers.vllm.isolation import default_group_kept, isolated, random_states_kept
from rlobj.samplers.vllm.responses import Response, check_prompts, request_fields, to_samples
from rlobj.samplers.vllm.settings import VllmSettings
from rlobj.samplers.weights import Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["VllmSampler"]


_alive = False
"""vLLM keeps process groups in globals: one engine at a time in a process."""


class VllmSampler:
    """Samples with vLLM inside this process; each rank has an engine of its own.

    The trainer's random states are the same before and after every method. The same weights,
    prompt and seed give the same responses, alone or among others (on GPUs as far as their kernels
    do: batches of other sizes may round differently).

    Args:
        model: Hugging Face folder or hub id; its weights are sampled from until the first `sync`.
        tokenizer: the model's.
        eos: token ids that end a response.
        settings: of the engine.
        dtype: of its weights and arithmetic.
        seed: of the engine; responses depend on the seeds given to `sample` alone.
        trust_remote_code: run code that the model brings.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: a version of vLLM that is not supported, or settings that it refuses.
        RunError: another VllmSampler of this process is not closed.
    """

    def __init__(
        self,
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos: Sequence[int],
        settings: VllmSettings,
        dtype: torch.dtype,
        seed: int = 0,
        trust_remote_code: bool = False,
    ) -> None:
        global _alive
        versions.check()
        if _alive:
            raise RunError("this process already has a VllmSampler; close it first")
        self.dtype: torch.dtype | None = dtype
        self.tokenizer = tokenizer
        self.version = 0
        self._eos = list(eos)
        self._cpu = versions.on_cpu()
        self._sleep_level = 0 if self._cpu else settings.sleep_level
        self._asleep = False
        arguments = self._arguments(settings, dtype)
        self._made_group = not dist.is_initialized()
        with isolated(), self._eager():
            import vllm

            try:
                self._engine: Any = vllm.LLM(
                    model, seed=seed, trust_remote_code=trust_remote_code, **arguments
                )
            except (ValueError, TypeError, OSError) as error:
                raise ConfigError(
                    f"vLLM cannot serve {model} with these settings: {error} The settings of "
                    "the engine are under sampling.vllm."
                ) from error
        _alive = True
        config = self._engine.llm_engine.model_config
        self._context, self._vocabulary = config.max_model_len, config.get_vocab_size()

    def _arguments(self, settings: VllmSettings, dtype: torch.dtype) -> dict[str, Any]:
        cache = settings.kv_cache_bytes
        if cache == "auto":
            cache = 256 << 20 if self._cpu else None
        length, eager = settings.max_model_len, settings.enforce_eager
        return {
            **settings.extra,
            "dtype": str(dtype).removeprefix("torch."),
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "kv_cache_memory_bytes": cache,
            "max_model_len": -1 if length == "auto" else length,
            "enforce_eager": self._cpu if eager == "auto" else eager,
            "enable_sleep_mode": self._sleep_level > 0,
            "distributed_executor_backend": "external_launcher",  # one rank, one engine
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # nothing of the model's generation_config.json
            "worker_extension_cls": EXTENSION,
            "use_tqdm_on_load": False,
        }

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Sample]]:
        """`count` responses for each prompt, in the prompts' order; `done` is told of none.

        (vLLM's own call gives back all of them at once.)

        Raises:
            ConfigError: a prompt without tokens, or too long for the engine with `max_tokens`.
            RunError: the model gave logits that are not finite; the engine's weights are gone.
        """
        from vllm import SamplingParams

        check_prompts(prompts, settings, self._context, self._vocabulary)
        self._wake()
        detokenize = bool(settings.stop)
        parameters = [
            SamplingParams(
                **request_fields(settings, count, seed, self._eos), detokenize=detokenize
            )
            for _, seed in zip(prompts, seeds, strict=True)
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with random_states_kept(), self._eager():
            outputs = self._engine.generate(inputs, parameters, use_tqdm=False) if inputs else []
        return to_samples(
            prompts,
            [[_response(each) for each in output.outputs] for output in outputs],
            count=count,
            greedy=settings.temperature == 0,
            tokenizer=self.tokenizer,
            version=self.version,
        )

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Sample from these weights from now on, and mark samples with this version.

        Raises:
            RunError: vLLM did not take them.
        """
        arriving = iter(weights)
        if self._asleep:
            self._engine.wake_up(tags=["weights"])
        try:
            with random_states_kept(), self._eager(), torch.no_grad():
                self._call("rlobj_load", arriving, version)
        except Exception as error:
            raise RunError(f"vLLM did not load weights {version}: {error}") from error
        finally:
            for _ in arriving:  # the other ranks take part in each of them
                pass
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        if not self._engine.reset_prefix_cache():
            raise RunError("vLLM did not clear its prefix cache; responses would mix policies")
        self.version = version

    def received(self) -> Received:
        """What the engine's worker holds."""
        (answer,) = self._call("rlobj_received")
        return Received(answer["version"], answer["checksums"])

    def sleep(self) -> None:
        """Give GPU memory to the trainer until the next `sync`, by the setting `sleep_level`."""
        if self._sleep_level and not self._asleep:
            self._engine.sleep(level=self._sleep_level)
            self._asleep = True

    def close(self) -> None:
        """Free the engine. It cannot sample any more; calling it again does nothing."""
        global _alive
        if self._engine is None:
            return
        from vllm.distributed import parallel_state

        with contextlib.nullcontext() if self._made_group else default_group_kept():
            self._engine.llm_engine.engine_core.shutdown()
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
        self._engine, _alive = None, False
        gc.collect()

    def _wake(self) -> None:
        """For sampling between a `sleep` and the next `sync`."""
        if not self._asleep:
            return
        if self._sleep_level == 2:
            raise RunError("the sleeping engine has no weights; call sync before sampling")
        self._engine.wake_up()
        self._asleep = False

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return self._engine.collective_rpc(method, args=arguments)

    def _eager(self) -> contextlib.AbstractContextManager[Any]:
        """On a CPU nothing is compiled: it takes seconds, and a C++ compiler, for one small sum."""
        if not self._cpu:
            return contextlib.nullcontext()
        return torch.compiler.set_stance("force_eager")


def _response(output: Any) -> Response:
    ids = list(output.token_ids)
    entries = zip(output.logprobs, ids, strict=True)
    return Response(ids, [entry[token].logprob for entry, token in entries], output.finish_reason)
