"""RUN/records/: which tokens are in it, its exact counts, and that a resumed run repeats none."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from ranks import on_ranks
from runs import metrics, same, weights
from strategies import awkward_batch, fitting
from tiny import eight_steps

from rlobj import load_preset
from rlobj.objectives.plan import EFFECTS
from rlobj.ranks import ProcessGroup
from rlobj.runs.columns import COLUMNS
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.reading import Record
from rlobj.runs.recorder import Recorder
from rlobj.runs.token_metrics import token_metrics
from rlobj.settings.run_config import RunConfig
from rlobj.training import Callback, CallerInputs, run_training

KEYS = ("step", "update", "response", "position")


def observed_of(
    preset: str = "20-entropy", seed: int = 0, groups: int = 64, **settings: Any
) -> ObservedUpdate:
    """An update of random tokens; settings change the preset's objective."""
    objective = load_preset(preset).objective.replace(**settings)
    table = fitting(objective, awkward_batch(seed, groups, torch.float32))
    [table] = objective.with_advantages([table])
    plan = objective.plan([table], {"update": 0}, clauses=True)
    sequences = [([4, 5], [4 + i % 16 for i in range(n)]) for n in table.lengths.tolist()]
    columns = (table.logprobs, table.entropy, table.collision, table.logprobs)
    return ObservedUpdate(objective, {"update": 0}, table, plan, sequences, *columns)


def record(folder: Path, most: int = 10_000, comm: Any = None) -> Recorder:
    output = {"records": most, "tables_every": 0}
    config = RunConfig(output=output, training={"steps": 100})
    return Recorder(folder, config, build_tokenizer(), comm or ProcessGroup())


def recorded(
    folder: Path, *updates: ObservedUpdate, most: int = 10_000, comm: Any = None
) -> Record:
    """The record of the first step."""
    recorder = record(folder, most, comm)
    for index, observed in enumerate(updates):
        recorder.update(1, index, observed)
    recorder.end_step(1)
    return Record(folder)


def part_of(observed: ObservedUpdate, chosen: list[int]) -> ObservedUpdate:
    """The update as a rank sees it that has some of the responses."""
    table, rows = observed.table.select(chosen), observed.table.rows(chosen)
    old = observed.plan.clauses
    clauses = type(old)(old.factor[rows], old.in_phase[rows], old.codes[rows], old.causes)
    plan = replace(observed.plan.part(rows), clauses=clauses)
    sequences = [observed.sequences[i] for i in chosen]
    values = {name: getattr(observed, name)[rows] for name in POLICY}
    return replace(observed, table=table, plan=plan, sequences=sequences, **values)


def test_every_touched_token_is_a_row_with_its_numbers(tmp_path):
    observed = observed_of()
    rows = recorded(tmp_path, observed).rows()
    clauses = observed.plan.clauses
    touched = set((clauses.codes >= 0).nonzero()[:, 0].tolist())
    table = observed.table
    places = zip(table.responses.tolist(), table.positions.tolist(), strict=True)
    at = {place: n for n, place in enumerate(places)}
    found = {at[row["response"], row["position"]]: row for row in rows.to_pylist()}
    assert len(found) == len(rows)
    assert found.keys() == touched
    assert rows.schema.names == list(COLUMNS)
    for n, row in found.items():
        response = int(table.responses[n])
        assert (row["step"], row["update"]) == (1, 1)
        assert row["group"] == int(table.groups[response])
        assert row["token"] == observed.sequences[response][1][row["position"]]
        assert row["kept"] == (float(observed.plan.weights[0][n]) != 0)
        assert row["weight"] == float(observed.plan.weights[0][n])
        assert row["factor"] == float(clauses.factor[n])
        assert row["reward"] == float(table.rewards[response])
        assert row["advantage"] == pytest.approx(float(table.advantages[n]))
        assert row["prob"] == pytest.approx(float(observed.logprobs[n].exp()))
        assert row["old_prob"] == pytest.approx(float(table.old_logprobs[n].exp()))
        assert row["ratio"] == pytest.approx(row["prob"] / row["old_prob"], rel=1e-5)
        gap = float(table.old_logprobs[n] - table.sampler_logprobs[n])
        assert row["sampler_gap"] == pytest.approx(gap, abs=1e-6)
        assert (row["effect"], row["clause"]) == ("dropped", "~entropy.top(0.2)")


