"""`rlobj.replay`: objectives and rules on recorded tokens, against values that tests compute."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from record_rows import dropped, write_records
from strategies import awkward_batch, fitting
from tiny import tiny_config

import rlobj
from rlobj import Objective, TokenBatch, load_preset, read_tables
from rlobj.base.errors import ConfigError
from rlobj.config.presets import preset_names
from rlobj.insight.replaying.candidates import read_sweep
from rlobj.records.observed import Observed
from rlobj.records.tables import UpdateTable, write_tables
from rlobj.training import run_training


def update_of(
    objective: Objective, table: TokenBatch, step: int = 1, update: int = 1, **state: Any
) -> UpdateTable:
    """An update as `read_tables` returns it."""
    state = {**objective.init(), "update": 0, **state}
    [table] = objective.with_advantages([table])
    weights = objective.plan([table], state).weights[0]
    return UpdateTable(step, update, table, objective, state, weights, [], {"max_tokens": 24})


def batch(seed: int = 0, groups: int = 16, **columns: Any) -> TokenBatch:
    """Random tokens; those of even ids with a low probability are spurious."""
    table = awkward_batch(seed, groups, torch.float32)
    spurious = ((table.spread(table.ids) % 2 == 0) & (table.logprobs < -4)).float()
    return table.replace(columns={"spurious": spurious}, **columns)


def rows(table: Any, key: str = "name") -> dict[Any, dict[str, Any]]:
    return {row[key]: row for row in table.to_pylist()}


GRPO, STAPO = (load_preset(name).objective for name in ("grpo", "stapo"))


# The recorded objective.


@pytest.mark.parametrize("preset", preset_names())
def test_every_recorded_preset_gives_its_weights_again_from_one_or_two_ranks(
    tmp_path: Path, preset: str
) -> None:
    objective = load_preset(preset).objective
    table = fitting(objective, awkward_batch(3, 16, torch.float32))
    [table] = objective.with_advantages([table])
    phases = objective.phases
    state = {**objective.init(), "update": 4}
    for ranks in (1, 2):
        parts = table.split(ranks)
        for rank, part in enumerate(parts):
            updates = []
            for number, phase in enumerate(phases, 1):
                plan = phase.plan(parts, state, clauses=True)
                size = len(part)
                own = plan.part(torch.arange(size), rank)
                columns = [getattr(part, name) for name in ("logprobs", "entropy", "collision")]
                sequences = [([4], [5] * n) for n in part.lengths.tolist()]
                sensitivity = torch.zeros(size)
                observed = Observed(phase, state, part, own, sequences, *columns, sensitivity)
                updates.append((number, observed))
            folder = tmp_path / str(ranks) / "tables"
            write_tables(folder, 7, updates, (rank, ranks), {})
        found = rlobj.replay(tmp_path / str(ranks))
        assert found.reproduced == found.population == int(table.decided.sum())
        assert "all recorded weights again, to the bit" in found.title


@pytest.mark.parametrize("preset", ["stapo", "ar-lopti", "gdpo"])
def test_a_run_is_replayed_from_its_folder(policy: Path, tmp_path: Path, preset: str) -> None:
    config = tiny_config(
        policy,
        preset,
        training={"steps": 2, "updates_per_step": 2, "learning_rate": 1e-3},
        output={"tables_every": 1},
    )
    run_training(config, tmp_path)
    others = [name for name in ("dapo-loss", "ar-lopti", "20-entropy") if name != preset]
    found = rlobj.replay(tmp_path, others)
    assert found.reproduced == found.population > 0
    assert found.steps == [1, 2]
    named = rows(found.objectives)
    assert named["recorded"]["gradient"] == 1
    assert 0.7 < named["20-entropy"]["share"] < 0.85
    assert ("ar-lopti" in found.refused) == (preset != "ar-lopti")  # no reference was recorded
    own = rows(rlobj.replay(tmp_path, {"again": preset}).objectives)
    if preset != "gdpo":
        assert {**own["again"], "name": "recorded"} == own["recorded"]


def test_changed_weights_are_found(tmp_path: Path) -> None:
    update = update_of(STAPO, batch())
    update.weights[5] *= 1 + 1e-6
    found = rlobj.replay([update])
    assert found.reproduced == found.population - 1
    assert "other weights than recorded to 1 tokens" in found.title


# Other objectives.


def softmax_batch(seed: int = 0) -> tuple[TokenBatch, torch.Tensor, torch.Tensor]:
    """A table whose columns come from logits, the logits, and the sampled token ids."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([3, 5, 2, 6, 4, 4, 1, 3])
    size = int(lengths.sum())
    logits = (2 * torch.randn(size, 7, generator=random)).requires_grad_()
    distribution = logits.log_softmax(1)
    ids = torch.randint(7, (size,), generator=random)
    logprobs = distribution.gather(1, ids[:, None])[:, 0]
    table = TokenBatch(
        lengths=lengths,
        groups=torch.arange(8) // 4,
        ids=torch.arange(8),
        rewards=torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0]),
        logprobs=logprobs,
        old_logprobs=logprobs.detach() + 0.3 * torch.randn(size, generator=random),
        ref_logprobs=logprobs.detach() + 0.3 * torch.randn(size, generator=random),
        sampler_logprobs=logprobs.detach() + 0.3 * torch.randn(size, generator=random),
        entropy=-(distribution.exp() * distribution).sum(1).detach(),
        old_entropy=-(distribution.exp() * distribution).sum(1).detach(),
        collision=distribution.exp().square().sum(1).detach(),
    )
    return table, logits, ids


