"""Extension of vLLM's worker that loads weights and reports what it loaded.

vLLM adds `WeightExtension` to the bases of its worker class (`worker_extension_cls`). The methods
are called by name: in this process, in worker processes and through POST /collective_rpc. Over
HTTP, arguments and results are JSON.
"""

import functools
import itertools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.settings import ADAPTER
from rlobj.samplers.weights import Sent, columns, digest

EXTENSION = f"{__name__}.WeightExtension"
"""Value of vLLM's `worker_extension_cls`."""
_Weights = Iterable[tuple[str, Tensor]]
MEMORY = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
"""Folder for files that carry weights: in shared memory if there is one."""


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
            "lora_rank": getattr(self.lora_config, "max_lora_rank", 0),  # pyright: ignore[reportAttributeAccessIssue]
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

    def rlobj_load(self, weights: _Weights, version: int) -> None:
        """Load weights from an iterator (in this process only), and take all of it.

        The tensors of an adapter come last, and take the place of the adapter before: responses in
        flight go on with it. If there are no others, the other weights stay; if there never were
        any from the trainer, nothing is loaded and the version is -1.
        """
        below, self.rlobj_version, self.rlobj_digests = self.rlobj_digests, -1, {}
        self.rlobj_loads += 1
        arrived = Sent(weights, parts=[weights.first if isinstance(weights, Sent) else None])
        adapter: dict[str, Tensor] = {}
        others = iter(_without(adapter, arrived))
        model = self.model_runner.get_model()  # pyright: ignore[reportAttributeAccessIssue]
        try:
            if (first := next(others, None)) is not None:
                below = {}
                self.reload_weights(weights_iterator=itertools.chain([first], others))  # pyright: ignore[reportAttributeAccessIssue]
                refresh_head(model)
            elif not below:
                return
            model.rlobj_adapter = {name: tensor.shape for name, tensor in adapter.items()}
            if adapter:
                with tempfile.TemporaryDirectory(prefix="rlobj-adapter-", dir=MEMORY) as folder:
                    _write(adapter, Path(folder))
                    self.remove_lora(1)  # pyright: ignore[reportAttributeAccessIssue]
                    self.add_lora(adapter_request(folder))  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            arrived.drain()
        self.rlobj_version = version
        sums = {name: astuple(sums) for name, sums in arrived.digests.items()}
        self.rlobj_digests = {**below, **sums}

    @_answering
    def rlobj_load_files(self, folder: str, version: int) -> None:
        """Load the safetensors files of a folder, in the order of their names."""
        self.rlobj_load(_stored(Path(folder)), version)

    @_answering
    def rlobj_open(self, address: str, port: int, size: int, timeout: float) -> None:
        """Join the trainer's broadcast group; the trainer has rank 0, and the workers follow."""
        self.rlobj_group = None  # leave the group of an earlier trainer first
        rank = 1 + self.rank  # pyright: ignore[reportAttributeAccessIssue]
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

    for path in sorted(folder.iterdir()):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                yield name, file.get_tensor(name)


def adapter_request(folder: str = ADAPTER) -> Any:
    """What a request says to be answered with the adapter, from a folder unless it is loaded."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(ADAPTER, 1, folder)


def _without(adapter: dict[str, Tensor], weights: _Weights) -> _Weights:
    """Yield the other weights, and put the adapter's into the dictionary."""
    for name, tensor in weights:
        if ".lora_" in name:
            adapter[name] = tensor
        else:
            yield name, tensor


def _write(adapter: Mapping[str, Tensor], folder: Path) -> None:
    """Write an adapter as vLLM reads it, with alpha = r: B is multiplied by alpha/r already."""
    from safetensors.torch import save_file

    rank = next(tensor.shape[0] for name, tensor in adapter.items() if ".lora_A." in name)
    config = {"r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter.items()}
    save_file(stored, folder / "adapter_model.safetensors")


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


def live_digests(model: nn.Module, dtype: torch.dtype, part: int | None) -> dict[str, Any]:
    """Compute the digest of every tensor that the engine computes with, for `Live.of_workers`.

    On a CPU, vLLM packs the weights of linear layers and of the output head for its matrix kernels.
    The packed copy is read through the layer: y = x Wᵀ with the unit vectors for x gives W exactly,
    because products with 1 and 0 and sums with 0 are exact.

    Args:
        model: vLLM's model.
        dtype: of the engine; a layer that keeps a weight in a wider one has the same values.
        part: of the matrices' columns; None = all.
    """
    tensors: dict[str, list[Any]] = {}
    with torch.no_grad():
        for name, source, tensor in _tensors(model, part):
            wider = tensor.is_floating_point() and tensor.element_size() > dtype.itemsize
            sums = digest(tensor.to(dtype) if wider else tensor)
            tensors[name] = [source, sums.length, sums.total, sums.squares, sums.placed]
    return {"tensors": tensors, "fused": getattr(model, "packed_modules_mapping", {})}


def _tensors(model: nn.Module, part: int | None) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (name, name of the weight that it is a copy of, values); tied weights once."""
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        if hasattr(module, "base_layer"):  # shows what is inside as its own
            yield from _adapter_tensors(model, path, module, part)
            continue
        owner = path.removesuffix(".base_layer")
        rows = getattr(module, "org_vocab_size", None)  # the rows after these are padding
        for leaf, parameter in module.named_parameters(recurse=False):
            if parameter.numel() and parameter.data_ptr() not in names:
                name = names[parameter.data_ptr()] = f"{owner}.{leaf}"
                yield name, name, columns(parameter[:rows], part)
        if hasattr(module, "cpu_linear"):
            weight: Any = module.weight
            name, kept = f"{owner}.weight", bool(weight.numel())
            source = names[weight.data_ptr()] if kept else name
            packed = _packed(module, weight.dtype, part)[:rows]
            yield f"{name} (packed)" if kept else name, source, packed


def _packed(module: Any, dtype: torch.dtype, part: int | None) -> Tensor:
    """Return columns of W [outputs, inputs] of a layer that computes x Wᵀ with a packed copy."""
    inputs = getattr(module, "input_size_per_partition", None) or module.embedding_dim
    read = columns(torch.arange(inputs)[None], part)[0]
    return module.quant_method.apply(module, nn.functional.one_hot(read, inputs).to(dtype)).t()


def _adapter_tensors(
    model: Any, path: str, module: Any, part: int | None
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (name, name, values) of the tensors of a layer's adapter, as it computes with them."""
    owner, _, leaf = path.rpartition(".")
    shapes, fused = getattr(model, "rlobj_adapter", {}), model.packed_modules_mapping
    for kind in "ab":
        stacks = getattr(module, f"lora_{kind}_stacked", ())
        for below, stack in zip(fused.get(leaf, [leaf]), stacks, strict=False):
            name = f"base_model.model.{owner}.{below}.lora_{kind.upper()}.weight"
            if name in shapes:
                rows, width = shapes[name]
                yield name, name, columns(stack[0, 0, :rows, :width], part)
