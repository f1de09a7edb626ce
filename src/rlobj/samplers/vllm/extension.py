"""What rlobj adds to vLLM's worker: taking weights, and saying what it took.

vLLM mixes `WeightExtension` into its worker class (`worker_extension_cls`) and calls the methods by
name: in this process, in its worker processes, and through POST /collective_rpc. Arguments and
results of the methods used over HTTP are plain JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.weights import checksum

__all__ = ["EXTENSION", "SHAPE", "WeightExtension", "refresh_head"]

EXTENSION = f"{__name__}.WeightExtension"
"""For vLLM's `worker_extension_cls`."""

SHAPE = (
    *("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings"),
)
"""Entries of a model's configuration in which trainer and server have to agree."""


class WeightExtension:
    """Methods for vLLM's worker; their names start with `rlobj_` to stay clear of its own."""

    rlobj_version = -1
    rlobj_checksums: dict[str, int] = {}  # noqa: RUF012  # replaced, never changed
    rlobj_group: WeightGroup | None = None

    def rlobj_describe(self) -> dict[str, Any]:
        """What a client checks before it trusts this engine."""
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
        """The version of the weights; -1 where they are not the trainer's."""
        return {"version": self.rlobj_version}

    def rlobj_received(self) -> dict[str, Any]:
        """Version and checksum of every tensor taken, as it arrived."""
        return {"version": self.rlobj_version, "checksums": self.rlobj_checksums}

    def rlobj_load(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take weights from an iterator (in this process only)."""
        self.rlobj_version, self.rlobj_checksums = -1, {}
        arrived: dict[str, int] = {}
        self.reload_weights(weights_iterator=_summed(weights, arrived))  # pyright: ignore[reportAttributeAccessIssue]
        refresh_head(self.model_runner.get_model())  # pyright: ignore[reportAttributeAccessIssue]
        self.rlobj_version, self.rlobj_checksums = version, arrived

    def rlobj_sees(self, path: str) -> dict[str, bool]:
        """Whether the trainer's file can be read here."""
        return {"sees": Path(path).is_file()}

    def rlobj_load_files(self, folder: str, version: int) -> None:
        """Take the weights in a folder of safetensors files, in the order of their names."""
        self.rlobj_load(_stored(Path(folder)), version)

    def rlobj_open(self, address: str, port: int, size: int, timeout: float) -> None:
        """Join the trainer's group for broadcasts; the trainer is rank 0."""
        self.rlobj_close()
        rank = 1 + self.rank  # pyright: ignore[reportAttributeAccessIssue]
        device = torch.device(self.device)  # pyright: ignore[reportAttributeAccessIssue]
        self.rlobj_group = WeightGroup(address, port, rank, size, device, timeout)

    def rlobj_receive(self, version: int) -> None:
        """Take weights from the trainer's broadcast, to its end whatever happens."""
        if self.rlobj_group is None:
            raise RuntimeError("no group is open; the trainer must call rlobj_open first")
        arriving = self.rlobj_group.receive()
        try:
            self.rlobj_load(arriving, version)
        finally:
            for _ in arriving:
                pass

    def rlobj_close(self) -> None:
        """Leave the trainer's group."""
        self.rlobj_group = None


def _summed(
    weights: Iterable[tuple[str, Tensor]], checksums: dict[str, int]
) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights:
        checksums[name] = checksum(tensor)
        yield name, tensor


def _stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                yield name, file.get_tensor(name)


def refresh_head(model: nn.Module) -> None:
    """Let a CPU engine's output head see new weights.

    There the head works on its own copy, packed for oneDNN. Where it shares its weights with the
    input embeddings, vLLM fills in the shared tensor and leaves the copy as it was, without a word.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            process: Callable[[nn.Module], None] = module.quant_method.process_weights_after_loading
            process(module)
