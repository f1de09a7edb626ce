"""Tokens without a gradient are left out of an update's logits, and the update is the same."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_policy
from runs import distance, metrics, ranks, weights, write_config
from strategies import awkward_batch, fitting, gradients, leaf, objectives
from tiny import WITHOUT_SCORES, tiny_config
from torch import Tensor

from rlobj import TokenBatch
from rlobj.samplers import Response
from rlobj.scoring import PolicyScorer
from rlobj.scoring import policy_scorer as scoring
from rlobj.settings.scores import ScoreConfig
from rlobj.training import run_training
from rlobj.training.loop.learner import GradientRows, Learner
from rlobj.training.loop.scores import Score
from rlobj.training.parallel import open_parallel
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import StepBatch

PHASES = {
    f"{name}, phase {i}": phase
    for name, objective in objectives().items()
    for i, phase in enumerate(objective.phases, 1)
}


# Rows with gradient.


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", sorted(PHASES))
def test_tokens_with_gradient_give_the_whole_gradient(name, seed):
    """The others' log-probs and entropies are known numbers, in loss and metrics too."""
    objective = PHASES[name]
    batch = leaf(fitting(objective, awkward_batch(seed)))
    plan = objective.plan([batch], objective.observe([batch], {"update": 3}))
    whole = objective.loss(batch, plan)
    whole.loss.backward()
    chosen = GradientRows(batch, objective.tokens_with_gradient(batch, plan), True, True)
    assert not bool(chosen.rows.all())
    responses = batch.spread(objective.responses_with_gradient(batch, plan))
    assert not bool((chosen.rows & ~responses).any())
    columns = ("logprobs", "entropy")
    scores = {x: getattr(batch, x).detach()[chosen.rows].requires_grad_() for x in columns}
    table = chosen.filled(scores)
    share = objective.loss(table, plan)
    share.loss.backward()
    found = torch.zeros_like(gradients(batch))
    for row, score in zip(found, scores.values(), strict=True):
        row[chosen.rows] = torch.zeros_like(score) if score.grad is None else score.grad
    assert torch.equal(found, gradients(batch))
    assert torch.equal(share.loss, whole.loss)
    assert all(torch.equal(share.metrics[key], value) for key, value in whole.metrics.items())


# A step of the learner.

LENGTHS = [5, 9, 1, 7, 7, 3, 10, 8, 2, 6, 4, 10, 5, 7, 1, 9]
REWARDS = [1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 0, math.nan, 0, 0, 1, 0.5]  # the second group is dead


@pytest.fixture(scope="module")
def parallel():
    settings: dict[str, Any] = {"max_grad_norm": 1e9, "autocast": None, "seed": 0}
    opened = open_parallel("ddp", **settings)
    yield opened
    opened.close()


def sharp(seed: int, packed: bool = False, dtype=torch.float64, rope=None) -> PolicyScorer:
    """A policy whose tokens are likely, unlikely and in between."""
    model = build_policy(seed)
    if rope:
        model.config.rope_parameters = rope
        model.config.max_position_embeddings = 6
        torch.manual_seed(seed)
        model = type(model)(model.config)
    model = model.to(dtype)
    with torch.no_grad():
        model.model.norm.weight.mul_(8)
    return PolicyScorer(model, packed)


