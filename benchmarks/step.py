"""What each saving of the training step is worth, on skewed lengths with dead groups.

One rollout of random responses (lognormal lengths, some groups with equal rewards) is trained on by
a small random policy: advantages, scoring pass, updates. CPU seconds (process time) at one thread
and peak memory, each variant in fresh processes, medians; every variant makes the same update.

    all            as the trainer does it
    no skipping    training.skip_inactive=false
    fewest         as few micro-batches as the budget allows, sorted by length
    unsorted       micro-batches of the same budget in the order of sampling
    longest        and every micro-batch padded to the rollout's longest sequence

    python benchmarks/step.py [--sigma 0.8] [--dead 0.3] [--preset grpo] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

VARIANTS = ("all", "no skipping", "fewest", "unsorted", "longest")
PROMPT, MEDIAN, LONGEST, GROUP = 16, 96, 1024, 8


def save_policy(folder: Path) -> Path:
    """Four Qwen3 layers of width 128 with the embedded tokenizer, random weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rlobj.embedded import build_tokenizer

    tokenizer: Any = build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        max_position_embeddings=PROMPT + LONGEST,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_rollout(groups: int, sigma: float, dead: float, vocabulary: int) -> Any:
    """Responses of lognormal lengths; the first share of groups has one reward."""
    from rlobj.data import Problem
    from rlobj.rewards import Graded
    from rlobj.samplers import Sample
    from rlobj.training.rollout import Response, Rollout

    generator = torch.Generator().manual_seed(1)
    drawn = math.log(MEDIAN) + sigma * torch.randn(groups * GROUP, generator=generator)
    lengths = drawn.exp().round().clamp(1, LONGEST).long().tolist()
    responses = []
    for i, length in enumerate(lengths):
        group, alone = divmod(i, GROUP)
        ids = torch.randint(3, vocabulary, (PROMPT + length,), generator=generator).tolist()
        chances = [-math.log(vocabulary)] * length
        sample = Sample(ids[:PROMPT], ids[PROMPT:], chances, "", "stop", 0)
        reward = 1.0 if group < dead * groups else float(alone % 2)
        problem, grade = Problem(id=str(group), prompt="", answer=""), Graded(reward, None, "", "")
        responses.append(Response(i, group, problem, sample, grade, reward))
    return Rollout(responses, [], 1, {}, {})


def change(variant: str) -> None:
    """Put other micro-batches in place of the trainer's."""
    from rlobj.scoring import micro_batches
    from rlobj.training import learner

    def in_order(lengths: list[int], budget: int, _: bool) -> list[list[int]]:
        width = max(lengths, default=1)
        count = max(budget // width, 1)
        return [list(range(i, min(i + count, len(lengths)))) for i in range(0, len(lengths), count)]

    learner.cut = micro_batches if variant == "fewest" else in_order
    if variant != "longest":
        return
    from rlobj.scoring import packing, policy

    def wide(sequences: Any, device: Any = "cpu") -> Any:
        whole = packing.pad_sequences([*sequences, ((0,) * (PROMPT + LONGEST), ())], device)
        return tuple(tensor[:-1] for tensor in whole)

    policy.pad_sequences = wide


def measure(variant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of one step's training in this fresh process, after one to warm up."""
    from rlobj.config import build_config
    from rlobj.presets import load_preset
    from rlobj.training import Observer
    from rlobj.training.trainer import Trainer

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    mine = {
        "model": {"name": arguments.policy},
        "data": {"source": "max-digits"},
        "rewards": {"kind": "exact"},
        "sampling": {"max_tokens": LONGEST, "max_logprob_gap": 1e9},
        "training": {
            "steps": 1,
            "updates_per_step": 1,
            "micro_batch_tokens": 4096,
            "skip_inactive": variant == "all",
        },
        "evaluation": {"every": 0},
    }
    if variant not in ("all", "no skipping"):
        change(variant)
    config = build_config([("preset", load_preset(arguments.preset).config), ("mine", mine)])
    with (
        tempfile.TemporaryDirectory() as folder,
        Trainer(config, f"{folder}/run", False, Observer()) as trainer,
    ):
        rollout = make_rollout(arguments.groups, arguments.sigma, arguments.dead, 17)
        few = make_rollout(2, arguments.sigma, 0, 17)
        trainer._trained(0, few, True)
        trainer.learner.tally.metrics(trainer.comm)
        start = time.process_time()
        metrics = trainer._trained(0, rollout, True)
        seconds = time.process_time() - start
        shares = trainer.learner.tally.metrics(trainer.comm)
    return {
        "seconds": seconds,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "useful": shares["tokens/useful_share"],
        "skipped": shares["tokens/skipped_share"],
        "gradient": metrics["train/grad_norm"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sigma", type=float, default=0.8, help="of the lengths' logarithm")
    parser.add_argument("--dead", type=float, default=0.3, help="share of groups without signal")
    parser.add_argument("--groups", type=int, default=16, help="groups of 8 responses")
    parser.add_argument("--preset", default="grpo")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments)))
        return
    settings = ("sigma", "dead", "groups", "preset")
    words = [word for key in settings for word in (f"--{key}", str(getattr(arguments, key)))]
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        policy = save_policy(Path(folder))
        command = [sys.executable, __file__, "--policy", str(policy), *words]
        for variant in VARIANTS:
            outputs = [
                subprocess.check_output([*command, "--one", variant], stderr=subprocess.DEVNULL)
                for _ in range(arguments.repeats)
            ]
            runs = [json.loads(output.decode().splitlines()[-1]) for output in outputs]
            rows[variant] = {key: sorted(r[key] for r in runs)[len(runs) // 2] for key in runs[0]}
            row = rows[variant]
            slower = row["seconds"] / rows["all"]["seconds"]
            print(
                f"{variant:12} {row['seconds']:6.2f} s CPU  {slower:5.2f}x  {row['mib']:6.0f} MiB  "
                f"useful {row['useful']:.3f}  left out {row['skipped']:.3f}  "
                f"gradient {row['gradient']:.6f}",
                flush=True,
            )
    if arguments.json:
        facts = {key: getattr(arguments, key) for key in settings}
        Path(arguments.json).write_text(json.dumps({**facts, **rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
