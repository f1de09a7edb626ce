"""Sample with vLLM in the training process: one engine per rank."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.samplers.types import Between, Feed
from rlobj.samplers.vllm.extension import EXTENSION, adapter_request
from rlobj.samplers.vllm.installed import check_vllm, vllm_on_cpu
from rlobj.samplers.vllm.responses import Arrived, Asked, Completion, EngineRequest, VllmBase
from rlobj.samplers.vllm.settings import WHOLE_PROMPTS, VllmSettings, engine_arguments
from rlobj.samplers.weights import Live, Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class VllmSampler(VllmBase):
    """Samples with vLLM in this process; each rank has its own engine.

    All methods may be called while `stream` draws in another thread: they work between two steps of
    the engine, and `sample` draws with it. No method that the main thread calls changes the
    trainer's random states; a `stream` in another thread takes numbers from them. The same weights,
    prompt and seed give the same responses, whatever other prompts the call has. (On GPUs this
    holds if the kernels give the same result for every batch size.)

    Args:
        model: Hugging Face folder or hub id; its weights are used until the first `sync`.
        tokenizer: tokenizer of the model.
        eos: token ids that end a response.
        settings: settings of the engine.
        dtype: dtype of the weights and of the arithmetic.
        trust_remote_code: run Python code from the model's folder.
        lora_rank: of the adapter that `sync` brings; 0 = it brings none.
        recompute_cache: compute keys and values of responses that are being drawn again after a
            sync; False = go on with those of the old weights, which new prompts never read.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: this version of vLLM is not supported, or vLLM refuses the settings.
    """

    same_tensors = True

    def __init__(
        self,
        model: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos: Sequence[int],
        settings: VllmSettings,
        dtype: torch.dtype,
        trust_remote_code: bool = False,
        lora_rank: int = 0,
        recompute_cache: bool = True,
    ) -> None:
        super().__init__(tokenizer, eos, check_vllm()[1], recompute_cache=recompute_cache)
        self._between, self._boxes = Between(), dict[str, list[tuple[str, list[Completion]]]]()
        self.dtype: torch.dtype | None = dtype
        self._cpu, settings = vllm_on_cpu(), settings.fitted()
        self._sleep_level: Any = 0 if self._cpu else settings.sleep_level
        self._asleep = False
        cache = settings.kv_cache_bytes
        if cache == "auto":
            cache = 256 << 20 if self._cpu else None
        ours = {
            "model": model,
            "seed": 0,
            "trust_remote_code": trust_remote_code,
            "dtype": str(dtype).removeprefix("torch."),
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "kv_cache_memory_bytes": cache,
            "enable_sleep_mode": self._sleep_level > 0,
            "distributed_executor_backend": "external_launcher",  # one engine per rank
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "worker_extension_cls": EXTENSION,
            "use_tqdm_on_load": False,
        }
        self._lora_rank, self._adapter = lora_rank, None  # the adapter comes with the first sync
        defaults: dict[str, Any] = {"max_model_len": -1, "enforce_eager": self._cpu}
        if self._cpu:
            defaults |= WHOLE_PROMPTS
        if not recompute_cache:  # else a sync could come while a step of old weights is computed
            ours |= {"async_scheduling": False}
        arguments = defaults | engine_arguments(settings.extra, ours, lora_rank)
        self._made_group = not dist.is_initialized()
        refused = reported(
            ConfigError, f"sampling.vllm: vLLM cannot serve {model}", ValueError, TypeError, OSError
        )
        self._device = 0 if self._cpu else torch.cuda.current_device()
        with refused, isolated(), self._here():
            import vllm

            self._engine: Any = vllm.LLM(**arguments)
        config = self._engine.llm_engine.model_config
        self.context, self._vocabulary = config.max_model_len, config.get_vocab_size()

    def _send(self, feed: Feed[Any], request: Asked, arrived: Arrived) -> None:
        """Do what `vllm.LLM.generate` does, and pass on each output when it is finished.

        New prompts enter between two steps of the engine. Each step is of the requests of all
        calls; the outputs of another call wait in its box.
        """
        ours = threading.current_thread() is threading.main_thread()
        # In another thread, this would undo what the trainer draws meanwhile.
        with random_states_kept() if ours else contextlib.nullcontext():
            self._draw(feed, request, arrived)

    def _draw(self, feed: Feed[Any], request: Asked, arrived: Arrived) -> None:
        box: list[tuple[str, list[Completion]]] = []
        running: dict[str, Any] = {}
        more = True
        try:
            while more or running:
                new = feed.take(wait=not running) if more else ()
                more = new is not None
                if new:
                    with self._between.steps():
                        keys = self._enqueue(list(map(request, new)))
                        self._boxes |= dict.fromkeys(keys, box)
                    running |= zip(keys, new, strict=True)
                if running and not box:
                    with self._between.step(), self._here():
                        for output in self._engine.llm_engine.step():
                            if output.finished:
                                completions = list(map(_completion, output.outputs))
                                key = output.request_id
                                self._boxes.pop(key).append((key, completions))
                while box:
                    key, completions = box.pop(0)
                    arrived(running.pop(key), completions)
        finally:  # after an error: the engine can be used again
            with self._between.steps():
                self._engine.llm_engine.abort_request(list(running))
                self._boxes = {k: other for k, other in self._boxes.items() if other is not box}

    def _enqueue(self, requests: Sequence[EngineRequest]) -> list[str]:
        """Give requests to the engine, and return the names of their outputs."""
        from vllm import SamplingParams

        salt = {} if self._recompute else {"cache_salt": str(self.version)}
        inputs = [{"prompt_token_ids": list(prompt), **salt} for prompt, _ in requests]
        parameters = [
            SamplingParams(**fields, detokenize=bool(fields.get("stop"))) for _, fields in requests
        ]
        names = self._engine.enqueue(inputs, parameters, lora_request=self._adapter, use_tqdm=False)
        return [name.partition("-")[0] for name in names]

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load new weights, and mark later tokens with their version.

        Raises:
            RunError: vLLM did not load the weights.
        """
        with self._between.steps():
            self._sync(weights, version)

    def _sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        if self._asleep:
            torch.cuda.empty_cache()  # torch keeps what the trainer has freed; vLLM needs it
            self._engine.wake_up(tags=["weights"])
        failed = reported(RunError, f"vLLM did not load weights {version}", Exception)
        with failed, random_states_kept(), self._here(), torch.no_grad():
            self._call("rlobj_load", weights, version)
        if self._asleep:
            self._engine.wake_up(tags=["kv_cache"])
            self._asleep = False
        # While requests run, vLLM clears the cache only if it computes their keys again.
        if not self._engine.reset_prefix_cache(self._recompute) and self._recompute:
            raise RunError("vLLM did not clear its prefix cache; responses would mix policies")
        self._adapter = adapter_request() if self._lora_rank else None
        if self.syncs_in_flight:
            self._engine.llm_engine.set_weight_version(str(version))
        self.version = version

    def received(self) -> Received:
        """Ask the engine for the version and the digests of its weights."""
        return Received.of_worker(self._call("rlobj_received")[0])

    def live(self, part: int | None = None) -> Live:
        """Read the weights, or a part, that the engine computes with; it must not be asleep."""
        return Live.of_workers(self._call("rlobj_live", part))

    def sleep(self) -> None:
        """Free GPU memory until the next `sync`, as the setting `sleep_level` says.

        Nothing is freed while a call draws.
        """
        if self._sleep_level and not self._asleep and not self._calls:
            self._engine.sleep(level=self._sleep_level)
            self._asleep = True

    def close(self) -> None:
        """Free the engine. It cannot sample afterwards; a second call does nothing."""
        if self._engine is None:
            return
        from vllm.distributed import parallel_state

        with contextlib.nullcontext() if self._made_group else default_group_kept():
            self._engine.llm_engine.engine_core.shutdown()
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()
        self._engine = None
        gc.collect()

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        with self._between.steps():
            return self._engine.collective_rpc(method, args=arguments)

    def _here(self) -> contextlib.AbstractContextManager[Any]:
        """What each call of the engine needs: on a GPU, this rank's device, also in a new thread.

        On a CPU nothing is compiled: it takes seconds, needs a C++ compiler and saves little. This
        holds for the whole process, so only the thread that has the engine may enter.
        """
        if not self._cpu:
            return torch.cuda.device(self._device)
        return torch.compiler.set_stance("force_eager")