@pytest.mark.parametrize("preset", ["dapo-loss", "gspo", "cispo", "tis", "ar", "clip-cov", "gmpo"])
def test_the_gradient_of_a_token_is_that_of_the_loss_by_its_logits(preset: str) -> None:
    objective = load_preset(preset).objective
    table, logits, ids = softmax_batch()
    plan = objective.plan([table])
    [slope] = torch.autograd.grad(objective.loss(table, plan).loss, [logits])
    recorded = update_of(GRPO, table.replace(logprobs=table.logprobs.detach()))
    tokens = rlobj.replay([recorded], [preset], tokens=True).tokens
    found = torch.tensor(tokens[f"{preset}: gradient"].to_numpy())
    assert torch.allclose(found.abs(), slope.norm(dim=1), atol=1e-6)
    raised = -slope.gather(1, ids[:, None])[:, 0]
    assert torch.equal(found.sign(), raised.sign())
    assert (found > 0).any()
    weights = torch.tensor(tokens[f"{preset}: weight"].to_numpy())
    assert torch.equal(weights, plan.weights[0].detach())


@pytest.mark.parametrize("preset", ["reinforce-pp-baseline", "gpg", "rloo"])
def test_advantages_are_those_of_the_whole_rollout(preset: str) -> None:
    objective = load_preset(preset).objective.replace(penalties=())
    whole = batch(groups=12)
    [expected] = objective.with_advantages([whole])
    recorded = [
        update_of(STAPO, part, update=number)
        for number, part in enumerate(whole.split([20, 29]), 1)
    ]
    tokens = rlobj.replay(recorded, {"other": objective}, tokens=True).tokens
    weights = []
    for part in expected.split([20, 29]):
        plan = objective.plan([part])
        weights += [plan.weights[0][part.decided]]
        assert not torch.equal(part.advantages, recorded[0].table.advantages)
    assert torch.equal(torch.tensor(tokens["other: weight"].to_numpy()), torch.cat(weights))
    positive = (expected.advantages > 0)[expected.decided]
    gradient = torch.tensor(tokens["other: gradient"].to_numpy())
    assert not (gradient[~positive] > 0).any()