def brute_force(observed: ObservedUpdate) -> list[tuple[Any, ...]]:
    """The clauses that touched a token, with tokens, judged and spurious ones, one by one."""
    clauses, counts = observed.plan.clauses, {}
    for n, code in enumerate(clauses.codes.tolist()):
        if code >= 0 and bool(clauses.in_phase[n]):
            sums = counts.setdefault(clauses.causes[code], [0, 0, 0])
            mark = float(observed.spurious[n])
            for i, yes in enumerate((True, not math.isnan(mark), mark == 1)):
                sums[i] += yes
    return sorted((*cause, *sums) for cause, sums in counts.items())


def judged(observed: ObservedUpdate) -> ObservedUpdate:
    """The update with some spurious tokens, and some that nobody judged."""
    marks = (torch.arange(len(observed.logprobs)) % 3 == 0).float()
    marks[observed.table.responses % 5 == 1] = math.nan
    return replace(observed, table=observed.table.replace(columns={"spurious": marks}))


SEVERAL = {
    "drop": "(prob < 0.2) | (entropy > 1.5)",
    "reweight": "when(advantage > 0, 1.1, when(advantage < -1, 0.5, 1))",
    "mismatch": {"kind": "mask", "low": 0.5, "high": 1.01},
    "penalties": [{"kind": "kl", "where": "prob > 0.9", "coefficient": 0.1}],
}


