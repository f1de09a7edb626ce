"""Tables of the documentation that show what runs of five models need, by `rlobj estimate`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import markdown_tables as md

from rlobj.settings.building import build_config
from rlobj.settings.layers import layers_of, nested
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.fitting import ways
from rlobj.sizing.sizes import GIB
from rlobj_cli.screen.estimating import estimate_of

__all__ = ["ESTIMATES"]

PRESETS = ("stapo", "stare", "dapo")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen3-1.7B-Base": ("qwen3", {"hidden_size": 2048, "intermediate_size": 6144}),
    "Qwen/Qwen3-8B-Base": ("qwen3", {"hidden_size": 4096, "intermediate_size": 12288}),
    "Qwen/Qwen3-14B-Base": ("qwen3", {"hidden_size": 5120, "intermediate_size": 17408}),
    "Qwen/Qwen3-4B-Instruct-2507": (
        "qwen3",
        {"hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 262144},
    ),
    "Qwen/Qwen2.5-32B": ("qwen2", {"hidden_size": 5120, "intermediate_size": 27648}),
}
SHAPES = {  # layers, heads, vocabulary, tied
    "Qwen/Qwen3-1.7B-Base": (28, 16, 151936, True),
    "Qwen/Qwen3-8B-Base": (36, 32, 151936, False),
    "Qwen/Qwen3-14B-Base": (40, 40, 151936, False),
    "Qwen/Qwen3-4B-Instruct-2507": (36, 32, 151936, True),
    "Qwen/Qwen2.5-32B": (64, 40, 152064, False),
}
GPUS = {1: "1x80", 8: "8x80", 64: "64x80"}
LORA = {"model.lora.rank": 32, "training.learning_rate": 1e-5}
"""With one GPU, a model that does not fit otherwise."""
TOOLS = {
    "environment.tools": ["python"],
    "environment.max_turns": 8,
    "sampling.max_tokens": 8192,
    "sampling.context": 16384,
}
"""Of the model that calls tools."""


def write_config(name: str, folder: Path) -> Path:
    """The config.json of a model, with the numbers that the estimate reads."""
    kind, sizes = MODELS[name]
    layers, heads, vocabulary, tied = SHAPES[name]
    config = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768 if kind == "qwen3" else 131072,
        "tie_word_embeddings": tied,
        **sizes,
    }
    path = folder / name.rpartition("/")[2]
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def settings(model: str, gpus: int) -> dict[str, Any]:
    """What the command of a recipe sets beside model, data and preset."""
    own = TOOLS if "Instruct" in model else {}
    return own | (LORA if gpus == 1 and "1.7B" not in model else {})


def configured(model: str, gpus: int, preset: str, where: Path | str) -> RunConfig:
    """The run of a recipe, with the model's config.json in a folder."""
    layers = [("recipe", nested(name, value)) for name, value in settings(model, gpus).items()]
    layers.append(("recipe", {"model": {"name": str(where)}, "data": {"source": "dapo-math-17k"}}))
    return build_config(layers_of(preset, layers))


HEAD = (
    "GPUs",
    "strategy, recomputation, tokens of a micro-batch",
    "GiB sampling / scoring / backward / optimizer",
    f"million tokens a step: {' / '.join(PRESETS)}",
    "hours of 100 steps",
)


def row(model: str, gpus: int, where: Path) -> list[str]:
    """A recipe as a row; memory and settings are those of the first preset."""
    runs = [estimate_of(configured(model, gpus, each, where), GPUS[gpus]) for each in PRESETS]
    first = runs[0]
    training, work = first.config.training, [each.work for each in runs]
    settings = ["LoRA"] if first.config.model.lora else []
    settings += [training.strategy, "yes" if training.gradient_checkpointing else "no"]
    hours = " / ".join(_hours(sum(each.seconds.values()) / 36) for each in work)
    if first.cards is not None and not first.memory.fits:
        way = ways(first.config, first.size, training.strategy, first.cards)[0][0]
        more = way.partition("processes=")[2]
        hours = f"does not fit; it does with {f'{more} GPUs' if more else 'LoRA'}"
    return [
        str(gpus),
        ", ".join([*settings, f"{training.micro_batch_tokens:,}"]),
        " / ".join(f"{x / GIB:.0f}" for x in first.memory.needed),
        " / ".join(f"{each.tokens / 1e6:.0f}" for each in work),
        hours,
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}"


def estimates_table(model: str) -> str:
    """The recipes of a model: one row for each number of GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        where = write_config(model, Path(folder))
        return md.table(HEAD, [row(model, gpus, where) for gpus in GPUS])


ESTIMATES: dict[str, Callable[[], str]] = {
    f"estimate-{model.rpartition('/')[2]}": partial(estimates_table, model) for model in MODELS
}