def test_phases_of_another_objective_are_added_up() -> None:
    objective = load_preset("dapo-loss").objective.split("prob < 0.1")
    table = batch()
    tokens = rlobj.replay([update_of(STAPO, table)], {"split": objective}, tokens=True).tokens
    plans = [phase.plan([table]).weights[0] for phase in objective.phases]
    expected = (plans[0] + plans[1])[table.decided]
    assert torch.equal(torch.tensor(tokens["split: weight"].to_numpy()), expected)
    assert (expected > 0).all()


def test_recorded_phases_on_the_same_responses_are_one_row_per_token() -> None:
    objective = load_preset("dapo-loss").objective.split("prob < 0.1")
    table = batch()
    updates = [update_of(phase, table, update=i) for i, phase in enumerate(objective.phases, 1)]
    found = rlobj.replay(updates, {"again": objective})
    assert found.reproduced == found.population == int(table.decided.sum())
    named = rows(found.objectives)
    assert {**named["again"], "name": "recorded"} == named["recorded"]


def test_controllers_have_the_recorded_state_or_see_the_recorded_rollouts() -> None:
    gate = {"W": {"kind": "gate", "target": 100.0, "on": 1.5}}
    stare = load_preset("stare").objective.replace(controllers=gate)
    recorded = update_of(stare, batch(), W={"value": 1.25})
    found = rlobj.replay([recorded], {"same": stare, "grpo": "grpo"}, tokens=True)
    assert {**rows(found.objectives)["same"], "name": "recorded"} == rows(found.objectives)[
        "recorded"
    ]
    assert found.notes == []
    other = rlobj.replay([update_of(GRPO, batch())], {"stare": stare})
    assert rows(other.objectives)["stare"]["reweighted"] > 0  # the gate saw the rollout
    assert "begin at their start values" in other.notes[0]


def test_what_a_run_did_not_record_is_named_with_what_to_type() -> None:
    table = batch(ref_logprobs=None, proxy_logprobs=None)
    unscored = table.logprobs.clone()
    unscored[: int(table.lengths[:4].sum())] = math.nan  # a group without signal
    found = rlobj.replay([update_of(GRPO, table)], ["ar", "lp-reg", "dapo-loss"])
    assert (
        "did not record ref_logprobs; train with --set 'objective.penalties=[{kind: kl"
        in (found.refused["ar"])
    )
    assert "proxy_kl" in found.refused["lp-reg"]
    assert set(rows(found.objectives)) == {"recorded", "dapo-loss"}
    both = rlobj.replay([update_of(GRPO, table)], ["ar", "ar-lopti", "grpo"])
    assert "not replayed: ar, ar-lopti: the run did not record" in both.remarks[0]
    recorded = update_of(GRPO, table.replace(logprobs=unscored, old_logprobs=None))
    found = rlobj.replay([recorded], ["stapo", "dapo-loss"])
    assert "training.skip_inactive=false" in found.refused["stapo"]
    assert rows(found.objectives)["dapo-loss"]["gradient"] > 0
    with pytest.raises(ConfigError, match=r"nothing of this can be replayed.*\n.*stapo: the run"):
        rlobj.replay([recorded], "stapo")


def test_what_is_advised_records_what_was_missing(policy: Path, tmp_path: Path) -> None:
    def run(name: str, **settings: Any) -> Path:
        sections = {"training": {"steps": 1}, "output": {"tables_every": 1}}
        for section, values in settings.items():
            sections[section] = {**sections.get(section, {}), **values}
        run_training(tiny_config(policy, "dapo-loss", **sections), tmp_path / name)
        return tmp_path / name

    plain = rlobj.replay(run("plain"), ["dapo-loss", "ar", "lp-reg", "stapo"])
    assert set(plain.refused) == {"ar", "lp-reg", "stapo"}
    penalties = [{"kind": kind, "coefficient": 0} for kind in ("kl", "proxy_kl")]
    advised = run("advised", training={"skip_inactive": False}, objective={"penalties": penalties})
    found = rlobj.replay(advised, ["ar", "lp-reg", "stapo"])
    assert found.refused == {}
    assert all(row["gradient"] > 0 for row in found.objectives.to_pylist())