@dataclass
class Step:
    """One step of a policy on a rollout of random tokens."""

    parallel: Any
    config: Any
    packed: bool = False
    autocast: torch.dtype | None = None
    """With one, the policy is float32, else float64."""
    rope: dict[str, Any] | None = None
    scored: list[int] = field(default_factory=list)
    """Tokens of each forward with gradient."""
    gradients: list[Tensor] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    known: list[bool] = field(default_factory=list)
    """Whether a scoring pass of the same weights came before, by updates."""

    def run(self) -> Step:
        objective = self.config.resolved_objective()
        dtype = torch.float32 if self.autocast else torch.float64
        scorer = sharp(0, self.packed, dtype, self.rope)
        other = sharp(1, dtype=dtype).to(self.parallel.device).requires_grad_(False)
        reference = Score(ScoreConfig(), scorer=other)
        scores = {"reference": reference} if "reference" in objective.read_scores else {}
        learner = Learner(self.config, objective, self.parallel, scorer, scores, self.autocast)
        random = torch.Generator().manual_seed(0)
        ids = [torch.randint(3, 20, (3 + n,), generator=random).tolist() for n in LENGTHS]
        sequences = [(row[:3], row[3:]) for row in ids]
        with torch.no_grad():
            sampler = learner.forward.columns(learner.scorer, sequences)["logprobs"]
        table = TokenBatch(
            lengths=LENGTHS,
            groups=torch.arange(16) // 4,
            ids=torch.arange(16),
            rewards=torch.tensor(REWARDS),
            logprobs=sampler,
            sampler_logprobs=sampler,
            columns=dict.fromkeys(objective.columns, torch.zeros(16)),
        )
        updates = self.config.training.updates_per_step
        responses = [Response(*row, [0.0] * len(row[1]), "", "stop", 0) for row in sequences]
        whole = StepBatch(table, responses, sizes=[16 // updates] * updates)
        with pytest.MonkeyPatch.context() as patch:
            self._watch(learner, patch)
            patch.setattr(learner, "shard", lambda _: whole)
            learner.train_on(Rollout([], [], 1, {}, {}), self._updated)
        self.shares = learner.forward.counts.metrics(self.parallel.comm)
        return self

    def _updated(self, index, batch, plan, metrics):
        self.known.append(batch.current)
        self.metrics.append(metrics)

    def _watch(self, learner: Learner, patch: pytest.MonkeyPatch) -> None:
        apply, score = self.parallel.step, scoring.score_tokens

        def step(**settings):
            self.gradients.append(
                torch.cat([p.grad.flatten() for p in learner.model.parameters()]).clone()
            )
            return apply(**settings)

        def score_tokens(hidden, weight, targets, **settings):
            if torch.is_grad_enabled():
                self.scored.append(len(targets))
            return score(hidden, weight, targets, **settings)

        patch.setattr(self.parallel, "step", step)
        patch.setattr(scoring, "score_tokens", score_tokens)


def step(parallel: Any, preset: str, skip: bool, updates: int = 1, **sections: dict) -> Step:
    training = {"updates_per_step": updates, "micro_batch_tokens": 100, "skip_inactive": skip}
    training["learning_rate"] = 3e-4
    sections.setdefault("sampling", {"max_tokens": 10})
    return Step(parallel, tiny_config(Path(), preset, training=training, **sections)).run()


OF_TRAINED = {"policy/entropy", "policy/kl_old", "policy/ratio", "policy/ratio_max"}
"""Metrics that are of trained tokens where nothing else is known."""

FAST = ("20-entropy", "gspo", "lopti", "lp-reg", "stapo")
CASES = [
    *((preset, 2) for preset in FAST),
    *(
        pytest.param(preset, 2, marks=pytest.mark.slow)
        for preset in sorted({*WITHOUT_SCORES} - {*FAST})
    ),
    pytest.param("ar-lopti", 1, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("preset", "updates"), CASES)
def test_a_step_has_the_same_gradients_and_metrics_without_them(parallel, preset, updates):
    few, whole = (step(parallel, preset, skip, updates) for skip in (True, False))
    assert few.known == whole.known
    assert len(few.gradients) == len(few.known) >= updates
    assert sum(few.scored) < sum(whole.scored)
    assert whole.shares["tokens/skipped_logits_share"] == 0
    smallest = 1e-9 if preset == "tpo" else 1e-4  # its p is almost one-hot for these lengths
    assert float(whole.gradients[0].abs().max()) > smallest
    for one, other in zip(few.gradients, whole.gradients, strict=True):
        scale = max(float(other.abs().max()), 1.0)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12 * scale)
    for known, one, other in zip(few.known, few.metrics, whole.metrics, strict=True):
        of_scored = {name for name in other if name.startswith("entropy/q")}
        of_scored |= {*OF_TRAINED, "tokens/unscored"}
        for name in other.keys() - (set() if known else of_scored):
            assert one[name] == pytest.approx(other[name], rel=1e-12, abs=1e-14), name


def test_a_fifth_of_the_tokens_has_logits_where_a_fifth_is_kept(parallel, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "REWARDS", [1, 0, 0, 1] * 4)  # none is dead
    few, whole = (step(parallel, "20-entropy", skip) for skip in (True, False))
    assert sum(whole.scored) == sum(LENGTHS) == 94
    assert sum(few.scored) == round(94 * few.metrics[0]["objective/kept_fraction"]) == 19
    assert few.shares["tokens/skipped_logits_share"] == 1 - 19 / 94


def test_where_no_token_went_through_nothing_is_said_of_the_policy(parallel, monkeypatch):
    """Two updates; in the second all rewards are equal, and the rules read nothing of it."""
    monkeypatch.setattr(sys.modules[__name__], "REWARDS", [1, 0, 0, 1] * 2 + [1] * 8)
    found = step(parallel, "grpo", True, 2)
    assert found.known == [True, False]
    silent = found.metrics[0].keys() - found.metrics[1].keys()
    of_tokens = {
        name for name in silent if name.startswith(("advantage/", "entropy/", "gradient/"))
    }
    assert silent - of_tokens == OF_TRAINED


@pytest.mark.parametrize("skip", [True, False])
def test_in_half_precision_the_first_update_reads_what_the_rules_have_read(parallel, skip):
    """Its forward is in other micro-batches than the scoring pass, and rounds differently."""
    sections = {"objective": {"drop": "position >= 3"}}
    config = step(parallel, "gspo", skip, 2, **sections).config
    found = Step(parallel, config, autocast=torch.bfloat16).run()
    plain = Step(parallel, config).run()
    first = found.metrics[0]
    assert (first["policy/ratio_max"], first["policy/ratio"]) == (1, pytest.approx(1, abs=1e-6))
    assert first["objective/clip_fraction"] == first["policy/kl_old"] == 0
    gap = (found.gradients[0].double() - plain.gradients[0]).norm() / plain.gradients[0].norm()
    assert gap < 0.05


def test_nothing_is_cut_where_a_model_reads_how_long_its_input_is(parallel):
    """One response in each micro-batch, as others change such a model's frequencies as well."""
    half = sharp(0).model.config.head_dim // 2
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 6}
    rope |= {"short_factor": [1.0] * half, "long_factor": [3.0] * half, "factor": 4.0}
    runs = []
    for skip in (True, False):
        sections = {"objective": {"drop": "position >= 2 or entropy < -1"}}
        config = step(parallel, "stapo", skip, **sections).config
        alone = config.training.model_copy(update={"micro_batch_tokens": 1})
        config = config.model_copy(update={"training": alone})
        runs.append(Step(parallel, config, rope=rope).run())
    few, whole = runs
    kept = sum(3 + n for i, n in enumerate(LENGTHS) if i // 4 != 1 and i != 11)
    assert few.shares["tokens/skipped_share"] == pytest.approx(1 - kept / (94 + 16 * 3))
    assert few.shares["tokens/skipped_logits_share"] > 0.3
    torch.testing.assert_close(few.gradients, whole.gradients, rtol=0, atol=1e-12)


@pytest.mark.parametrize("skip", [True, False])
def test_a_packed_step_is_the_padded_step(parallel, skip):
    padded = step(parallel, "20-entropy", skip, 2)
    packed = Step(parallel, padded.config, packed=True).run()
    assert packed.shares["tokens/useful_share"] == 1 > padded.shares["tokens/useful_share"]
    assert len(packed.gradients) == 2
    for one, other in zip(packed.gradients, padded.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    for one, other in zip(packed.metrics, padded.metrics, strict=True):
        assert one == pytest.approx(other, rel=1e-11, abs=1e-13)


# A run on several processes.


def short_run(policy: Path, **training: Any) -> Any:
    """With a micro-batch for each response, ranks have unequal numbers of them, some none."""
    return tiny_config(
        policy,
        "20-entropy",
        sampling={"max_tokens": 3, "dynamic": None, "prompts_per_step": 5, "group_size": 7},
        training={"steps": 3, "updates_per_step": 2, "micro_batch_tokens": 8, **training},
        checkpoint={"every": 3},
    )


@pytest.fixture(scope="module")
def whole_run(policy, tmp_path_factory):
    """The run in one process, in which every token goes through the model."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_training(short_run(policy, skip_inactive=False), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    ["ddp", "fsdp2", *(pytest.param(z, marks=pytest.mark.deepspeed) for z in ("zero2", "zero3"))],
)
def test_two_processes_that_leave_out_tokens_train_what_one_does(
    policy, whole_run, tmp_path, strategy
):
    file = write_config(short_run(policy, strategy=strategy), tmp_path / "run.yaml")
    ranks(["train", "--config", file, "--out", tmp_path / "run"])
    lines = metrics(tmp_path / "run")
    assert max(line["tokens/skipped_logits_share"] for line in lines) > 0.7
    assert all(line["train/grad_norm"] > 0 for line in lines)
    for line, whole in zip(lines, metrics(whole_run), strict=True):
        for name in ("loss/total", "train/grad_norm", "objective/kept_fraction"):
            assert line[name] == pytest.approx(whole[name], rel=1e-3, abs=1e-6), name
    assert distance(weights(tmp_path / "run"), weights(whole_run)) < 5e-6
