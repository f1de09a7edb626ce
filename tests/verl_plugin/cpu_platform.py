"""A CPU as a platform of verl, for tests only; verl knows cuda, npu and rocm.

Processes load it by VERL_USE_EXTERNAL_MODULES=cpu_platform and choose it by VERL_PLATFORM=cpu. It
says how verl's training worker finds its device, its process group and its engine. Everything that
trains is verl's own.
"""

from __future__ import annotations

import os
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
    "PYTHONPATH": f"{HERE}:{HERE.parent}",
    "OMP_NUM_THREADS": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
os.environ.update(ENVIRONMENT)

from verl.plugin.platform import PlatformBase, PlatformRegistry  # noqa: E402

CPU = torch.device("cpu")


def _nothing(*_: Any, **__: Any) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """torch.cpu, and the functions of torch.cuda that verl calls."""
    module = types.ModuleType("torch_cpu")
    module.__dict__.update({n: getattr(torch.cpu, n) for n in dir(torch.cpu) if n[0] != "_"})
    missing = (
        "empty_cache max_memory_allocated max_memory_reserved memory_allocated memory_reserved"
    )
    for name in (*missing.split(), "set_device", "ipc_collect", "reset_peak_memory_stats"):
        setattr(module, name, _nothing)
    module.mem_get_info = lambda *_: (0, 0)
    module.current_device = lambda: CPU
    module.get_device_name = lambda *_: "cpu"
    module.get_rng_state = torch.get_rng_state
    module.set_rng_state = torch.set_rng_state
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One process is one device."""

    device_name = "cpu"
    vendor_name = "test"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return CPU  # verl calls tensor.to(current_device())

    def device_count(self) -> int:
        return 1

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing


def register_engine() -> None:
    """Let verl build its FSDP engine on this platform."""
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    backends = ["fsdp", "fsdp2"]
    EngineRegistry.register("language_model", backends, device="cpu")(FSDPEngineWithLMHead)
