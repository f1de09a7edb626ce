"""The options of `accelerate launch`, which it passes on in the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, Setting, reported
from rlobj.base.files import parse_json
from rlobj.settings.layers import flattened

_DTYPES = {"no": "float32", "bf16": "bfloat16"}
_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
_OFFLOAD = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"
Launched = dict[str, tuple[Any, str]]
"""(value, option of `accelerate launch`) of the settings that its options stand for."""


def read_launch(environment: Mapping[str, str]) -> Launched:
    """Read the options of `accelerate launch` that stand for settings; without it there are none.

    Args:
        environment: the variables of this process.

    Raises:
        ConfigError: the DeepSpeed file cannot be read.
    """
    precision = environment.get("ACCELERATE_MIXED_PRECISION")  # it is always set
    settings: Launched = {}
    if _on(environment, "ACCELERATE_USE_DEEPSPEED"):
        named = environment.get(_FILE, "none")
        file = {} if named == "none" else _deepspeed_file(named)
        offload = file.get("zero_optimization.offload_optimizer.device", environment.get(_OFFLOAD))
        stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        if named != "none":
            stage = str(file.get("zero_optimization.stage", 0))
            for dtype in ("fp16", "bf16"):
                precision = dtype if file.get(f"{dtype}.enabled") is True else precision
        stage = "2" if stage == "auto" else stage
        if stage not in ("0", "2", "3"):
            raise ConfigError(
                f"accelerate launch has ZeRO stage {stage}; expected 0, 2 or 3. Change the "
                "stage, or use ",
                Setting("training.strategy", "zero2"),
            )
        strategy = "ddp" if stage == "0" else f"zero{stage}"
        settings["training.strategy"] = (strategy, f"--use_deepspeed, stage {stage}")
        if offload == "cpu" and stage != "0":
            settings["training.offload"] = ("cpu", "--offload_optimizer_device cpu")
    elif _on(environment, "ACCELERATE_USE_FSDP"):
        settings["training.strategy"] = ("fsdp2", "--use_fsdp")
        if _on(environment, "FSDP_ACTIVATION_CHECKPOINTING"):
            settings["training.gradient_checkpointing"] = (True, "--fsdp_activation_checkpointing")
    elif precision and int(environment.get("WORLD_SIZE", "1")) > 1:
        settings["training.strategy"] = ("ddp", "--multi_gpu")
    if precision:
        dtype = _DTYPES.get(precision, precision)
        settings["model.dtype"] = (dtype, f"--mixed_precision {precision}")
    return settings


def _on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes")


def _deepspeed_file(name: str) -> dict[str, Any]:
    """The settings of DeepSpeed's file by dotted name."""
    what = f"accelerate launch names the DeepSpeed file {name}, which cannot be read"
    with reported(ConfigError, what, OSError, ValueError, advice=". Expected a JSON file"):
        if not isinstance(settings := parse_json(Path(name).read_bytes()), dict):
            raise ValueError(f"it holds a {type(settings).__name__}, and not settings by name")
    return flattened(settings)