def _completion(output: Any) -> Completion:
    ids = list(output.token_ids)
    entries = zip(output.logprobs, ids, strict=True)
    spans = getattr(output, "weight_versions", None) or ()
    return Completion(
        ids,
        [entry[token].logprob for entry, token in entries],
        output.finish_reason,
        [(span.version, span.end - span.start) for span in spans],
    )


# The process state that vLLM changes in the trainer's process.

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the engine in this process
    "VLLM_NO_USAGE_STATS": "1",  # send no usage statistics
}
if sys.version_info < (3, 12):  # setuptools fails if distutils was imported first
    _ENVIRONMENT["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python after the block."""
    import numpy

    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)  # noqa: NPY002


def _launcher_variables() -> dict[str, str]:
    """Return the environment variables that a launcher such as torchrun would set."""
    local = {"LOCAL_RANK": os.environ.get("LOCAL_RANK", "0")}  # the GPU
    if dist.is_initialized():
        return {"RANK": str(dist.get_rank()), **local}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return {"RANK": "0", "WORLD_SIZE": "1", **address, **local}


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Set the environment for building an engine, and restore the process afterwards.

    Restored: random states, environment, default dtype, number of threads, `torch.set_num_threads`
    (the CPU build of vLLM disables it), warning filters, logging, and garbage collection of the
    objects that vLLM froze. Not restored: torch.distributed's default process group, the binding
    of memory to this CPU's node, and imported modules.

    vLLM logs errors only, unless VLLM_LOGGING_LEVEL is set in the environment.
    """
    environment, dtype = dict(os.environ), torch.get_default_dtype()
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    silenced, frozen = logging.root.manager.disable, gc.get_freeze_count()
    os.environ.update({**_ENVIRONMENT, **_launcher_variables()})
    if "VLLM_LOGGING_LEVEL" not in environment:
        os.environ["VLLM_CONFIGURE_LOGGING"] = "0"  # vLLM would close the program's log handlers
        logging.getLogger("vllm").setLevel(logging.ERROR)
        logging.disable(logging.WARNING)
    with random_states_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.disable(silenced)
            os.environ.clear()
            os.environ.update(environment)
            torch.set_default_dtype(dtype)
            torch.set_num_threads = set_num_threads
            torch.set_num_threads(threads)
            if gc.get_freeze_count() > frozen:  # Python 3.12 itself begins with a few hundred
                gc.unfreeze()


@contextlib.contextmanager
def default_group_kept() -> Iterator[None]:
    """Keep the trainer's default process group while vLLM destroys its own groups."""
    destroy = dist.destroy_process_group

    def destroy_own(group: dist.ProcessGroup | None = None) -> None:
        if group not in (None, dist.group.WORLD):
            destroy(group)

    dist.destroy_process_group = destroy_own
    try:
        yield
    finally:
        dist.destroy_process_group = destroy
