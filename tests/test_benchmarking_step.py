"""What the savings of a step are worth: rollouts made up, numbers put together, updates alike."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import pytest
import torch

from rlobj.benchmarking import processes, step
from rlobj.benchmarking.rollouts import (
    PROMPT,
    RolloutTrainer,
    configure,
    lognormal_lengths,
    make_policy,
    make_rollout,
    measured,
    share_of_rank,
)
from rlobj.benchmarking.step import CASES, NONE, OURS, VARIANTS, imbalance, to_table

# Rollouts


def test_lengths_are_lognormal_around_their_median_and_the_same_each_time():
    lengths = lognormal_lengths(2000, 100, 0.8)
    logs = torch.tensor(lengths).log()
    assert statistics.median(lengths) == pytest.approx(100, rel=0.05)
    assert float(logs.std()) == pytest.approx(0.8, rel=0.05)
    assert lengths == lognormal_lengths(2000, 100, 0.8) != lognormal_lengths(2000, 100, 0.8, seed=3)
    assert set(lognormal_lengths(9, 100, 0.0)) == {100}
    assert max(lognormal_lengths(2000, 100, 5.0)) == 1600


def test_a_rollout_has_the_lengths_groups_and_dead_groups_that_were_asked_for():
    rollout = make_rollout([3, 1, 4, 1] * 10, group=4, vocabulary=50, dead=0.3)
    assert [len(r.sample.tokens) for r in rollout.responses] == [3, 1, 4, 1] * 10
    assert {len(r.sample.prompt) for r in rollout.responses} == {PROMPT}
    rewards: dict[int, set[float]] = {}
    for response in rollout.responses:
        rewards.setdefault(response.group, set()).add(response.reward)
        assert max(*response.sample.tokens, *response.sample.prompt) < 50
    dead = [group for group, values in rewards.items() if len(values) == 1]
    assert dead == [3, 6, 9]
    assert len(rewards) == 10


def test_ranks_share_the_groups_of_a_rollout():
    rollout = make_rollout([2] * 30, group=3, vocabulary=9)
    shares = [share_of_rank(rollout, rank, 3) for rank in range(3)]
    assert [len({r.group for r in share.responses}) for share in shares] == [4, 3, 3]
    ids = [r.id for share in shares for r in share.responses]
    assert sorted(ids) == list(range(30))


@pytest.mark.slow
def test_random_policies_are_the_same_each_time_and_leave_the_generator_alone():
    torch.manual_seed(7)
    ours = make_policy(30, width=64, layers=1)
    drawn = torch.rand(())
    again = make_policy(30, width=64, layers=1)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(()))
    for one, other in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert ours.get_output_embeddings().weight.shape == (30, 64)


# The table


def made(case: str, training: str, seconds: list[float], **changes: Any) -> dict[str, Any]:
    row = {"mib": 10.0, "useful": 0.5, "left_out": 0.3, "gradient": 2.0}
    shares = {f"{phase}_share": 1 / len(step.SHOWN) for phase in step.SHOWN}
    return {"step": case, "training": training, "all": seconds, **row, **shares, **changes}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Every variant of every case; rlobj takes 1, 2 and 4 seconds, the others twice that."""
    return [
        made(name, variant, [1.0, 2.0, 4.0] if variant == OURS else [2.0, 4.0, 8.0])
        for name, case in CASES.items()
        for variant in case.variants
    ]


def test_each_case_begins_with_rlobj_and_knows_its_variants():
    for case in CASES.values():
        assert case.variants[0] == OURS
        assert set(case.variants) <= set(VARIANTS)
    assert {name for case in CASES.values() for name in case.variants} == set(VARIANTS)


def test_ratios_are_medians_of_those_of_each_round(rows):
    rows[1]["all"] = [3.0, 2.0, 16.0]  # of 1, 2 and 4: the ratio of medians would be 1.5
    table = to_table(rows, {"rounds": 3})
    assert table.rows[1]["ratio"] == 3.0
    assert table.rows[1]["seconds"] == 3.0
    assert {row["ratio"] for row in table.rows if row["training"] == OURS} == {1.0}
    assert all(column.name in row for column in table.columns for row in table.rows)


def test_findings_say_how_far_updates_are_apart_and_what_is_useful(rows):
    rows[3]["gradient"] = 2.0 * (1 + 3e-4)
    rows[0]["useful"] = 0.981
    useful, same, balance, savings, *_ = to_table(rows, {}).findings
    assert "98.1% (aimed at: at least 97%)" in useful.text
    assert "at most 3e-04 of their size" in same.text
    assert "Without any saving a step of grpo takes 2.00 times" in savings.text
    assert [f.reached for f in (useful, same, balance, savings)] == [True, False, True, None]


