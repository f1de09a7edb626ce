"""Extension of vLLM's worker that loads weights and reports what it loaded.

vLLM adds `WeightExtension` to the bases of its worker class (`worker_extension_cls`). The methods
are called by name: in this process, in worker processes and through POST /collective_rpc. Over
HTTP, arguments and results are JSON.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.live_weights import live_digests
from rlobj.samplers.weights import Sent

EXTENSION = f"{__name__}.WeightExtension"
"""Value of vLLM's `worker_extension_cls`."""


# vLLM warns at each sync about layers without weights of their own, such as tied heads. rlobj's
# checks find weights that are really not loaded.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").addFilter(
    lambda record: record.levelno >= logging.ERROR
)

SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Entries of the model's configuration that must be equal for trainer and server."""


def _answering(method: Callable[..., None]) -> Callable[..., dict[str, str] | None]:
    """Make an error the method's answer: vLLM would mix up the next answers of several workers."""

    @functools.wraps(method)
    def answer(*arguments: Any) -> dict[str, str] | None:
        try:
            return method(*arguments)
        except Exception as error:
            logging.getLogger("vllm").exception("%s failed", method.__name__)
            return {"error": f"{type(error).__name__}: {error}"}

    return answer


class WeightExtension:
    """Methods added to vLLM's worker; the prefix `rlobj_` avoids conflicts with its own names."""

    rlobj_version, rlobj_loads = -1, 0
    rlobj_digests: dict[str, tuple[int, ...]] = {}  # noqa: RUF012  # replaced, never mutated
    rlobj_group: WeightGroup | None = None

    def rlobj_describe(self) -> dict[str, Any]:
        """Describe the engine, so that a client can check that it fits the trainer."""
        config = self.model_config  # pyright: ignore[reportAttributeAccessIssue]
        text = config.hf_text_config
        return {
            "logprobs_mode": str(config.logprobs_mode),
            "dtype": str(config.dtype).removeprefix("torch."),
            "max_model_len": int(config.max_model_len),
            "device": torch.device(self.device).type,  # pyright: ignore[reportAttributeAccessIssue]
            "shape": {name: getattr(text, name, None) for name in SHAPE},
        }

    def rlobj_status(self) -> dict[str, int]:
        """Return the version of the weights (-1: not the trainer's), and how often some came.

        Two trainers may send the same version.
        """
        return {"version": self.rlobj_version, "loads": self.rlobj_loads}

    def rlobj_received(self) -> dict[str, Any]:
        """Return the version and the digest of every received tensor."""
        return {"version": self.rlobj_version, "digests": self.rlobj_digests}

    def rlobj_live(self, part: int | None = None) -> dict[str, Any]:
        """Return digests of the weights that the model computes with; none if it is quantized."""
        config = self.model_config  # pyright: ignore[reportAttributeAccessIssue]
        if config.quantization is not None:
            return {"tensors": {}, "fused": {}}
        model = self.model_runner.get_model()  # pyright: ignore[reportAttributeAccessIssue]
        return live_digests(model, config.dtype, part)

    def rlobj_load(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load weights from an iterator (in this process only), and take all of it."""
        self.rlobj_version, self.rlobj_digests = -1, {}
        self.rlobj_loads += 1
        arrived = Sent(weights, parts=[weights.first if isinstance(weights, Sent) else None])
        try:
            self.reload_weights(weights_iterator=iter(arrived))  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            arrived.drain()
        refresh_head(self.model_runner.get_model())  # pyright: ignore[reportAttributeAccessIssue]
        self.rlobj_version = version
        self.rlobj_digests = {name: astuple(sums) for name, sums in arrived.digests.items()}

    def rlobj_sees(self, path: str) -> dict[str, bool]:
        """Tell whether this worker can read the trainer's file."""
        return {"sees": Path(path).is_file()}

    @_answering
    def rlobj_load_files(self, folder: str, version: int) -> None:
        """Load the safetensors files of a folder, in the order of their names."""
        self.rlobj_load(_stored(Path(folder)), version)

    @_answering
    def rlobj_open(self, address: str, port: int, size: int, timeout: float, first: int) -> None:
        """Join the trainer's broadcast group; the trainer is rank 0, worker 0 has rank `first`."""
        self.rlobj_group = None  # leave the group of an earlier trainer first
        rank = first + self.rank  # pyright: ignore[reportAttributeAccessIssue]
        device = torch.device(self.device)  # pyright: ignore[reportAttributeAccessIssue]
        self.rlobj_group = WeightGroup(address, port, rank, size, device, timeout)

    @_answering
    def rlobj_receive(self, version: int) -> None:
        """Load weights from the trainer's broadcast."""
        if self.rlobj_group is None:
            raise RuntimeError("no broadcast group is open; the trainer must call rlobj_open first")
        self.rlobj_load(self.rlobj_group.receive(), version)


def _stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                yield name, file.get_tensor(name)


def refresh_head(model: nn.Module) -> None:
    """Update the output head of a CPU engine after its weights have changed.

    On a CPU the head computes with a copy of its weights that is packed for oneDNN. If head and
    input embeddings share their weights, vLLM updates the shared tensor but not this copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            process: Callable[[nn.Module], None] = module.quant_method.process_weights_after_loading
            process(module)
