"""What `rlobj estimate` predicts, beside the peak memory of an update.

Each row is an optimizer update of two micro-batches by a random model of 100 million parameters or
more, through `rlobj.train`, in fresh processes. A short first step makes the moments. With a GPU
the arithmetic is bfloat16 and the peak is `torch.cuda.max_memory_allocated`. Without one it is
float32, and the resident memory less what the imports took. The activations are compared by the
difference between two micro-batches.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Table, ask, main, note, peak_mib, return_freed_memory
from benchmarks.made_up import PROMPT, RandomSampler, run

NAMES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
NAMES += ("head_dim", "intermediate_size", "vocab_size", "tie_word_embeddings")
SHAPES = {
    "llama 110M": ("llama", 12, 768, 12, 12, 64, 2048, 32000, True),
    "deep 108M": ("qwen3", 28, 512, 8, 4, 64, 1536, 32000, True),
    "wide 151M": ("qwen2", 4, 1280, 10, 2, 128, 3456, 32000, False),
    "words 104M": ("qwen3", 8, 512, 8, 2, 64, 1536, 151936, True),
    "Qwen3 0.6B": ("qwen3", 28, 1024, 16, 8, 128, 3072, 151936, True),
    "Qwen3 1.7B": ("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, True),
}
"""Kind of model, and the values of NAMES."""
LORA, AGAIN = {"model.lora.rank": 16}, {"training.gradient_checkpointing": True}
CRITIC = {"preset": "ppo"}
CPU_CASES: tuple[tuple[str, str, int, int, dict[str, Any]], ...] = (
    ("llama 110M", "ddp", 1, 1, {}),
    ("llama 110M", "ddp", 2, 1, {}),
    ("llama 110M", "zero2", 2, 1, {}),
    ("llama 110M", "zero3", 2, 1, {}),
    ("llama 110M", "fsdp2", 2, 1, {}),
    ("llama 110M", "ddp", 1, 1, LORA),
    ("llama 110M", "ddp", 1, 1, CRITIC),
    ("llama 110M", "fsdp2", 2, 1, CRITIC),
    ("words 104M", "ddp", 1, 1, AGAIN),
    ("deep 108M", "ddp", 1, 4, {}),
    ("wide 151M", "ddp", 1, 4, {}),
)
"""Shape, strategy, processes, rows of a micro-batch, settings. Several rows differ in length."""
GPU_CASES = tuple(
    (shape, "ddp", 1, rows, settings)
    for shape in ("llama 110M", "words 104M", "Qwen3 0.6B", "Qwen3 1.7B")
    for settings in ({}, AGAIN, LORA, CRITIC, {**AGAIN, **LORA}, {"training.fused": True})
    for rows in ((1, 4) if not settings else (1,))
)


class Sampler(RandomSampler):
    """Draws short responses at the first step."""

    def _group(self, prompt: list[int]) -> list[Any]:
        responses = super()._group(prompt)
        if self.version >= 1:
            return responses
        return [
            replace(r, tokens=r.tokens[:16], logprobs=r.logprobs[:16], versions=())
            for r in responses
        ]


def answer(
    shape: str, strategy: str, tokens: int, rows: int, settings: dict[str, Any]
) -> dict[str, float]:
    """Bytes at the peak of an update, measured; on the first rank also predicted."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from rlobj.runs.configuration import read_settings
    from rlobj.settings.run_config import RunConfig
    from rlobj.sizing.memory import estimate
    from rlobj.sizing.sizes import Size, own_card
    from rlobj.training import Callback

    gpu, ranks = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    if strategy.startswith("zero"):
        importlib.import_module("deepspeed")  # counts as an import
    longest, found = tokens // rows - PROMPT, dict[str, float]()
    kind, *values = SHAPES[shape]
    lengths = [longest - 8 * (place % rows) for place in range(2 * rows * ranks)]
    sampler = Sampler(lengths, 2 * rows, int(values[6]))
    return_freed_memory()
    before = peak_mib(reset=True)
    asked = dict(zip(NAMES, values, strict=True), max_position_embeddings=65536)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(str(kind), **asked))
    size = Size.of(model, None)  # before ranks share it

    class Peaks(Callback):
        def phase(self, name: str) -> None:
            if name == "updating":
                torch.cuda.reset_peak_memory_stats() if gpu else peak_mib(reset=True)  # pyright: ignore
            elif name == "syncing":
                mib = (peak_mib() - before) * 2**20
                found["measured"] = torch.cuda.max_memory_allocated() if gpu else mib

    with tempfile.TemporaryDirectory() as folder:
        given = {"data.max_prompt_tokens": PROMPT, "training.steps": 2, **settings}
        given |= {"training.micro_batch_tokens": tokens, "training.strategy": strategy}
        given["training.updates_per_step"] = 1
        preset = given.pop("preset", "grpo")
        result = run(preset, model.float(), sampler, given, Peaks(), Path(folder))
        if os.environ.get("RANK", "0") == "0":
            config = RunConfig(**read_settings(result.path))
            memory = estimate(config, size, strategy, ranks, own_card())
            found["predicted"] = max(memory.needed.backward, memory.needed.optimizer)
    return found


def measure(quick: bool, rounds: int) -> Table:
    """Every case at two sizes of the micro-batch."""
    gpu = torch.cuda.is_available()
    sizes, cases = ((4096, 16384), GPU_CASES) if gpu else ((512, 1024), CPU_CASES)
    table = []
    for shape, strategy, ranks, rows, settings in cases[:2] if quick else cases:
        more = [f"{key.partition('.')[2] or key}={value}" for key, value in settings.items()]
        words, found = ", ".join([f"{strategy} x {ranks}", *more]), []
        for tokens in sizes:
            note(f"{shape}, {tokens} tokens, {words}")
            question = {"shape": shape, "strategy": strategy, "tokens": tokens, "rows": rows}
            try:
                each = ask("benchmarks.estimate", {**question, "settings": settings}, ranks)
            except RuntimeError as error:  # such as a lack of memory
                note(str(error)[-500:])
                break
            found.append({**each[0], "measured": max(rank["measured"] for rank in each)})
        if len(found) == len(sizes):
            name = {"shape": shape, "rows": rows, "settings": words, "tokens": sizes[1]}
            table.append({**name, **compared(*found)})
    columns = {"shape": ("model", ""), "settings": ("strategy, settings", "")}
    columns |= {"tokens": ("tokens", ",d"), "rows": ("rows", "d")}
    columns |= {"predicted": ("predicted MiB", ",.0f"), "measured": ("measured MiB", ",.0f")}
    columns |= {"ratio": ("ratio", ".2f"), "activations": ("of activations", ".2f")}
    facts = {"activations": f"{sizes[1]} tokens against {sizes[0]}"}
    return Table("estimate-gpu" if gpu else "estimate", columns, table, facts)


def compared(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a row: the larger micro-batch, and its difference from the smaller one."""
    names = ("predicted", "measured")
    low, high = ([each[name] / 2**20 for name in names] for each in (small, large))
    grown = (high[0] - low[0]) / (high[1] - low[1])
    return {**dict(zip(names, high, strict=True)), "ratio": high[0] / high[1], "activations": grown}


if __name__ == "__main__":
    main(measure, answer)