def test_an_aim_that_is_missed_is_told_as_missed(rows):
    rows[0]["useful"] = 0.969
    useful, same, *_ = to_table(rows, {}).findings
    assert (useful.reached, same.reached) == (False, True)


def test_phases_are_medians_of_the_rounds_and_the_whole_of_the_step():
    def metrics(forward: float) -> dict[str, float]:
        times = {f"time/{phase}": 1.0 for phase in step.SHOWN} | {"time/forward": forward}
        alike = ("tokens/useful_share", "tokens/skipped_share", "train/grad_norm")
        return {**times, **dict.fromkeys(alike, 0.5)}

    facts = step._facts([metrics(3.0), metrics(5.0), metrics(100.0)])
    assert facts["forward_share"] == 0.5
    assert sum(facts[f"{phase}_share"] for phase in step.SHOWN) == pytest.approx(1)


def test_the_phases_of_a_measured_step_are_cpu_seconds(monkeypatch):
    config = configure("grpo", micro_batch_tokens=256)
    rollout = make_rollout([4] * 8, group=4, vocabulary=32)
    with RolloutTrainer(config, make_policy(32, width=64, layers=1)) as trainer:
        score = trainer.learner.score

        def waits(*given: Any) -> Any:
            time.sleep(0.3)  # no CPU time
            return score(*given)

        monkeypatch.setattr(trainer.learner, "score", waits)
        seconds, metrics = measured(partial(trainer.train, rollout))
    assert metrics["time/step"] == pytest.approx(seconds, rel=0.1, abs=0.01)


def test_imbalance_is_the_fullest_rank_over_the_mean():
    assert imbalance([4, 2, 2, 4], [0, 0, 1, 1], 2) == 1.0
    assert imbalance([6, 2, 2, 2], [0, 0, 1, 1], 2) == pytest.approx(8 / 6)


def test_dealt_tokens_are_balanced_to_a_hundredth():
    found = step._balance()
    assert found.reached
    numbers = [float(x) for x in found.text.split(": ")[1].split(" (")[0].split(", ")]
    assert len(numbers) == 4
    assert max(numbers) <= 1.01


@pytest.mark.slow
def test_a_picture_has_a_bar_for_each_phase_of_each_row(rows):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    step.draw(figure, to_table(rows, {}))
    bars = [bar for bar in figure.axes[0].patches if bar.get_width() > 0]
    assert len(bars) == len(rows) * len(step.SHOWN)
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == set(VARIANTS)


# Real steps


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_way_to_train_a_step_makes_the_same_update(name):
    case = CASES[name]
    lengths = lognormal_lengths(32, 12, case.sigma)
    rollout = make_rollout(lengths, group=8, vocabulary=64, dead=case.dead)
    budget = 1 << 20 if case.whole else 192
    found = {}
    for variant in case.variants:
        way = VARIANTS[variant]
        config = configure(case.preset, micro_batch_tokens=budget, **way.training)
        longest = PROMPT + max(lengths)
        scorer = partial(_scorer, way, longest)
        with RolloutTrainer(config, make_policy(64, width=64), scorer, way.learner) as trainer:
            seconds, found[variant] = measured(lambda trainer=trainer: trainer.train(rollout))
        assert seconds > 0
    for metrics in found.values():
        assert metrics["train/grad_norm"] == pytest.approx(found[OURS]["train/grad_norm"], rel=1e-5)
    if name == "grpo":
        useful = {variant: metrics["tokens/useful_share"] for variant, metrics in found.items()}
        assert useful[OURS] > useful["not sorted by length"] > useful["padded to the longest"]
        assert useful["rlobj, packed"] == 1.0
        assert found[OURS]["tokens/skipped_share"] > found[NONE]["tokens/skipped_share"] == 0
        assert found[OURS]["time/scoring"] < found["scored though unread"]["time/scoring"]


def _scorer(way: step.Variant, longest: int, model: Any) -> Any:
    return way.scorer(model, longest)


@pytest.mark.slow
def test_a_case_is_measured_in_a_process_of_its_own():
    question = {"case": "stapo, one micro-batch", "rounds": 2, "quick": True}
    ours, apart = processes.ask(step.MODULE, question)
    assert (ours["training"], apart["training"]) == (OURS, "forward not shared")
    for row in (ours, apart):
        assert len(row["all"]) == 2
        assert min(row["all"]) > 0
        assert row["mib"] > 1
        assert sum(row[f"{phase}_share"] for phase in step.SHOWN) == pytest.approx(1)
    assert apart["scoring_share"] > 0.1 > ours["scoring_share"]  # shared: part of the forward
