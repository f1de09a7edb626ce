"""The training step: what its savings are worth, and that the update is the same without them.

A rollout of random responses is trained on by a small random policy: as rlobj does it, with single
settings changed, and by a plain loop over padded micro-batches that is written here. Each variant
runs in a process of its own.

CPU seconds of one rollout's training at one thread, from scoring to the last update, and peak
memory above what is there between steps. Useful: real tokens over padded ones. Left out: tokens
that updates do not need. The gradient norm is the same for all variants of a case: they make the
same update.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import Table, asked, cpu_seconds, medians
from benchmarks.made_up import PROMPT, RIGHT, RandomSampler, lognormal_lengths, make_policy, train
from rlobj import Objective, TokenBatch, load_preset
from rlobj.samplers import Response, SamplingSettings
from rlobj.scoring import PolicyScorer

VOCABULARY, GROUP, DEAD, SIGMA, AT_ONCE = 1024, 8, 0.3, 0.8, 8
OURS, PLAIN = "rlobj", "plain loop"
VARIANTS: dict[str, dict[str, Any]] = {
    OURS: {},
    "idle tokens trained": {"skip_inactive": False},
    "packed": {"packed": True, "shared_prompts": False},
    "activations recomputed": {"gradient_checkpointing": True},
    PLAIN: {"sort": False, "widest": True},
    "plain loop, padded to its longest": {"sort": False, "widest": False},
    "plain loop, sorted by length": {"sort": True, "widest": False},
}
"""Settings of `training`, or of `plain_step`, by name."""
CASES = {
    "grpo": ("grpo", SIGMA, tuple(VARIANTS)),
    "grpo, equal lengths": ("grpo", 0.0, (OURS, "idle tokens trained", PLAIN)),
    "stapo": ("stapo", SIGMA, (OURS, "idle tokens trained")),
    "lp-reg": ("lp-reg", SIGMA, (OURS, "idle tokens trained")),
    "20-entropy": ("20-entropy", SIGMA, (OURS, "idle tokens trained")),
}
"""Preset, sigma of the lengths' logarithm, variants."""


def plain_step(
    model: Any, objective: Objective, samples: Sequence[Response], sort: bool, widest: bool
) -> float:
    """The gradient norm of one update by padded micro-batches of equal counts.

    Every token goes through the model twice: for the old log-probs, and with a gradient for the
    loss.

    Args:
        model: the policy.
        objective: one that reads log-probs only.
        samples: whole groups, one after another.
        sort: micro-batches of similar lengths instead of the order of sampling.
        widest: pad every micro-batch to the rollout's longest response.
    """
    order = range(len(samples))
    if sort:
        order = sorted(order, key=lambda i: len(samples[i].tokens))
    sequences = [(samples[i].prompt, samples[i].tokens) for i in order]
    longest = max(len(prompt) + len(response) for prompt, response in sequences)
    scorer = PolicyScorer(model, packed=False)

    def score(part: Any) -> Any:
        rows = [*part, ([0] * (longest - 1), [])] if widest else part
        inputs = (None if x is None else x[: len(part)] for x in scorer.collate(rows))
        return scorer(*inputs).logprobs

    parts = [sequences[i : i + AT_ONCE] for i in range(0, len(sequences), AT_ONCE)]
    with torch.no_grad():
        old = torch.cat([score(part) for part in parts])
    table = TokenBatch(
        lengths=torch.tensor([len(response) for _, response in sequences]),
        groups=torch.tensor([i // GROUP for i in order]),
        rewards=torch.tensor([float(samples[i].text == RIGHT) for i in order]),
        logprobs=old,
        old_logprobs=old,
    )
    [table] = objective.with_advantages([table])
    tables = table.split([len(part) for part in parts])
    plan = objective.plan(tables, objective.init())
    for part, micro in zip(parts, tables, strict=True):
        objective.loss(micro.replace(logprobs=score(part)), plan).loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    model.zero_grad()
    return float(norm)


def answer(case: str, variant: str, responses: int, length: int, budget: int) -> dict[str, Any]:
    """Seconds, memory and gradient norm of one variant."""
    preset, sigma, _ = CASES[case]
    sampler = RandomSampler(lognormal_lengths(responses, length, sigma), GROUP, VOCABULARY, DEAD)
    settings = VARIANTS[variant]
    if not variant.startswith(PLAIN):
        return train(preset, sampler, {"micro_batch_tokens": budget, **settings})
    texts = [f"{i:0{PROMPT}d}" for i in range(responses // GROUP)]
    prompts = [sampler.tokenizer(text).input_ids for text in texts]
    longest = SamplingSettings(max_tokens=max(sampler.lengths))
    groups = sampler.sample(prompts, count=GROUP, settings=longest, seeds=[0] * len(prompts))
    samples = [sample for group in groups for sample in group]
    objective = load_preset(preset).objective.resolve(max(sampler.lengths))
    model = make_policy(VOCABULARY)
    step = partial(plain_step, model, objective, samples, **settings)
    norm = step()
    harness.return_freed_memory()
    mib = harness.peak_above(step)
    harness.keep_freed_memory()
    return {"seconds": median(cpu_seconds(step) for _ in range(2)), "mib": mib, "grad_norm": norm}


def measure(quick: bool, rounds: int) -> Table:
    """Every variant of every case."""
    responses, length, budget = (128, 32, 384) if quick else (256, 48, 512)
    sizes = {"responses": responses, "length": length, "budget": budget}
    every = [(case, variant) for case, (_, _, variants) in CASES.items() for variant in variants]
    questions = {each: {"case": each[0], "variant": each[1], **sizes} for each in every}
    found = asked("benchmarks.step", questions, rounds)
    rows = [to_row(*each, found[each], found[each[0], OURS]) for each in every]
    return Table(
        "step",
        {
            "step": ("step", ""),
            "variant": ("variant", ""),
            "seconds": ("CPU s", ".3g"),
            "ratio": ("over rlobj", ".2f"),
            "mib": ("MiB", ",.0f"),
            "useful_share": ("useful", ".1%"),
            "skipped_share": ("left out", ".1%"),
            "grad_norm": ("gradient norm", ".6f"),
        },
        rows,
        {**sizes, "sigma": SIGMA, "groups without signal": DEAD, "V": VOCABULARY, "rounds": rounds},
        labels=("step", "variant"),
        bars=("ratio", "mib"),
    )


def to_row(case: str, variant: str, found: list[Any], ours: list[Any]) -> dict[str, Any]:
    """The row of a variant from its rounds and those of rlobj."""
    over = harness.ratio(found, ours)
    return {"step": case, "variant": variant, **medians(found), "ratio": over}


if __name__ == "__main__":
    harness.main(measure, answer)
