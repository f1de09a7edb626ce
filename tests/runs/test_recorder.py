"""RUN/records/: which tokens are in it, how probably, and that a resumed run repeats none."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pytest
import torch
from runs import metrics, same, weights
from strategies import awkward_batch, fitting
from tiny import eight_steps

from rlobj import load_preset
from rlobj.models.embedded import build_tokenizer
from rlobj.objectives.statistics import SingleProcess
from rlobj.runs.columns import COLUMNS
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import Record, read_records
from rlobj.runs.recorder import FLOOR, ROW_BYTES, Recorder
from rlobj.settings.run_config import RunConfig
from rlobj.training import Callback, CallerInputs, run_training

KEYS = ("step", "update", "response", "position")


def observed_of(preset: str = "20-entropy", seed: int = 0, groups: int = 64) -> ObservedUpdate:
    """An update of random tokens."""
    objective = load_preset(preset).objective
    table = fitting(objective, awkward_batch(seed, groups, torch.float32))
    [table] = objective.with_advantages([table])
    plan = objective.plan([table], {"update": 0}, clauses=True)
    sequences = [([4, 5], [4 + i % 16 for i in range(n)]) for n in table.lengths.tolist()]
    columns = (table.logprobs, table.entropy, table.collision, table.logprobs)
    return ObservedUpdate(objective, {"update": 0}, table, plan, sequences, *columns)


def record(
    folder: Path, megabytes: float = 200.0, share: float | None = 0.1, rank: int = 0
) -> Recorder:
    output = {"records_mb": megabytes, "records_share": share, "tables_every": 0}
    config = RunConfig(output=output, training={"steps": 100})
    comm = SingleProcess()
    comm.rank = rank
    return Recorder(folder, config, build_tokenizer(), comm)


def recorded(folder: Path, observed: ObservedUpdate, where=None, **settings) -> pyarrow.Table:
    """The rows of the first update."""
    recorder = record(folder, **settings)
    recorder.update(1, 0, observed)
    recorder.close_file()
    return read_records(folder, where=where)


def test_every_touched_token_is_recorded_and_a_share_of_the_others(tmp_path):
    observed = observed_of()
    rows = recorded(tmp_path, observed)
    clauses = observed.plan.clauses
    touched = set((clauses.codes >= 0).nonzero()[:, 0].tolist())
    table = observed.table
    places = zip(table.responses.tolist(), table.positions.tolist(), strict=True)
    at = {place: n for n, place in enumerate(places)}
    found = {at[row["response"], row["position"]]: row for row in rows.to_pylist()}
    assert len(found) == len(rows)
    assert {n for n, row in found.items() if row["effect"]} == touched
    others = int(clauses.in_phase.sum()) - len(touched)
    assert len(found) - len(touched) == pytest.approx(0.1 * others, abs=4 * (0.09 * others) ** 0.5)
    assert rows.schema.names == list(COLUMNS)
    for n, row in found.items():
        response = int(table.responses[n])
        assert (row["step"], row["update"], row["schema_version"]) == (1, 1, 1)
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
        effect = ("dropped", "~entropy.top(0.2)") if n in touched else (None, None)
        assert (row["effect"], row["clause"]) == effect
        assert row["inclusion_probability"] == pytest.approx(1.0 if n in touched else 0.1)


@pytest.mark.parametrize("preset", ["stapo", "topr"])  # topr shapes the advantage
def test_the_gradient_norm_belongs_to_the_advantage_beside_it(tmp_path, preset):
    observed = observed_of(preset)
    starts = observed.table.starts.tolist()
    for row in recorded(tmp_path, observed, share=1.0).to_pylist():
        place = starts[row["response"]] + row["position"]
        spread = 1 - 2 * row["prob"] + float(observed.collision[place])
        norm = abs(row["advantage"]) * max(spread, 0.0) ** 0.5
        assert row["gradient_norm"] == pytest.approx(norm, rel=1e-4, abs=1e-6)


def test_tokens_that_were_not_scored_and_not_judged_are_null(tmp_path):
    observed = observed_of()
    unknown = torch.full_like(observed.logprobs, torch.nan)
    columns = dict.fromkeys(("logprobs", "entropy", "collision", "entropy_sensitivity"), unknown)
    table = observed.table.replace(sampler_logprobs=unknown)
    rows = recorded(tmp_path, replace(observed, table=table, **columns))
    for name in ("prob", "ratio", "entropy", "gradient_norm", "sampler_gap", "spurious"):
        assert rows[name].null_count == len(rows), name
    assert rows["old_prob"].null_count == 0


def test_tokens_of_another_phase_and_of_undecided_responses_are_no_rows(tmp_path):
    whole = observed_of("ar-lopti")
    recorder = record(tmp_path, share=1.0)
    for index, phase in enumerate(whole.objective.phases):
        plan = phase.plan([whole.table], {"update": 0}, clauses=True)
        recorder.update(1, index, replace(whole, objective=phase, plan=plan))
    recorder.close_file()
    rows = read_records(tmp_path)
    assert len(rows) == int(whole.table.decided.sum())
    assert pc.min(rows["factor"]).as_py() > 0
    first = read_records(tmp_path, ["old_prob"], where=pc.field("update") == 1)
    assert pc.max(first["old_prob"]).as_py() < 0.5


class OneOfTwo(SingleProcess):
    """A rank of two, which knows what both of them count."""

    def __init__(self, rank: int, total: int) -> None:
        self.rank, self.size, self.total = rank, 2, total

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() else torch.tensor(self.total)


def untouched(observed: ObservedUpdate) -> int:
    clauses = observed.plan.clauses
    return int((clauses.in_phase & (clauses.codes < 0)).sum())


@pytest.mark.parametrize("share", [0.1, None])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_choice_depends_neither_on_ranks_nor_on_the_order_of_rows(tmp_path, order, share):
    observed = observed_of()
    whole = recorded(tmp_path / "one", observed, share=share)
    half = len(observed.table.lengths) // 2
    parts = [range(half), range(half, len(observed.table.lengths))]
    for rank in order:
        chosen = list(reversed(parts[rank]))
        table, rows = observed.table.select(chosen), observed.table.rows(chosen)
        old = observed.plan.clauses
        clauses = type(old)(old.factor[rows], old.in_phase[rows], old.codes[rows], old.causes)
        plan = replace(observed.plan.part(rows), clauses=clauses)
        sequences = [observed.sequences[i] for i in chosen]
        values = {name: getattr(observed, name)[rows] for name in ("logprobs", "entropy")}
        values |= {"collision": table.collision, "entropy_sensitivity": values["logprobs"]}
        other = record(tmp_path / "two", share=share)
        other._comm = OneOfTwo(rank, untouched(observed))
        other.update(1, 0, replace(observed, table=table, plan=plan, sequences=sequences, **values))
        other.close_file()
    found = read_records(tmp_path / "two")
    order_by = [(key, "ascending") for key in KEYS]
    assert found.sort_by(order_by).equals(whole.sort_by(order_by))


def test_all_tokens_of_a_step_with_fewer_are_recorded_and_the_updates_share_the_256(tmp_path):
    few = observed_of(groups=8)
    rows = recorded(tmp_path / "small", few, share=None)
    assert len(rows) == int(few.plan.clauses.in_phase.sum())
    assert set(rows["inclusion_probability"].to_pylist()) == {1.0}
    output = {"records_share": None, "tables_every": 0}
    config = RunConfig(output=output, training={"steps": 9, "updates_per_step": 4})
    recorder = Recorder(tmp_path / "four", config, build_tokenizer(), SingleProcess())
    observed = observed_of()
    recorder.update(1, 0, observed)
    recorder.close_file()
    least = pc.min(read_records(tmp_path / "four")["inclusion_probability"]).as_py()
    assert least == pytest.approx(FLOOR / 4 / untouched(observed))


def test_a_share_of_0_records_touched_tokens_only_and_every_step_is_named(tmp_path):
    recorder = record(tmp_path, share=0.0)
    for step in (1, 2):
        recorder.update(step, 0, observed_of("stapo"))
        recorder.end_step(step)
    recorder.close_file()
    recorder.end_step(3)  # without an update
    recorder.close_file()
    assert Record(tmp_path).sampling == (0, {1, 2, 3})
    rows = read_records(tmp_path)
    assert rows["effect"].null_count == 0


def test_a_step_that_one_of_two_processes_has_not_written_is_not_recorded(tmp_path):
    recorders = [record(tmp_path, share=None, rank=rank) for rank in (0, 1)]
    for rank, recorder in enumerate(recorders):
        recorder._comm = OneOfTwo(rank, 1)
        for step in (1, 2):
            recorder.end_step(step)
            if step == 1 or not rank:
                recorder.close_file()
    assert Record(tmp_path).sampling == (0, {1})


def test_a_file_is_thinned_once_though_the_run_forgot_that_it_was(tmp_path):
    """As after a crash: the record was halved after the checkpoint, which says it was not."""
    recorder = record(tmp_path, megabytes=1500 * ROW_BYTES / 1e6, share=None)
    for step in (1, 2, 3):
        recorder.update(step, 0, observed_of(seed=step))
        recorder.end_step(step)
    recorder.close_file()
    halvings, before = recorder.state["halvings"], read_records(tmp_path)

    def thinned(halvings: int) -> pyarrow.Table:
        recorder.state["halvings"] = halvings
        for file in (tmp_path / "records").iterdir():
            recorder._thin(file)
        return read_records(tmp_path)

    assert halvings >= 1
    assert thinned(halvings - 1).equals(before)
    assert thinned(halvings).equals(before)
    assert Record(tmp_path).sampling == (halvings, {1, 2, 3})
    after = thinned(halvings + 1)
    ratio = pc.divide(pc.max(before["inclusion_probability"]), 2.0).as_py()
    assert pc.max(after["inclusion_probability"]).as_py() == ratio
    assert 0.3 * len(before) < len(after) < 0.7 * len(before)


def test_inclusion_probabilities_are_right_after_any_number_of_halvings(tmp_path, caplog):
    """Horvitz-Thompson estimates of the counts: within four standard errors, in each step."""
    recorder = record(tmp_path, megabytes=1500 * ROW_BYTES / 1e6)
    totals: dict[bool, list[int]] = {True: [], False: []}
    with caplog.at_level(logging.WARNING):
        for step in range(1, 13):
            observed = observed_of(seed=step)
            clauses = observed.plan.clauses
            totals[True].append(int((clauses.codes >= 0).sum()))
            totals[False].append(int(((clauses.codes < 0) & clauses.in_phase).sum()))
            recorder.update(step, 0, observed)
            recorder.end_step(step)
            assert recorder.state["rows"] <= recorder.limit
    recorder.close_file()
    rows = read_records(tmp_path)
    assert len(rows) == recorder.state["rows"]
    assert recorder.state["halvings"] >= 3
    touched = rows["effect"].is_valid().to_numpy()
    probability = rows["inclusion_probability"].to_numpy().astype(float)
    for kind, base in ((True, 1.0), (False, 0.1)):
        own = probability[touched == kind]
        assert np.allclose(own, base * 0.5 ** recorder.state["halvings"])
        count = sum(totals[kind])
        error = np.sqrt(count * (1 - own[0]) / own[0])
        assert abs((1 / own).sum() - count) < 4 * error
    steps = rows["step"].to_numpy()[touched]
    for step, count in enumerate(totals[True], 1):
        p = 0.5 ** recorder.state["halvings"]
        assert abs((steps == step).sum() / p - count) < 5 * np.sqrt(count * (1 - p) / p)
    assert [r.message.count("half as probably") for r in caplog.records] == [1]


def test_the_record_stays_below_its_size_on_disk(tmp_path):
    recorder = record(tmp_path, megabytes=0.2, share=0.5)
    for step in range(1, 9):
        recorder.update(step, 0, observed_of(seed=step))
        recorder.end_step(step)
        recorder.close_file()
    size = sum(file.stat().st_size for file in (tmp_path / "records").iterdir())
    footers = 8 * 10_000  # a file of no rows
    assert 50_000 < size < 200_000 + footers


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
def test_a_run_that_was_stopped_and_resumed_has_the_rows_of_the_undisturbed_run(policy, tmp_path):
    output = {"records_mb": 0.05, "records_share": 0.1, "tables_every": 3}
    config, runs = eight_steps(policy, "ar", output=output), (tmp_path / "whole", tmp_path / "run")
    run_training(config, runs[0])
    with pytest.raises(KeyboardInterrupt):
        run_training(config, runs[1], CallerInputs(callbacks=[Stop(5)]))
    assert read_records(runs[1], steps=[5])  # written on the way out
    run_training(config, runs[1], resume=True)
    order = [(key, "ascending") for key in KEYS]
    whole, found = (read_records(folder).sort_by(order) for folder in runs)
    assert pc.min(whole["inclusion_probability"]).as_py() < 0.1  # the record was thinned
    assert set(whole["step"].to_pylist()) == set(range(1, 9))
    assert found.equals(whole)
    for folder in runs:
        tables = sorted(file.name for file in (folder / "tables").iterdir())
        assert tables == [f"step-{step:06d}-rank-0.parquet" for step in (3, 6, 8)]


@pytest.mark.parametrize("preset", ["dapo-loss", pytest.param("ar-lopti", marks=pytest.mark.slow)])
def test_the_record_changes_nothing_about_the_training(policy, tmp_path, preset):
    outputs = {
        "on": {"tables_every": 1, "records_share": 1.0},
        "off": {"tables_every": 0, "records_mb": 0},
    }
    for name, output in outputs.items():
        run_training(eight_steps(policy, preset, output=output), tmp_path / name)
    assert same(weights(tmp_path / "on"), weights(tmp_path / "off"))
    assert metrics(tmp_path / "on") == metrics(tmp_path / "off")
    assert not list((tmp_path / "off" / "records").iterdir())
    assert not list((tmp_path / "off" / "tables").iterdir())
