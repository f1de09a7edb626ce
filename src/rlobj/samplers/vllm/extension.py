"""Extension of vLLM's worker that loads weights and reports what it loaded.

vLLM adds `WeightExtension` to the bases of its worker class (`worker_extension_cls`). The methods
are called by name: in this process, in worker processes and through POST /collective_rpc. Over
HTTP, arguments and results are JSON.

Send weights from the trainer to a server's workers by broadcast: gloo on CPUs, NCCL on GPUs.

Trainer and workers form their own process group; rank 0 is the trainer. Headers in the stream
describe the tensors, so the workers need no names and shapes in advance:

    header (1 KiB of JSON: name, dtype, shape), tensor, header, tensor, ..., header "end"

The weights that a vLLM engine computes with, read from its modules.

On a CPU, vLLM packs the weights of linear layers and of the output head for its matrix kernels. The
packed copy is read through the layer: y = x Wᵀ with the unit vectors for x gives W, exactly,
because products with 1 and 0 and sums with 0 are exact.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlobj.base.errors import RunError
from rlobj.samplers.weights import Sent, digest

_HEADER = 1024
"""Size of a header in bytes."""


class WeightGroup:
    """A process group that is independent of torch.distributed's default group.

    Args:
        address: address of rank 0 for the other ranks.
        port: port on which rank 0 listens.
        rank: rank of this process; 0 is the trainer.
        size: number of processes in the group.
        device: device of the tensors that are sent and received.
        timeout: longest wait for other ranks, in seconds.
    """

    def __init__(
        self, address: str, port: int, rank: int, size: int, device: torch.device, timeout: float
    ) -> None:
        self.device = device
        self._timeout = timeout
        self._group: Any
        if device.type == "cuda":
            self._group = _nccl(address, port, rank, size, device, timeout)
            return
        limit = timedelta(seconds=timeout)
        self._store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            address, port, size, is_master=rank == 0, timeout=limit, wait_for_workers=False
        )
        self._group = dist.ProcessGroupGloo(
            dist.PrefixStore("rlobj", self._store),  # pyright: ignore[reportPrivateImportUsage]
            rank,
            size,
            limit,
        )

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Broadcast tensors from rank 0, then the end of the stream.

        If the iterator raises an error, the other ranks are notified and raise an error too.

        Raises:
            RuntimeError: the other ranks do not take part within the timeout.
        """
        remaining = iter(weights)
        while True:
            try:
                item = next(remaining, None)
            except BaseException:
                self._broadcast(self._header("broken off"))
                raise
            if item is None:
                break
            name, value = item[0], item[1].detach().to(self.device).contiguous()
            dtype = str(value.dtype).removeprefix("torch.")
            self._broadcast(self._header([name, dtype, list(value.shape)]))
            self._broadcast(value)
        self._broadcast(self._header("end"))
        self._finish()

    def receive(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that rank 0 sends, one at a time.

        Raises:
            RuntimeError: rank 0 stopped early, or does not continue within the timeout.
        """
        while True:
            header = self._header(None)
            self._broadcast(header)
            entry = json.loads(bytes(header.tolist()))
            if entry == "end":
                return
            if entry == "broken off":
                raise RuntimeError("the trainer stopped sending in the middle of the weights")
            name, dtype, shape = entry
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
            self._broadcast(value)
            yield name, value

    def _header(self, entry: Any) -> Tensor:
        """Encode an entry as JSON, padded with spaces: uint8 [1024]."""
        text = json.dumps(entry).encode()
        if len(text) > _HEADER:
            raise RunError(
                f"a tensor's name and shape take {len(text)} bytes, more than {_HEADER}: {text!r}"
            )
        return torch.tensor(list(text.ljust(_HEADER)), dtype=torch.uint8, device=self.device)

    def _broadcast(self, value: Tensor) -> None:
        """Broadcast in place; every dtype is sent as bytes."""
        if not value.numel():
            return
        flat = value.view(-1).view(torch.uint8)
        if self.device.type == "cuda":
            self._group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
            return
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([flat], options).wait()

    def _finish(self) -> None:
        """Wait until the broadcasts on the GPU are done."""
        if self.device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self._timeout
        while not done.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"NCCL did not finish within {self._timeout:g} s")
            time.sleep(0.001)


def _nccl(
    address: str, port: int, rank: int, size: int, device: torch.device, timeout: float
) -> Any:
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.utils import StatelessProcessGroup

    group = StatelessProcessGroup.create(
        host=address, port=port, rank=rank, world_size=size, store_timeout=int(timeout)
    )
    return PyNcclCommunicator(group, device=device)


def live_digests(model: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Compute the digest of every tensor that the engine computes with, for `Live.of_workers`.

    Args:
        model: vLLM's model.
        dtype: of the engine; a layer that keeps a weight in a wider one has the same values.
    """
    tensors: dict[str, list[Any]] = {}
    with torch.no_grad():
        for name, source, tensor in _tensors(model):
            wider = tensor.is_floating_point() and tensor.element_size() > dtype.itemsize
            own = digest(tensor.to(dtype) if wider else tensor)
            tensors[name] = [source, own.length, own.total, own.squares, own.placed]
    return {"tensors": tensors, "fused": getattr(model, "packed_modules_mapping", {})}


def _tensors(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (name, name of the weight that it is a copy of, values); tied weights once."""
    names: dict[int, str] = {}
    for owner, module in model.named_modules():
        rows = getattr(module, "org_vocab_size", None)  # the rows after these are padding
        for leaf, parameter in module.named_parameters(recurse=False):
            if parameter.numel() and parameter.data_ptr() not in names:
                name = names[parameter.data_ptr()] = f"{owner}.{leaf}"
                yield name, name, parameter[:rows]
        if hasattr(module, "cpu_linear"):
            held: Any = module.weight
            name, kept = f"{owner}.weight", bool(held.numel())
            source = names[held.data_ptr()] if kept else name
            yield f"{name} (packed)" if kept else name, source, _packed(module, held.dtype)[:rows]


def _packed(module: Any, dtype: torch.dtype) -> Tensor:
    """Return W [outputs, inputs] of a layer that computes x Wᵀ with a packed copy."""
    inputs = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    return module.quant_method.apply(module, torch.eye(inputs, dtype=dtype)).t()


EXTENSION = f"{__name__}.WeightExtension"
"""Value of vLLM's `worker_extension_cls`."""

# vLLM warns at each sync about layers without weights of their own: tied heads, and the tables of
# rotary embeddings. rlobj's checks find weights that are really not loaded.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").addFilter(
    lambda record: not re.match(r"(ParallelLMHead|\w*RotaryEmbedding): F", record.getMessage())
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

    rlobj_version = -1
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
        """Return the version of the weights; -1 if they are not the trainer's."""
        return {"version": self.rlobj_version}

    def rlobj_received(self) -> dict[str, Any]:
        """Return the version and the digest of every received tensor."""
        return {"version": self.rlobj_version, "digests": self.rlobj_digests}

    def rlobj_live(self) -> dict[str, Any]:
        """Return digests of the weights that the model computes with; none if it is quantized."""
        config = self.model_config  # pyright: ignore[reportAttributeAccessIssue]
        if config.quantization is not None:
            return {"tensors": {}, "fused": {}}
        model = self.model_runner.get_model()  # pyright: ignore[reportAttributeAccessIssue]
        return live_digests(model, config.dtype)

    def rlobj_load(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load weights from an iterator (in this process only), and take all of it."""
        self.rlobj_version, self.rlobj_digests = -1, {}
        arrived = Sent(weights)
        try:
            self.reload_weights(weights_iterator=iter(arrived))  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            arrived.drain()
        refresh_head(self.model_runner.get_model())  # pyright: ignore[reportAttributeAccessIssue]
        self.rlobj_version = version
        self.rlobj_digests = {name: astuple(each) for name, each in arrived.digests.items()}

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