@pytest.mark.parametrize("most", [100, 10_000])
@pytest.mark.parametrize("preset", ["20-entropy", "several"])
def test_counts_by_clause_are_those_of_all_tokens_on_one_rank_and_on_two(tmp_path, preset, most):
    """Each clause counts what it touched, however many of the tokens are rows."""
    settings = SEVERAL if preset == "several" else {}
    observed = judged(observed_of("dapo-loss" if settings else preset, **settings))
    clauses = observed.plan.clauses
    marked = clauses.in_phase & ((clauses.codes >= 0) | (observed.spurious == 1))
    size = len(observed.table.lengths)
    alone = recorded(tmp_path / "one", observed, most=most)
    orders = {"split": [*range(size)], "shuffled": [*range(1, size, 2), *range(0, size, 2)]}
    for name, order in orders.items():
        folder, parts = tmp_path / name, (order[: size // 3], order[size // 3 :])

        def work(comm, folder=folder, parts=parts):
            return recorded(folder, part_of(observed, parts[comm.rank]), most=most, comm=comm)

        on_ranks(2, work)
        files = [tmp_path / run / "records" / "step-000001.parquet" for run in ("one", name)]
        assert files[0].read_bytes() == files[1].read_bytes()
    [update] = alone.updates
    assert sorted(tuple(clause) for clause in update.clauses) == brute_force(observed) != []
    assert update.tokens == int(clauses.in_phase.sum())
    assert update.recordable == int(marked.sum())
    assert update.recorded == len(alone.rows()) == min(most, int(marked.sum()))
    metrics = token_metrics(observed, ProcessGroup())
    counts = Counter()
    for effect, _, tokens, _, _ in brute_force(observed):
        counts[effect] += tokens
    for effect in EFFECTS:
        assert metrics.get(f"tokens/{effect}", 0) == counts[effect]
    assert metrics["tokens/touched"] == counts.total()


def test_above_the_limit_the_rows_are_a_seeded_part_of_all(tmp_path):
    observed = observed_of()
    whole, few, fewer = (
        recorded(tmp_path / str(most), observed, most=most).rows(KEYS).to_pylist()
        for most in (10_000, 500, 100)
    )
    places = [{tuple(row.values()) for row in rows} for rows in (whole, few, fewer)]
    assert places[2] < places[1] < places[0]
    assert (len(few), len(fewer)) == (500, 100)
    share = sum(row["position"] < 4 for row in whole) / len(whole)
    assert sum(row["position"] < 4 for row in few) / 500 == pytest.approx(share, abs=0.09)


@pytest.mark.parametrize("preset", ["stapo", "topr"])  # topr shapes the advantage
def test_the_gradient_norm_belongs_to_the_advantage_beside_it(tmp_path, preset):
    observed = observed_of(preset)
    starts = observed.table.starts.tolist()
    for row in recorded(tmp_path, observed).rows().to_pylist():
        place = starts[row["response"]] + row["position"]
        spread = 1 - 2 * row["prob"] + float(observed.collision[place])
        norm = abs(row["advantage"]) * max(spread, 0.0) ** 0.5
        assert row["gradient_norm"] == pytest.approx(norm, rel=1e-4, abs=1e-6)


def test_tokens_that_were_not_scored_and_not_judged_are_null(tmp_path):
    observed = observed_of()
    unknown = torch.full_like(observed.logprobs, torch.nan)
    columns = dict.fromkeys(("logprobs", "entropy", "collision", "entropy_sensitivity"), unknown)
    table = observed.table.replace(sampler_logprobs=unknown)
    rows = recorded(tmp_path, replace(observed, table=table, **columns)).rows()
    for name in ("prob", "ratio", "entropy", "gradient_norm", "sampler_gap", "spurious"):
        assert rows[name].null_count == len(rows), name
    assert rows["old_prob"].null_count == 0


def test_tokens_of_another_phase_and_of_undecided_responses_are_not_counted(tmp_path):
    whole = observed_of("ar-lopti")
    updates = []
    for phase in whole.objective.phases:
        plan = phase.plan([whole.table], {"update": 0}, clauses=True)
        updates.append(replace(whole, objective=phase, plan=plan))
    record = recorded(tmp_path, *updates)
    assert sum(update.tokens for update in record.updates) == int(whole.table.decided.sum())
    assert [update.update for update in record.updates] == [1, 2]
    first = record.rows(["old_prob"], where=pc.field("update") == 1)
    assert not len(first) or pc.max(first["old_prob"]).as_py() < 0.5


def test_a_step_without_an_update_has_a_file_and_no_record_has_none(tmp_path):
    assert recorded(tmp_path / "empty").updates == []
    record(tmp_path / "off", most=0).end_step(1)
    assert not (tmp_path / "off").exists()


class Stop(Callback):
    """Ends a run in the middle of a step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def phase(self, name: str) -> None:
        if name == "syncing":
            self.step -= 1
            if self.step < 0:
                raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_has_the_files_of_the_undisturbed_run(policy, tmp_path):
    output = {"records": 50, "tables_every": 3}
    config, runs = eight_steps(policy, "ar", output=output), (tmp_path / "whole", tmp_path / "run")
    run_training(config, runs[0])
    with pytest.raises(KeyboardInterrupt):
        run_training(config, runs[1], CallerInputs(callbacks=[Stop(5)]))
    run_training(config, runs[1], resume=True)
    for kind, count in (("records", 8), ("tables", 3)):
        whole, found = (
            {file.name: file.read_bytes() for file in (run / kind).iterdir()} for run in runs
        )
        assert found == whole
        assert len(whole) == count
    assert all(u.recorded == 50 < u.recordable for u in Record(runs[1]).updates)


@pytest.mark.parametrize("preset", ["dapo-loss", pytest.param("ar-lopti", marks=pytest.mark.slow)])
def test_the_record_changes_nothing_about_the_training(policy, tmp_path, preset):
    outputs = {"on": {"tables_every": 1}, "off": {"tables_every": 0, "records": 0}}
    for name, output in outputs.items():
        run_training(eight_steps(policy, preset, output=output), tmp_path / name)
    assert same(weights(tmp_path / "on"), weights(tmp_path / "off"))
    assert metrics(tmp_path / "on") == metrics(tmp_path / "off")
    assert not list((tmp_path / "off" / "records").iterdir())
    assert not list((tmp_path / "off" / "tables").iterdir())
