"""What `rlobj estimate` predicts, beside the peak memory of a training step.

Each row is one optimizer update of two micro-batches by a random model of 100 million parameters or
more, through `rlobj.train`, in fresh processes. The first step is short and makes the moments. With
a GPU the peak is `torch.cuda.max_memory_allocated`, and the arithmetic bfloat16; else it is the
resident memory of the process, less what it had before the model was made, in float32. The
activations are compared by the difference between two sizes of the micro-batch.

    python -m benchmarks.estimate [--full] --out benchmarks/results
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Table, ask, main, note, peak_mib, return_freed_memory
from benchmarks.rollouts import PROMPT, QUIET, RIGHT, RandomSampler

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 110M": ("llama", {"layers": 12, "hidden": 768, "heads": 12, "keys": 12, "inner": 2048}),
    "deep 108M": ("qwen3", {"layers": 28, "hidden": 512, "heads": 8, "keys": 4, "inner": 1536}),
    "wide 151M": (
        "qwen2",
        {"layers": 4, "hidden": 1280, "heads": 10, "keys": 2, "inner": 3456, "tied": False},
    ),
    "words 104M": (
        "qwen3",
        {"layers": 8, "hidden": 512, "heads": 8, "keys": 2, "inner": 1536, "vocab": 151936},
    ),
    "Qwen3 0.6B": (
        "qwen3",
        {"layers": 28, "hidden": 1024, "heads": 16, "keys": 8, "inner": 3072, "vocab": 151936}
        | {"head": 128},
    ),
    "Qwen3 1.7B": (
        "qwen3",
        {"layers": 28, "hidden": 2048, "heads": 16, "keys": 8, "inner": 6144, "vocab": 151936}
        | {"head": 128},
    ),
}
LORA = {"model.lora.rank": 16}
AGAIN = {"training.gradient_checkpointing": True}
CPU_CASES: tuple[tuple[str, str, int, int, dict[str, Any]], ...] = (
    ("llama 110M", "ddp", 1, 1, {}),
    ("deep 108M", "ddp", 1, 4, {}),
    ("words 104M", "ddp", 1, 1, AGAIN),
    ("wide 151M", "ddp", 1, 4, {}),
    ("llama 110M", "ddp", 1, 1, LORA),
    ("llama 110M", "ddp", 2, 1, {}),
    ("llama 110M", "zero2", 2, 1, {}),
    ("llama 110M", "zero3", 2, 1, {}),
    ("llama 110M", "fsdp2", 2, 1, {}),
    ("deep 108M", "fsdp2", 2, 1, AGAIN),
)
"""Shape, strategy, processes, rows of a micro-batch, settings."""
GPU_CASES = tuple(
    (shape, "ddp", 1, rows, settings)
    for shape in ("llama 110M", "words 104M", "Qwen3 0.6B", "Qwen3 1.7B")
    for settings in ({}, AGAIN, LORA, {**AGAIN, **LORA}, {"training.fused": True})
    for rows in (1, 4)
    if rows == 1 or not settings
)


def make_model(
    kind: str, layers: int, hidden: int, heads: int, keys: int, inner: int, **other: Any
):
    """A model of random weights, made on the CPU."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=other.get("head", hidden // heads),
        intermediate_size=inner,
        vocab_size=other.get("vocab", 32000),
        tie_word_embeddings=other.get("tied", True),
        max_position_embeddings=65536,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


class Sampler(RandomSampler):
    """Short responses at the first step."""

    def _group(self, prompt: list[int]) -> list[Any]:
        whole = self.lengths
        if self.version < 1:
            self.lengths = [16] * len(whole)
        try:
            return super()._group(prompt)
        finally:
            self.lengths = whole


