"""Faults inside a real engine, as the benchmark plants them; and its published results."""

from __future__ import annotations

import json

import pytest
from benchmarks import harness
from benchmarks.sampler_checks import GATES
from forked import WITH_VLLM, run_ranks
from vllm_tools import NEEDS_VLLM

RESULTS = harness.ROOT / "benchmarks" / "results" / "sampler-checks.json"


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(**NEEDS_VLLM)
def test_a_planted_fault_stops_a_run_and_its_removal_lets_the_next_one_go_on():
    """In a process of its own: vLLM adds the planted methods to its worker class for ever."""
    code = """
from benchmarks.sampler_checks import FAULTS, opened

with opened("vllm", "float32") as bench:
    stopped = bench.run(0, FAULTS["nothing is loaded"], sound=1, limit=2)
    assert stopped["steps"] in (1, 2) and stopped["message"], stopped
    refused = bench.run(0, FAULTS["temperature 0.9"], sound=0, limit=2)
    assert refused["steps"] in (0, 1, 2), refused
    healthy = bench.run(0, limit=2)
    assert healthy | {"gaps": []} == {"steps": None, "message": None, "gaps": []}, healthy
"""
    run_ranks(["-c", code], 1, PYTHONPATH=str(harness.ROOT), **WITH_VLLM)


def rows():
    return json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("case", GATES)
def test_the_published_faults_stopped_within_two_steps(case):
    runs = [run for row in rows() if row["case"] == case for run in row["runs"]]
    assert runs
    assert all(run["steps"] is not None and run["steps"] <= 2 for run in runs)


def test_the_published_healthy_runs_have_no_alarm():
    healthy = [row for row in rows() if row["case"].startswith("none")]
    assert {len(run["gaps"]) for row in healthy for run in row["runs"]} >= {200}
    assert not [run for row in healthy for run in row["runs"] if run["steps"] is not None]
