"""The weights that a vLLM engine computes with, read from its modules.

On a CPU, vLLM packs the weights of linear layers and of the output head for its matrix kernels. The
packed copy is read through the layer: y = x Wᵀ with the unit vectors for x gives W, exactly,
because products with 1 and 0 and sums with 0 are exact.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.samplers.weights import columns, digest


def live_digests(model: nn.Module, dtype: torch.dtype, part: int | None) -> dict[str, Any]:
    """Compute the digest of every tensor that the engine computes with, for `Live.of_workers`.

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
    for owner, module in model.named_modules():
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
