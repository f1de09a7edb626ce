"""Which tokens does an objective select, when the update is computed in micro-batches?

For each selection preset and micro-batch size (in sequences): the overlap (intersection over
union) of the tokens it acts on with those of the whole batch, and the relative difference of the
gradient. "ours" plans over the update and then takes the loss micro-batch by micro-batch; "local"
runs the same objective on each micro-batch alone and adds up, weighting each by its share of
tokens, as trainers that select inside the loss do.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from benchmarks.harness import Table, main
from rlobj import Objective, Plan, TokenBatch, load_preset

State = dict[str, Any]
PRESETS = {
    "stapo": "dropped",
    "20-entropy": "kept",
    "stare": "reweighted",
    "stare-c2": "reweighted",
    "lp-reg": "penalised",
    "kl-cov": "penalised",
    "clip-cov": "dropped",
}


def make_batch(sequences: int) -> TokenBatch:
    """Sequences whose entropies and probabilities differ from one another, groups of eight."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(200, 600, (sequences,), generator=generator)
    level = normal(sequences).repeat_interleave(lengths)
    n = int(lengths.sum())
    surprisal = (0.7 * level + normal(n)).exp()
    old = -surprisal
    return TokenBatch(
        lengths=lengths,
        groups=torch.arange(sequences) // 8,
        rewards=(torch.rand(sequences, generator=generator) < 0.5).double(),
        logprobs=(old + 0.1 * normal(n)).clamp(max=0),
        old_logprobs=old,
        entropy=0.3 * surprisal + normal(n).exp(),
        old_entropy=0.05 * normal(n).exp(),
        ref_logprobs=(old + 0.1 * normal(n)).clamp(max=0),
        proxy_logprobs=(old + normal(n)).clamp(max=0),
    )


def widen(objective: Objective) -> Objective:
    """Selections of 2e-4 as 0.02, so that a batch this small selects tokens at all."""
    data = json.dumps(objective.model_dump(by_alias=True, exclude_defaults=True))
    return Objective(
        **json.loads(data.replace("0.0002", "0.02").replace("prob < 0.002", "prob < 0.2"))
    )


def selected(name: str, plan: Plan) -> torch.Tensor:
    """The tokens that the preset's rule picked, bool [N]; how is what `PRESETS` says."""
    weights = torch.cat(plan.weights)
    if PRESETS[name] == "penalised":
        return torch.cat([penalties[0] for penalties in plan.penalties]) != 0
    if PRESETS[name] == "kept":
        return weights != 0
    if PRESETS[name] == "dropped":
        return weights == 0
    omega = weights * plan.kept  # these presets divide by the kept tokens
    return (omega - 1).abs() > 1e-9


def whole_batch(
    name: str,
    objective: Objective,
    batch: TokenBatch,
    sizes: list[int],
    state: State | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Plan over the update, then the loss of each micro-batch: gradient and selection."""
    tables = batch.split(sizes)
    plan = objective.plan(tables, objective.observe(tables) if state is None else state)
    logprobs = batch.logprobs.clone().requires_grad_()
    rows = logprobs.split([len(table) for table in tables])
    for table, row in zip(tables, rows, strict=True):
        objective.loss(table.replace(logprobs=row), plan).loss.backward(retain_graph=True)
    assert logprobs.grad is not None
    return logprobs.grad, selected(name, plan)


def local(
    name: str, objective: Objective, batch: TokenBatch, sizes: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each micro-batch on its own, weighted by its tokens, as others do inside the loss."""
    [batch] = objective.with_advantages([batch])
    state = objective.observe([batch])
    results = []
    for table in batch.split(sizes):
        alone = [len(table.lengths)]
        gradient, picked = whole_batch(name, objective, table, alone, state)
        results.append((gradient * len(table) / len(batch), picked))
    gradients, selections = zip(*results, strict=True)
    return torch.cat(gradients), torch.cat(selections)


def measure(quick: bool, rounds: int, sequences: int = 32) -> Table:
    """Every selection preset at every size of micro-batches."""
    batch, rows = make_batch(sequences), []
    for name in PRESETS:
        objective = widen(load_preset(name).objective)
        reference, chosen = whole_batch(name, objective, batch, [sequences])
        for size in (1, 4, 16):
            row = {"preset": name, "micro_batch": size, "selected": int(chosen.sum())}
            for label, run in (("ours", whole_batch), ("local", local)):
                gradient, picked = run(name, objective, batch, [size] * (sequences // size))
                union = (picked | chosen).sum()
                row[f"{label}_iou"] = float((picked & chosen).sum() / union) if union else 1.0
                row[f"{label}_gradient"] = float((gradient - reference).norm() / reference.norm())
            rows.append(row)
    return Table(
        "invariance",
        {
            "preset": ("preset", ""),
            "micro_batch": ("micro-batch", ""),
            "ours_iou": ("ours, overlap", ".3f"),
            "ours_gradient": ("ours, gradient difference", ".1e"),
            "local_iou": ("local, overlap", ".3f"),
            "local_gradient": ("local, gradient difference", ".1e"),
        },
        rows,
        {"tokens": len(batch), "sequences": sequences},
        labels=("preset", "micro_batch"),
        bars=("ours_iou", "local_iou"),
    )


if __name__ == "__main__":
    main(measure)
