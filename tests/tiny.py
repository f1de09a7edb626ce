"""A tiny policy and run configurations that tests share: real models, seconds on one thread."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.embedded_policy import build_policy, build_tokenizer

import rlobj
from rlobj.settings.building import build_config
from rlobj.settings.layers import flattened
from rlobj.settings.presets import load_preset, merge, preset_names
from rlobj.settings.profiles import PROFILES, limits
from rlobj.settings.run_config import RunConfig
from rlobj.sizing.sizes import Size

WITHOUT_SCORES = [name for name in preset_names() if "scores" not in load_preset(name).config]
"""Presets that read no score, so that a run needs no other policy."""

EIGHT = Size(
    total=8_190_735_360,
    adapters=2_727_936,
    layers=36,
    hidden=4096,
    queries=4096,
    keys=1024,
    heads=32,
    inner=12288,
    vocab=151936,
    normed=True,
    context=32768,
)
"""The size of Qwen3-8B, which nobody loads."""


def save_tiny_policy(folder: Path, seed: int = 0) -> Path:
    """The embedded architecture with random weights, as a Hugging Face folder."""
    build_policy(seed).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@functools.cache
def _recipe(preset: str) -> dict[str, Any]:
    """The settings of a preset, read once."""
    return load_preset(preset).config


def start(tokens: list[str], answer: str, **row: Any) -> int:
    """The value of a preset's own columns: every response starts in the same state."""
    return 0


def tiny_config(policy: Path, preset: str = "stapo", **sections: dict[str, Any]) -> RunConfig:
    """A preset on `max-digits` from random weights; sections override.

    Runs compute in float32 and sample with transformers also where there are a GPU and vLLM.
    """
    quick = {
        "sampling": {"engine": "transformers"},
        "training": {"updates_per_step": 1},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"tables_every": 0},
    }
    mine = merge({"model": {"name": str(policy), "dtype": "float32"}, **quick}, sections)
    recipe = _recipe(preset)
    own = {"columns": dict.fromkeys(recipe["objective"].get("columns", ()), f"{__file__}:start")}
    profile = merge(PROFILES["max-digits"], limits(flattened(recipe)))
    layers = [(preset, recipe), ("profile", profile), ("test", merge(own, mine))]
    return build_config(layers)


def eight_steps(policy: Path, preset: str = "stapo", **sections: dict[str, Any]) -> RunConfig:
    """Eight steps with checkpoints and evaluations between them; sections override."""
    quick = {
        "training": {"steps": 8, "updates_per_step": 2},
        "checkpoint": {"every": 3, "best": False},
        "evaluation": {"every": 4, "samples": 1, "problems": 16},
    }
    return tiny_config(policy, preset, **merge(quick, sections))


def train_conversations(policy: Path, out: Path, environment: Any, **settings: Any) -> Any:
    """A run on sums whose environment answers and grades, under settings by dotted name."""
    return rlobj.train(
        "grpo",
        model=str(policy),
        data=[{"problem": f"{a}+3=", "answer": str(a + 3)} for a in range(10, 40)],
        reward="environment",
        environment=environment,
        out=out,
        settings={
            "model.dtype": "float32",
            "sampling.engine": "transformers",
            "training.updates_per_step": 1,
            "evaluation.every": 0,
            **settings,
        },
    )