def answer(
    shape: str, strategy: str, tokens: int, rows: int, settings: dict[str, Any]
) -> dict[str, float]:
    """Bytes of the largest phase of a step, predicted and measured."""
    import rlobj
    from rlobj.config.run_config import RunConfig
    from rlobj.config.run_folder import read_settings
    from rlobj.training import Callback
    from rlobj.training.memory import estimate
    from rlobj.training.sizes import Size, card_bytes

    gpu, ranks = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    if strategy.startswith("zero") and importlib.util.find_spec("deepspeed"):
        importlib.import_module("deepspeed")
    longest = tokens // rows - PROMPT
    lengths = [longest - 8 * (place % rows) for place in range(2 * rows * ranks)]
    kind, numbers = SHAPES[shape]
    sampler = Sampler(lengths, 2 * rows, int(numbers.get("vocab", 32000)))
    return_freed_memory()
    torch.ones(512, 512) @ torch.ones(512, 512)
    before = peak_mib(reset=True)
    found: dict[str, float] = {}

    class Peaks(Callback):
        def phase(self, name: str) -> None:
            if name == "updating":
                gc.collect()
                torch.cuda.reset_peak_memory_stats() if gpu else peak_mib(reset=True)
            if name == "syncing":
                peak = torch.cuda.max_memory_allocated() if gpu else (peak_mib() - before) * 2**20
                found["measured"] = peak

    model = make_model(kind, **numbers)
    with tempfile.TemporaryDirectory() as folder:
        rlobj.train(
            "grpo",
            model=model,
            tokenizer=sampler.tokenizer,
            data=[{"prompt": f"{i:0{PROMPT}d}", "answer": RIGHT} for i in range(ranks)],
            reward="exact",
            sampler=sampler,
            out=Path(folder) / "run",
            settings={
                "data.template": "{prompt}",
                "data.max_prompt_tokens": PROMPT,
                "sampling.prompts_per_step": ranks,
                "sampling.group_size": 2 * rows,
                "sampling.max_tokens": longest,
                "sampling.max_logprob_gap": 1e9,
                "training.micro_batch_tokens": tokens,
                "training.strategy": strategy,
                "training.steps": 2,
                **settings,
                **QUIET,
            },
            callbacks=[Peaks()],
        )
        config = RunConfig(**read_settings(Path(folder) / "run"))
    memory = estimate(config, Size.of(model, config.model.lora), strategy, ranks, card_bytes())
    parts = {name: list(each) for name, each in memory.parts.items()}
    needed = memory.needed
    return {**found, "predicted": max(needed.backward, needed.optimizer), "parts": parts}  # type: ignore[dict-item]


def measure(quick: bool, rounds: int) -> Table:
    """Every case at two sizes of the micro-batch."""
    gpu = torch.cuda.is_available()
    sizes = (4096, 16384) if gpu else (1024, 2048)
    cases = GPU_CASES if gpu else CPU_CASES
    rows = []
    for shape, strategy, ranks, count, settings in cases[:3] if quick else cases:
        row: dict[str, Any] = {"shape": shape, "strategy": f"{strategy}, {ranks}", "rows": count}
        row["settings"] = ", ".join(f"{k.partition('.')[2]}={v}" for k, v in settings.items())
        found = []
        for tokens in sizes:
            note(f"{shape}, {strategy}, {ranks} processes, {tokens} tokens, {row['settings']}")
            question = {"shape": shape, "strategy": strategy, "tokens": tokens, "rows": count}
            try:
                answers = ask("benchmarks.estimate", {**question, "settings": settings}, ranks)
            except RuntimeError as error:  # such as no memory on the GPU
                note(str(error)[-300:])
                break
            found.append(max(answers, key=lambda each: each["measured"]))
        if len(found) == len(sizes):
            small, large = found
            rows.append(row | _compared(small, large))
            note(json.dumps(rows[-1]))
    columns = {"shape": ("model", ""), "strategy": ("strategy, processes", "")}
    columns |= {"rows": ("rows", "d"), "settings": ("settings", "")}
    columns |= {"predicted": ("predicted MiB", ",.0f"), "measured": ("measured MiB", ",.0f")}
    columns |= {"ratio": ("ratio", ".2f"), "activations": ("activations: ratio", ".2f")}
    tokens = {"tokens of a micro-batch": sizes[-1], "activations": f"{sizes[1]} against {sizes[0]}"}
    device = {"GPU": torch.cuda.get_device_name()} if gpu else {}
    return Table(
        "estimate-gpu" if gpu else "estimate", str(__doc__), columns, rows, tokens | device
    )


def _compared(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a row: the larger micro-batch, and its difference from the smaller one."""
    both = {name: large[name] / 2**20 for name in ("predicted", "measured")}
    grown = {name: large[name] - small[name] for name in both}
    ratios = {"ratio": both["predicted"] / both["measured"]}
    ratios["activations"] = grown["predicted"] / grown["measured"]
    return {**both, **ratios, "small": small, "large": large}


if __name__ == "__main__":
    main(measure, answer)