def test_an_objective_that_fails_late_is_not_counted() -> None:
    table = batch()
    late = update_of(GRPO, table.replace(ref_logprobs=None), step=2)
    found = rlobj.replay([update_of(GRPO, table), late], ["ar", "prob < 0.1", "ref_gap > 0"])
    assert set(found.refused) == {"ar", "ref_gap > 0"}
    assert set(rows(found.objectives)) == {"recorded", "prob < 0.1"}
    assert [(r["first"], r["second"]) for r in found.pairs.to_pylist()] == [
        ("recorded", "prob < 0.1")
    ]
    assert found.steps == [1, 2]


# Counts, shares and pairs.


def test_counts_and_shares_are_those_of_the_tokens() -> None:
    table = batch()
    rule = "(prob < 0.1) & entropy.bottom(0.5)"
    found = rlobj.replay([update_of(STAPO, table)], ["justrl", rule], tokens=True)
    tokens, named = found.tokens, rows(found.objectives)
    chosen = tokens[f"{rule}: selected"].to_numpy(zero_copy_only=False)
    whole = Objective(drop=rule).plan([table])
    assert chosen.sum() == whole.tokens - whole.kept
    spurious = table.columns["spurious"][table.decided].numpy() == 1
    norms = np.abs(tokens["justrl: gradient"].to_numpy())
    row = named[rule]
    assert row["touched"] == chosen.sum() > 0
    assert row["precision"] == (chosen & spurious).sum() / chosen.sum()
    assert row["recall"] == (chosen & spurious).sum() / spurious.sum()
    own = norms / norms.sum()  # justrl is the recorded objective without its rule
    assert row["carried"] == pytest.approx(own[chosen].sum(), rel=1e-5)
    assert named["justrl"]["gradient_spurious"] == pytest.approx(own[spurious].sum(), rel=1e-5)
    top = np.sort(own)[::-1][: math.ceil(0.01 * len(own))]
    assert named["justrl"]["gradient_top"] == pytest.approx(top.sum(), rel=1e-5)
    up = own[tokens["justrl: gradient"].to_numpy() > 0].sum()
    assert named["justrl"]["gradient_up"] == pytest.approx(up, rel=1e-5)
    dropped_tokens = tokens["recorded: effect"].to_pylist().count("dropped")
    assert named["recorded"]["dropped"] == dropped_tokens == named["recorded"]["touched"]
    assert named["recorded"]["kept"] == len(tokens) - dropped_tokens


def test_pairs_have_their_overlap_correlation_and_cosine() -> None:
    updates = [update_of(STAPO, batch(seed), step=seed) for seed in (1, 2)]
    rule = "prob < 0.01"
    found = rlobj.replay(updates, ["20-entropy", "grpo", rule], tokens=True)
    tokens = found.tokens
    pairs = {(r["first"], r["second"]): r for r in found.pairs.to_pylist()}
    step = tokens["step"].to_numpy()
    for what, column in (("gradients", "gradient"), ("weights", "weight")):
        by_update = []
        for each in (1, 2):
            columns = (tokens[f"{x}: {column}"].to_numpy() for x in ("20-entropy", "grpo"))
            a, b = (x[step == each].astype(float) for x in columns)
            if what == "weights":
                a, b = a - a.mean(), b - b.mean()
            by_update.append(a @ b / math.sqrt((a @ a) * (b @ b)))
        assert pairs["20-entropy", "grpo"][what] == pytest.approx(np.mean(by_update), rel=1e-6)
        assert abs(by_update[0] - by_update[1]) > 1e-3
    touched = np.array(tokens["20-entropy: effect"].to_pylist()) == "dropped"
    chosen = tokens[f"{rule}: selected"].to_numpy(zero_copy_only=False)
    overlap = (touched & chosen).sum() / (touched | chosen).sum()
    assert pairs["20-entropy", rule]["overlap"] == pytest.approx(overlap)
    assert pairs["20-entropy", rule]["weights"] is None
    assert pairs["grpo", rule]["overlap"] == 0


