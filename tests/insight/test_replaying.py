"""`rlobj.replay`: objectives on full tables, against values that tests compute; what is read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from record_rows import dropped, write_records
from replays import GRPO, STAPO, batch, planned, rows, update_of
from strategies import awkward_batch, fitting
from tiny import WITHOUT_SCORES, tiny_config

import rlobj
from rlobj import Objective, TokenBatch, load_preset, read_tables
from rlobj.base.errors import ConfigError
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.tables import write_tables
from rlobj.training import run_training

FEW = ("ar-lopti", "clip-cov", "grpo", "stapo", "stare")


@pytest.mark.parametrize(
    "preset",
    [*FEW, *(pytest.param(x, marks=pytest.mark.slow) for x in WITHOUT_SCORES if x not in FEW)],
)
def test_every_recorded_preset_gives_its_weights_again_from_one_or_two_ranks(tmp_path, preset):
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
                mine = slice(sum(map(len, parts[:rank])), sum(map(len, parts[: rank + 1])))
                fired = replace(plan.clauses, codes=plan.clauses.codes[mine])
                own = replace(plan.part(torch.arange(size), rank), clauses=fired)
                columns = [getattr(part, name) for name in ("logprobs", "entropy", "collision")]
                sequences = [([4], [5] * n) for n in part.lengths.tolist()]
                sensitivity = torch.zeros(size)
                observed = ObservedUpdate(phase, state, part, own, sequences, *columns, sensitivity)
                updates.append((number, observed))
            write_tables(tmp_path / str(ranks), 7, updates, (rank, ranks), {})
        found = rlobj.replay(tmp_path / str(ranks))
        assert found.reproduced == found.population == int(table.decided.sum())
        assert "all recorded weights again, to the bit" in found.title


@pytest.mark.parametrize("preset", ["stapo", "ar-lopti"])
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
    assert {**own["again"], "name": "recorded"} == own["recorded"]


def test_changed_weights_are_found(tmp_path: Path) -> None:
    update = update_of(STAPO, batch())
    update.weights[5] *= 1 + 1e-6
    found = rlobj.replay([update])
    assert found.reproduced == found.population - 1
    assert "other weights than recorded to 1" in found.title


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
    entropy = -(distribution.exp() * distribution).sum(1).detach()
    noisy = {
        name: (logprobs.detach() + 0.3 * torch.randn(size, generator=random)).clamp(max=0)
        for name in ("old_logprobs", "ref_logprobs", "sampler_logprobs")
    }
    table = TokenBatch(
        lengths=lengths,
        groups=torch.arange(8) // 4,
        ids=torch.arange(8),
        rewards=torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0]),
        logprobs=logprobs,
        entropy=entropy,
        old_entropy=entropy,
        collision=distribution.exp().square().sum(1).detach(),
        **noisy,
    )
    return table, logits, ids


@pytest.mark.parametrize("preset", ["dapo-loss", "gspo", "cispo", "tis", "ar", "clip-cov", "gmpo"])
def test_the_gradient_of_a_token_is_that_of_the_loss_by_its_logits(preset: str) -> None:
    objective = load_preset(preset).objective
    table, logits, ids = softmax_batch()
    plan = objective.plan([table])
    [slope] = torch.autograd.grad(objective.loss(table, plan).loss, [logits])
    recorded = update_of(GRPO, table.replace(logprobs=table.logprobs.detach()))
    tokens = planned(objective, recorded)
    found = tokens.gradient
    assert torch.allclose(found.abs(), slope.norm(dim=1), atol=1e-6)
    raised = -slope.gather(1, ids[:, None])[:, 0]
    assert torch.equal(found.sign(), raised.sign())
    assert (found > 0).any()
    assert torch.equal(tokens.weights, plan.weights[0].detach())


@pytest.mark.parametrize("preset", ["reinforce-pp-baseline", "gpg", "rloo"])
def test_advantages_are_those_of_the_whole_rollout(preset: str) -> None:
    objective = load_preset(preset).objective.replace(penalties=())
    whole = batch(groups=12)
    [expected] = objective.with_advantages([whole])
    recorded = [
        update_of(STAPO, part, update=number)
        for number, part in enumerate(whole.split([20, 29]), 1)
    ]
    tokens = planned(objective, *recorded)
    weights = []
    for part in expected.split([20, 29]):
        plan = objective.plan([part])
        weights += [plan.weights[0][part.decided]]
        assert not torch.equal(part.advantages, recorded[0].table.advantages)
    assert torch.equal(tokens.weights, torch.cat(weights))
    positive = (expected.advantages > 0)[expected.decided]
    assert not (tokens.gradient[~positive] > 0).any()


def test_clipped_tokens_are_those_whose_ratio_is_out_of_its_bounds() -> None:
    narrow = {"kind": "clip", "low": 0.1, "high": 0.2}
    objective = GRPO.replace(surrogate=narrow)
    table = softmax_batch()[0]
    table = table.replace(logprobs=table.logprobs.detach())
    found = rlobj.replay([update_of(GRPO, table)], {"narrow": objective})
    tokens = planned(objective, update_of(GRPO, table))
    [graded] = objective.with_advantages([table])
    ratios = (table.logprobs - table.old_logprobs).exp().tolist()
    pairs = list(zip(ratios, graded.advantages.tolist(), strict=True))
    by_hand = [(a > 0 and r > 1.2) or (a < 0 and r < 0.9) for r, a in pairs]
    assert tokens.clipped.tolist() == by_hand
    counts = {name: row["clipped"] for name, row in rows(found.objectives).items()}
    wide = [(a > 0 and r > 1.2) or (a < 0 and r < 0.8) for r, a in pairs]  # of GRPO
    assert counts == {"recorded": sum(wide), "narrow": sum(by_hand)}
    assert 0 < sum(wide) < sum(by_hand)
    assert torch.equal(tokens.gradient == 0, torch.tensor(by_hand))
    plan = objective.plan([graded])
    fraction = objective.loss(graded, plan).metrics["objective/clip_fraction"]
    assert sum(by_hand) == round(float(fraction) * plan.kept)


def test_phases_of_another_objective_are_added_up() -> None:
    objective = load_preset("dapo-loss").objective.split("prob < 0.1")
    table = batch()
    tokens = planned(objective, update_of(STAPO, table))
    plans = [phase.plan([table]).weights[0] for phase in objective.phases]
    expected = (plans[0] + plans[1])[table.decided]
    assert torch.equal(tokens.weights, expected)
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
    found = rlobj.replay([recorded], {"same": stare, "grpo": "grpo"})
    named = rows(found.objectives)
    assert {**named["same"], "name": "recorded"} == named["recorded"]
    assert found.notes == []
    other = rlobj.replay([update_of(GRPO, batch())], {"stare": stare})
    assert rows(other.objectives)["stare"]["reweighted"] > 0  # the gate saw the rollout
    assert "begin at their start values" in other.notes[0]


def test_what_a_run_did_not_record_is_named_with_what_to_type() -> None:
    table = batch(ref_logprobs=None, proxy_logprobs=None)
    unscored = table.logprobs.clone()
    unscored[: int(table.lengths[:4].sum())] = math.nan  # a group without signal
    found = rlobj.replay([update_of(GRPO, table)], ["ar", "lp-reg", "dapo-loss"])
    assert "ref_logprobs; use objective.penalties=[{kind: kl" in found.refused["ar"]
    assert "proxy_kl" in found.refused["lp-reg"]
    assert set(rows(found.objectives)) == {"recorded", "dapo-loss"}
    both = rlobj.replay([update_of(GRPO, table)], ["ar", "ar-lopti", "grpo"])
    assert "not replayed: ar: the run did not record" in both.remarks[0]
    with pytest.raises(ConfigError, match=r"no score 'teacher'; use scores\.teacher\.model=MODEL"):
        rlobj.replay([update_of(GRPO, table)], "opd")
    recorded = update_of(GRPO, table.replace(logprobs=unscored, old_logprobs=None))
    found = rlobj.replay([recorded], ["stapo", "dapo-loss"])
    assert "training.skip_inactive=false" in found.refused["stapo"]
    assert rows(found.objectives)["dapo-loss"]["gradient"] > 0
    with pytest.raises(ConfigError, match=r"nothing of this can be replayed.*\n.*stapo: the run"):
        rlobj.replay([recorded], "stapo")


def test_a_rule_is_refused_only_if_tokens_that_were_not_scored_decide_it() -> None:
    table = batch()
    unscored = table.logprobs.clone()
    unscored[: int(table.lengths[:4].sum())] = math.nan  # a group without signal
    recorded = update_of(GRPO, table.replace(logprobs=unscored, old_logprobs=None))
    decided = [
        "(advantage > 0) & (prob < 0.1)",
        "~((advantage <= 0) | (prob >= 0.1))",
        "(abs(advantage) <= 0) | (prob < 0.1)",
    ]
    open_ = [
        "prob < 0.1",
        "(advantage >= 0) & (prob < 0.1)",
        "(advantage > 0) & prob.bottom(0.5)",
        "(advantage > 0) & (prob.sum(by='response') < 0.2)",
    ]
    found = rlobj.replay([recorded], [*decided, *open_])
    assert set(found.refused) == set(open_)
    assert all("skip_inactive=false" in why for why in found.refused.values())
    whole = rows(rlobj.replay([update_of(GRPO, table)], decided).objectives)
    some = rows(found.objectives)
    for rule in decided:
        assert 0 < some[rule]["touched"] == whole[rule]["touched"] < found.population


# Counts and shares.


def test_counts_and_shares_are_those_of_the_tokens() -> None:
    table = batch()
    rule = "(prob < 0.1) & entropy.bottom(0.5)"
    update = update_of(STAPO, table)
    named = rows(rlobj.replay([update], ["justrl", rule]).objectives)
    whole = Objective(drop=rule).plan([table])
    chosen = (whole.weights[0] == 0)[table.decided].numpy()
    assert chosen.sum() == whole.tokens - whole.kept
    spurious = table.columns["spurious"][table.decided].numpy() == 1
    gradient = planned(load_preset("justrl").objective, update).gradient.numpy()
    norms = np.abs(gradient)
    row = named[rule]
    assert row["touched"] == chosen.sum() > 0
    assert row["precision"] == (chosen & spurious).sum() / chosen.sum()
    assert row["recall"] == (chosen & spurious).sum() / spurious.sum()
    own = norms / norms.sum()  # justrl is the recorded objective without its rule
    assert row["carried"] == pytest.approx(own[chosen].sum(), rel=1e-5)
    assert named["justrl"]["gradient_spurious"] == pytest.approx(own[spurious].sum(), rel=1e-5)
    up = own[gradient > 0].sum()
    assert named["justrl"]["gradient_up"] == pytest.approx(up, rel=1e-5)
    dropped_tokens = int((planned(STAPO, update).effect == 0).sum())
    assert named["recorded"]["dropped"] == dropped_tokens == named["recorded"]["touched"]
    assert named["recorded"]["kept"] == len(gradient) - dropped_tokens


# What is read.


def test_a_run_without_full_tables_is_refused_with_what_to_set(tmp_path: Path) -> None:
    write_records(tmp_path, [dropped()])
    with pytest.raises(ConfigError, match=r"has no full tables.*: use output\.tables_every=10"):
        rlobj.replay(tmp_path, "prob < 0.01")
    with pytest.raises(ConfigError, match="is no full table"):
        rlobj.replay(tmp_path / "records", "prob < 0.01")
    with pytest.raises(ConfigError, match="is not a run: there is no such folder"):
        rlobj.replay(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no recorded token"):
        rlobj.replay([])


def test_full_tables_are_read_from_a_file_and_damaged_ones_are_refused(policy, tmp_path):
    settings = {"training": {"steps": 2}, "output": {"tables_every": 1, "records": 0}}
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
    table = table.replace_schema_metadata(
        {key: value for key, value in table.schema.metadata.items() if key != b"rlobj.digest"}
    )
    for broken in (None, {**table.schema.metadata, b"rlobj.updates": b"[1"}):
        metadata = {b"rlobj.schema_version": b"3"} if broken is None else broken
        parquet.write_table(table.replace_schema_metadata(metadata), renamed)
        with pytest.raises(ConfigError, match="is no full table, or it is damaged"):
            rlobj.replay(renamed)


# What is shown.


def test_json_and_words_hold_hostile_names_as_text(tmp_path: Path) -> None:
    hostile = "\x1b[2J[red]\u202e</script>"
    found = rlobj.replay([update_of(STAPO, batch())], {hostile: GRPO, "rule": "prob < 0.1"})
    plain = json.loads(found.to_json())
    assert [row["name"] for row in plain["objectives"]] == ["recorded", hostile, "rule"]
    assert plain["objectives"][2]["kept"] is None
    shown = found._repr_markdown_()
    assert "| prob \\< 0.1 |" in shown.replace("rule", "prob \\< 0.1")
    assert "\x1b" not in shown
    assert "<" not in shown.replace("<br>", "").replace("\\<", "")
