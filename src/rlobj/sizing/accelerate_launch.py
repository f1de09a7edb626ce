"""The options of `accelerate launch`, which it passes on in the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, Setting, reported
from rlobj.base.files import parse_json
from rlobj.settings.layers import flattened

_DTYPES = {"no": "float32", "bf16": "bfloat16"}
_FILE = "ACCELERATE_DEEPSPEED_CONFIG_FILE"
_OFFLOAD = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"
_OTHERS = (
    _OFFLOAD,  # followed with ZeRO 2 and 3
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "ACCELERATE_GRADIENT_CLIPPING",
    "ACCELERATE_DYNAMO_BACKEND",
    "ACCELERATE_USE_MEGATRON_LM",
    "FSDP_IGNORED_MODULES",
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "FSDP_MIN_NUM_PARAMS",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "FSDP_OFFLOAD_PARAMS",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD",
)
"""Variables of `accelerate launch` that no setting follows."""
_NOTHING = ("", "0", "1", "no", "none", "false", "auto")
"""Values that ask for nothing."""


class Launched(NamedTuple):
    """The options of `accelerate launch`.

    Attributes:
        settings: (value, option) of the settings that they stand for, by dotted name.
        unused: the other options, as NAME=VALUE.
    """

    settings: dict[str, tuple[Any, str]]
    unused: list[str]


NOT_LAUNCHED = Launched({}, [])
"""Of a process that `accelerate launch` has not started."""


def read_launch(environment: Mapping[str, str]) -> Launched:
    """Read the options of `accelerate launch`; without it there are none.

    Args:
        environment: of this process.

    Raises:
        ConfigError: the DeepSpeed file cannot be read.
    """
    precision = environment.get("ACCELERATE_MIXED_PRECISION")  # it is always set
    settings: dict[str, tuple[Any, str]] = {}
    options = {name: environment[name] for name in _OTHERS if name in environment}
    if _on(environment, "ACCELERATE_USE_DEEPSPEED"):
        stage: Any = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        if (name := environment.get(_FILE, "none")) != "none":
            file = _deepspeed_file(name)
            stage = file.pop("zero_optimization.stage", 0)
            enabled = [
                dtype for dtype in ("bf16", "fp16") if file.pop(f"{dtype}.enabled", False) is True
            ]
            precision = (*enabled, precision)[0]
            options |= file
        stage = "2" if stage == "auto" else str(stage)
        if stage not in ("0", "2", "3"):
            raise ConfigError(
                f"accelerate launch has ZeRO stage {stage}; expected 0, 2 or 3. Change the "
                "stage, or use ",
                Setting("training.strategy", "zero2"),
            )
        strategy = "ddp" if stage == "0" else f"zero{stage}"
        settings["training.strategy"] = (strategy, f"--use_deepspeed, stage {stage}")
        for name in (_OFFLOAD, "zero_optimization.offload_optimizer.device"):
            if options.get(name) == "cpu" and stage in ("2", "3"):
                settings["training.offload"] = (options.pop(name), "--offload_optimizer_device cpu")
    elif _on(environment, "ACCELERATE_USE_FSDP"):
        settings["training.strategy"] = ("fsdp2", "--use_fsdp")
        sharding = environment.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
        if sharding.upper() not in ("1", "FULL_SHARD"):
            options["FSDP_SHARDING_STRATEGY"] = sharding
        if _on(environment, "FSDP_ACTIVATION_CHECKPOINTING"):
            settings["training.gradient_checkpointing"] = (True, "--fsdp_activation_checkpointing")
    elif precision and int(environment.get("WORLD_SIZE", "1")) > 1:
        settings["training.strategy"] = ("ddp", "--multi_gpu")
    if precision:
        settings["model.dtype"] = (
            _DTYPES.get(precision, precision),
            f"--mixed_precision {precision}",
        )
    unused = [
        f"{name.removeprefix('ACCELERATE_').removeprefix('DEEPSPEED_').lower()}={value}"
        for name, value in options.items()
        if str(value).lower() not in _NOTHING
    ]
    return Launched(settings, unused)


def _on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in ("1", "true", "yes")


def _deepspeed_file(name: str) -> dict[str, Any]:
    """The settings of DeepSpeed's file by dotted name."""
    what = f"accelerate launch names the DeepSpeed file {name}, which cannot be read"
    with reported(ConfigError, what, OSError, ValueError, advice=". Expected a JSON file"):
        if not isinstance(settings := parse_json(Path(name).read_bytes()), dict):
            raise ValueError(f"it holds a {type(settings).__name__}, and not settings by name")
    return flattened(settings)