# Rules and sweeps.


def test_each_value_of_a_sweep_is_the_rule_with_this_number() -> None:
    updates = [update_of(STAPO, batch(seed), step=seed) for seed in (1, 2)]
    rule = "(advantage > 0) & (prob < TAU) & entropy.bottom(0.8)"
    found = rlobj.replay(updates, rule, sweep="TAU=1e-3..1e-1:5")
    values = [row["value"] for row in found.sweeps.to_pylist()]
    assert values == [0.001, 0.003162, 0.01, 0.03162, 0.1]
    for row in found.sweeps.to_pylist():
        text = rule.replace("TAU", str(row["value"]))
        alone = rows(rlobj.replay(updates, text).objectives)[text]
        for name in ("touched", "share", "precision", "recall", "carried"):
            assert row[name] == alone[name]
    assert set(rows(found.objectives)) == {"recorded"}
    swept = rlobj.replay(updates, "entropy.bottom(Q)", sweep={"Q": [0.25, 0.5]}).sweeps
    assert [round(row["share"], 1) for row in swept.to_pylist()] == [0.3, 0.5]


def test_sweeps_are_spaced_by_factors_or_by_distance() -> None:
    assert read_sweep("T=1..9:5") == ("T", [1, 3, 5, 7, 9])
    assert read_sweep("T=-1..1:3") == ("T", [-1, 0, 1])
    assert read_sweep("T = 0.01 .. 1 : 3") == ("T", [0.01, 0.1, 1])
    assert len(read_sweep("TAU_p=1e-4..1e-2")[1]) == 20


