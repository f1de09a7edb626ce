"""What `rlobj estimate` predicts, beside the peak memory of an update.

Each row is an optimizer update of two micro-batches by a random model of 100 million parameters or
more, through `rlobj.train`, in fresh processes. A short first step makes the moments. With a GPU
the arithmetic is bfloat16 and the peak is `torch.cuda.max_memory_allocated`. Without one it is
float32, and the resident memory less what the imports took. The activations are compared by the
difference between two micro-batches.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Table, ask, main, note, peak_mib, return_freed_memory
from benchmarks.rollouts import PROMPT, QUIET, RIGHT, RandomSampler

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
LORA = {"model.lora.rank": 16}
AGAIN = {"training.gradient_checkpointing": True}
CPU_CASES: tuple[tuple[str, str, int, int, dict[str, Any]], ...] = (
    ("llama 110M", "ddp", 1, 1, {}),
    ("llama 110M", "ddp", 2, 1, {}),
    ("llama 110M", "zero2", 2, 1, {}),
    ("llama 110M", "zero3", 2, 1, {}),
    ("llama 110M", "fsdp2", 2, 1, {}),
    ("llama 110M", "ddp", 1, 1, LORA),
    ("words 104M", "ddp", 1, 1, AGAIN),
    ("deep 108M", "ddp", 1, 4, {}),
    ("wide 151M", "ddp", 1, 4, {}),
)
"""Shape, strategy, processes, rows of a micro-batch, settings. Several rows differ in length."""
GPU_CASES = tuple(
    (shape, "ddp", 1, rows, settings)
    for shape in ("llama 110M", "words 104M", "Qwen3 0.6B", "Qwen3 1.7B")
    for settings in ({}, AGAIN, LORA, {**AGAIN, **LORA}, {"training.fused": True})
    for rows in ((1, 4) if not settings else (1,))
)


class Sampler(RandomSampler):
    """Draws short responses at the first step."""

    def _group(self, prompt: list[int]) -> list[Any]:
        samples = super()._group(prompt)
        for sample in samples if self.version < 1 else ():
            object.__setattr__(sample, "tokens", sample.tokens[:16])
            object.__setattr__(sample, "logprobs", sample.logprobs[:16])
        return samples


def answer(
    shape: str, strategy: str, tokens: int, rows: int, settings: dict[str, Any]
) -> dict[str, float]:
    """Bytes at the peak of an update, measured; on the first rank also predicted."""
    from transformers import AutoConfig, AutoModelForCausalLM

    import rlobj
    from rlobj.config.run_config import RunConfig
    from rlobj.config.run_folder import read_settings
    from rlobj.training import Callback
    from rlobj.training.memory import estimate
    from rlobj.training.sizes import Size, card_bytes

    gpu, ranks = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    if strategy.startswith("zero") and importlib.util.find_spec("deepspeed"):
        importlib.import_module("deepspeed")
    longest, found = tokens // rows - PROMPT, dict[str, float]()
    kind, *values = SHAPES[shape]
    lengths = [longest - 8 * (place % rows) for place in range(2 * rows * ranks)]
    sampler = Sampler(lengths, 2 * rows, int(values[6]))
    return_freed_memory()
    before = peak_mib(reset=True)
    asked = dict(zip(NAMES, values, strict=True), max_position_embeddings=65536)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(str(kind), **asked))

    class Peaks(Callback):
        def phase(self, name: str) -> None:
            if name == "updating" and gpu:
                torch.cuda.reset_peak_memory_stats()
            elif name == "updating":
                peak_mib(reset=True)
            elif name == "syncing":
                mib = (peak_mib() - before) * 2**20
                found["measured"] = torch.cuda.max_memory_allocated() if gpu else mib

    with tempfile.TemporaryDirectory() as folder:
        result = rlobj.train(
            "grpo",
            model=model.float(),
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
        if os.environ.get("RANK", "0") == "0":
            config = RunConfig(**read_settings(result.path))
            size = Size.of(model, config.model.lora)
            memory = estimate(config, size, strategy, ranks, card_bytes())
            found["predicted"] = max(memory.needed.backward, memory.needed.optimizer)
            found |= {name: max(part[2:]) for name, part in memory.parts.items()}
    return found


def measure(quick: bool, rounds: int) -> Table:
    """Every case at two sizes of the micro-batch."""
    gpu = torch.cuda.is_available()
    sizes, cases = ((4096, 16384), GPU_CASES) if gpu else ((512, 1024), CPU_CASES)
    table = []
    for shape, strategy, ranks, rows, settings in cases[:2] if quick else cases:
        words = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in settings.items())
        found = []
        for tokens in sizes:
            note(f"{shape}, {strategy}, {ranks} processes, {tokens} tokens, {words}")
            question = {"shape": shape, "strategy": strategy, "tokens": tokens, "rows": rows}
            try:
                each = ask("benchmarks.estimate", {**question, "settings": settings}, ranks)
            except RuntimeError as error:  # such as a lack of memory
                note(str(error)[-500:])
                break
            found.append({**each[0], "measured": max(rank["measured"] for rank in each)})
        if len(found) == len(sizes):
            name = {"shape": shape, "strategy": f"{strategy}, {ranks}", "rows": rows}
            table.append({**name, "settings": words, **compared(*found)})
            note(json.dumps(table[-1]))
    columns = {"shape": ("model", ""), "strategy": ("strategy, processes", "")}
    columns |= {"rows": ("rows", "d"), "settings": ("settings", "")}
    columns |= {"predicted": ("predicted MiB", ",.0f"), "measured": ("measured MiB", ",.0f")}
    columns |= {"ratio": ("ratio", ".2f"), "activations": ("activations", ".2f")}
    facts = {"tokens": f"{sizes[1]}, and {sizes[0]} for the activations"}
    facts |= {"GPU": torch.cuda.get_device_name()} if gpu else {}
    return Table("estimate-gpu" if gpu else "estimate", str(__doc__), columns, table, facts)


def compared(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a row: the larger micro-batch, and its difference from the smaller one."""
    both = {name: large[name] / 2**20 for name in ("predicted", "measured")}
    grown = [large[name] - small[name] for name in ("predicted", "measured")]
    ratios = {"ratio": both["predicted"] / both["measured"], "activations": grown[0] / grown[1]}
    return {**both, **ratios, "small": small, "large": large}


if __name__ == "__main__":
    main(measure, answer)