@pytest.mark.parametrize(
    ("rule", "sweep", "message"),
    [
        ("prob < TAU", None, "'TAU' has no value.*--sweep TAU=1e-4..1e-2"),
        ("prob < 0.1", "TAU=0.1..0.2", "no rule reads 'TAU'"),
        ("(prob < TAU) & (entropy > RHO)", "TAU=0.1..0.2", "'RHO' has no value.*one name"),
        ("entropy.bottom(Q)", None, r"plain value(.|\n)*To sweep Q: --sweep Q="),
        ("prob < TAU", "TAU=0.2..0.1", "rise from one number"),
        ("prob < TAU", "TAU=0.1..0.1", "rise from one number"),
        ("prob < TAU", "TAU=0..inf", "rise from one number"),
        ("prob < TAU", "TAU=a..b", "cannot read the sweep"),
        ("prob < TAU", "TAU=0.1", "Expected NAME=FROM..TO"),
        ("prob < TAU", "tau=0.1..0.2", "Expected NAME=FROM..TO"),
        ("prob < TAU", "TAU=0.1..0.2:1", "must have 2 to 1000 values"),
        ("prob < TAU", "TAU=0.1..0.2:9999999", "must have 2 to 1000 values"),
        ("prob < TAU", {"A": [1.0], "B": [1.0]}, "one number is swept at a time"),
        ("stapp", None, r"unknown preset 'stapp'. Did you mean 'stapo'"),
        ("prob <", None, "cannot be read"),
        ("prob", None, "expected a rule such as"),
        ("probability < 0.1", None, "Did you mean 'prob'"),
        ("prob<0.01 & advantage>0", None, "bind more tightly.*parentheses"),
        ("prob < TAU", "tau=0.1..0.2", "a name in capitals and two numbers"),
        ("prob + 1", None, "expected a rule"),
    ],
)
def test_wrong_rules_and_sweeps_are_refused_in_words(rule: str, sweep: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rlobj.replay([update_of(STAPO, batch())], rule, sweep=sweep)


def test_what_python_passes_wrongly_is_answered_in_words() -> None:
    update = update_of(STAPO, batch())
    assert [*rows(rlobj.replay([update], "grpo, dapo-loss").objectives)][1:] == [
        "grpo",
        "dapo-loss",
    ]
    wrong = [
        (["runs/first"], "grpo", None, "one run is replayed at a time"),
        ([update], 42, None, "objectives is 42; expected names"),
        ([update], "prob < TAU", {"TAU": 0.1}, r"sweep needs values.*'TAU': \[0.01, 0.1\]"),
        ([update], "prob < TAU", {"TAU": []}, "sweep needs values"),
    ]
    for tables, objectives, sweep, message in wrong:
        with pytest.raises(ConfigError, match=message):
            rlobj.replay(tables, objectives, sweep=sweep)


def test_the_name_of_the_recorded_objective_is_taken() -> None:
    with pytest.raises(ConfigError, match="'recorded' is the run's own objective"):
        rlobj.replay([update_of(STAPO, batch())], {"recorded": "prob < 0.1"})


def test_a_rule_may_read_a_controller_of_the_recorded_objective() -> None:
    stare = load_preset("stare").objective
    recorded = update_of(stare, batch(), W={"value": 1.25})
    found = rows(rlobj.replay([recorded], ["entropy > W", "entropy > 1.25"]).objectives)
    assert found["entropy > W"]["touched"] == found["entropy > 1.25"]["touched"] > 0


# Records.


def sampled(run: Path) -> Path:
    """Eight tokens that stand for 29."""
    write_records(
        run,
        [
            dropped(spurious=True, gradient_norm=2.0),
            *[{"prob": 0.0001, "inclusion_probability": 0.25, "spurious": False}] * 5,
            {"prob": 0.5, "inclusion_probability": 0.25, "gradient_norm": None},
            {"prob": 0.5, "inclusion_probability": 0.25, "step": 2, "spurious": True},
        ],
    )
    return run


def test_records_give_estimates_with_their_standard_errors(tmp_path: Path) -> None:
    found = rlobj.replay(sampled(tmp_path), ["prob < 0.01"], sweep=None)
    assert not found.exact
    assert (found.population, found.counted) == (29, False)
    row = rows(found.objectives)["prob < 0.01"]
    assert (row["touched"], row["touched_error"]) == (21, pytest.approx(math.sqrt(5 * 12)))
    assert row["precision"] == pytest.approx(1 / 21)
    # precision = R = Σ y/p over Σ x/p; with p = 0.25 the residuals y − R·x are −R
    assert row["precision_error"] == pytest.approx(math.sqrt(5 * 12) / 21 / 21)
    assert row["recall"] == pytest.approx(1 / 5)
    assert row["carried"] == pytest.approx((2 + 20 * 0.5) / (2 + 24 * 0.5))
    named = rows(found.objectives)["recorded"]
    assert (named["touched"], named["dropped"], named["kept"]) == (1, 1, 28)
    assert "≈ 21 ± 8 tokens" in repr(found)
    [pair] = found.pairs.to_pylist()
    assert pair["overlap"] == pytest.approx(1 / 21)
    assert rlobj.replay(tmp_path, step=2).population == 4


def test_an_estimate_agrees_with_the_exact_numbers(policy: Path, tmp_path: Path) -> None:
    settings = {"training": {"steps": 1}, "output": {"tables_every": 1, "records_share": 0.2}}
    run_training(tiny_config(policy, "stapo", **settings), tmp_path)
    rule = "(prob < 0.05) & (entropy > 1)"
    exact = rows(rlobj.replay(tmp_path, rule).objectives)[rule]
    found = rows(rlobj.replay(tmp_path / "records", rule).objectives)[rule]
    assert exact["touched"] > 50
    for name in ("touched", "share", "carried"):
        assert found[f"{name}_error"] > 0
        assert abs(found[name] - exact[name]) < 4 * found[f"{name}_error"], name


def test_precision_is_unknown_where_too_few_sampled_tokens_are_selected(tmp_path: Path) -> None:
    rare = {"inclusion_probability": 0.01, "spurious": False}
    caught = [dropped(spurious=True)] * 40
    few, enough = ([*caught, *[{**rare, "prob": 0.02}] * n, {**rare, "prob": 0.9}] for n in (2, 5))
    write_records(tmp_path / "few", few)
    write_records(tmp_path / "enough", enough)
    found = rlobj.replay(tmp_path / "few", ["prob < 0.01", "prob < 0.1"])
    named = rows(found.objectives)
    assert named["prob < 0.01"]["precision"] is None
    assert named["prob < 0.1"]["precision"] is None
    assert named["recorded"]["precision"] == 1  # what it touches is in the record
    assert "It selects 0 tokens of the sample of untouched tokens" in found.remarks[0]
    assert "probability 0.01. Up to 300 others may be missing (95%)" in found.remarks[0]
    assert "It selects 2 tokens" in found.remarks[1]
    named = rows(rlobj.replay(tmp_path / "enough", "prob < 0.1").objectives)
    assert named["prob < 0.1"]["precision"] == pytest.approx(40 / 540)
    swept = rlobj.replay(tmp_path / "few", "prob < TAU", sweep={"TAU": [0.01, 0.1]})
    assert "unknown at 2 values" in swept.remarks[0]


def test_the_number_of_tokens_is_that_of_the_metrics(tmp_path: Path) -> None:
    run = sampled(tmp_path)
    lines = [{"step": step, "tokens/step": 15} for step in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for source in (run, run / "records"):
        found = rlobj.replay(source, "prob < 0.01")
        assert (found.population, found.counted) == (30, True)
        row = rows(found.objectives)["prob < 0.01"]
        assert row["share"] == pytest.approx(21 / 30)
        assert row["share_error"] == pytest.approx(row["touched_error"] / 30)
        assert ": 30 tokens" in found.title
    assert rlobj.replay(run, step=1).population == 15


def test_what_needs_whole_updates_is_refused_on_records(tmp_path: Path) -> None:
    run = sampled(tmp_path)
    found = rlobj.replay(run, ["grpo", "entropy.top(0.2)", "prob < 0.1"])
    assert "output.tables_every" in found.refused["grpo"]
    assert "depends on other tokens" in found.refused["entropy.top(0.2)"]
    swept = rlobj.replay(run, "prob < TAU", sweep="TAU=0.001..0.6:2").sweeps.to_pylist()
    assert [row["touched"] for row in swept] == [20, 29]


# What is read.


def test_files_folders_and_tables_are_read_alike(tmp_path: Path) -> None:
    run = sampled(tmp_path / "run")
    [file] = (run / "records").iterdir()
    table = parquet.read_table(file)
    foreign = tmp_path / "foreign.parquet"
    parquet.write_table(table.replace_schema_metadata(None), foreign)  # as pandas writes it
    expected = rlobj.replay(run, "prob < 0.01").objectives
    for source in (run / "records", file, str(foreign), table):
        assert rlobj.replay(source, "prob < 0.01").objectives.equals(expected)
    views = table.set_column(7, "text", table["text"].cast("string_view"))
    assert rlobj.replay(views, "prob < 0.01").objectives.equals(expected)
    unjudged = table.drop(["spurious", "clause", "before"])
    assert rows(rlobj.replay(unjudged, "prob < 0.01").objectives)["prob < 0.01"]["recall"] is None
    nulls = table.set_column(1, "step", [[1] * 7 + [None]])
    with pytest.raises(ConfigError, match="'step' is None in row 7"):
        rlobj.replay(nulls)
    large = table.set_column(1, "step", [[1] * 7 + [2**40]])
    with pytest.raises(ConfigError, match="'step' is no int32"):
        rlobj.replay(large)
    with pytest.raises(ConfigError, match="no column 'effect'"):
        rlobj.replay(table.drop(["effect"]), "prob < 0.01")
    with pytest.raises(ConfigError, match="is not a run: there is no such folder"):
        rlobj.replay(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no recorded token"):
        rlobj.replay(run, step=9)
    with pytest.raises(ConfigError, match="has no recorded token"):
        rlobj.replay([])


def test_full_tables_are_read_from_a_file_and_damaged_ones_are_refused(
    policy: Path, tmp_path: Path
) -> None:
    settings = {"training": {"steps": 2}, "output": {"tables_every": 1, "records_mb": 0}}
    run_training(tiny_config(policy, "stapo", **settings), tmp_path)
    whole = rlobj.replay(tmp_path)
    file = tmp_path / "tables" / "step-000002-rank-0.parquet"
    renamed = file.rename(tmp_path / "mine.parquet")
    alone = rlobj.replay(renamed)
    assert alone.steps == [2]
    assert alone.population + rlobj.replay(tmp_path / "tables").population == whole.population
    assert rlobj.replay(read_tables(tmp_path)).steps == [1]
    with pytest.raises(ConfigError, match="has no step 2; it has 1"):
        rlobj.replay(tmp_path, step=2)
    table = parquet.read_table(renamed)
    for broken in (None, {**table.schema.metadata, b"rlobj.updates": b"[1"}):
        metadata = {b"rlobj.schema_version": b"1"} if broken is None else broken
        parquet.write_table(table.replace_schema_metadata(metadata), renamed)
        with pytest.raises(ConfigError, match="is no full table, or it is damaged"):
            rlobj.replay(renamed)


@pytest.mark.parametrize("kind", ["preset", "rule"])
def test_code_that_an_objective_names_is_imported_only_with_trust(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "from dataclasses import dataclass\n"
        "from rlobj import CustomRule\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "@dataclass(frozen=True)\n"
        "class Mine(CustomRule):\n"
        "    def select(self, frame): return frame.decided\n"
    )
    rule = f"custom('{tmp_path / 'mine.py'}:Mine')"
    preset = tmp_path / "mine.yaml"
    preset.write_text(f'objective:\n  drop: "{rule}"\n')
    given = rule if kind == "rule" else str(preset)
    update = update_of(GRPO, batch())
    with pytest.raises(ConfigError, match="name code by its path"):
        rlobj.replay([update], given)
    assert not (tmp_path / "imported").exists()
    found = rlobj.replay([update], {"mine": given}, trust=True)
    assert (tmp_path / "imported").exists()
    assert rows(found.objectives)["mine"]["share"] == 1


# What is shown.


def test_json_and_words_hold_hostile_names_as_text(tmp_path: Path) -> None:
    hostile = "\x1b[2J[red]\u202e</script>"
    found = rlobj.replay([update_of(STAPO, batch())], {hostile: GRPO, "rule": "prob < 0.1"})
    plain = json.loads(found.to_json())
    assert [row["name"] for row in plain["objectives"]] == ["recorded", hostile, "rule"]
    assert plain["exact"] is True
    assert plain["objectives"][2]["kept"] is None
    text = repr(found)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "␛[2J[red]‹202e›" in text


def test_the_figure_has_a_curve_for_each_share() -> None:
    updates = [update_of(STAPO, batch(seed), step=seed) for seed in (1, 2)]
    figure = rlobj.replay(updates, "prob < TAU", sweep="TAU=1e-3..1e-1:4").figure()
    assert [line.name for line in figure.lines] == [
        "share of the tokens",
        "precision",
        "recall",
        "share of the gradient",
    ]
    assert (figure.x, figure.log_x, len(figure.lines[0].x)) == ("TAU", True, 4)
    assert {line.run for line in figure.lines} == {None}  # each has its own colour
    with pytest.raises(ConfigError, match="a figure shows a sweep"):
        rlobj.replay(updates, "grpo").figure()


def test_estimates_have_a_band_in_the_figure(tmp_path: Path) -> None:
    figure = rlobj.replay(sampled(tmp_path), "prob < TAU", sweep="TAU=0.001..0.6:2").figure()
    share = figure.lines[0]
    assert share.low is not None
    assert share.low[0] < share.y[0] < share.high[0]
