"""The task's judgement travels from the rank that sampled a response to the record."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from benchmarks.embedded_policy import build_tokenizer
from test_recorder import observed_of, record
from tiny import tiny_config

from rlobj.data.tasks import TASKS
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Graded
from rlobj.runs.reading import read_records
from rlobj.samplers import Response
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.opening import judge
from rlobj.training.rollouts.collector import Rollout
from rlobj.training.rollouts.sharding import shard

PROBLEM = replace(TASKS["scratchpad"].problems("train")[0], prompt="6+9+3+8=", answer="26")
RIGHT, SLIP = "6+9=15;15+3=18;18+8=26#26", "6+9=15;14+3=18;18+8=26#26"


def responses(tokenizer, *texts: tuple[str, bool | None]) -> Rollout:
    made = []
    for number, (text, correct) in enumerate(texts):
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        prompt = tokenizer(PROBLEM.prompt).input_ids
        grade = Graded(float(bool(correct)), correct, text, "")
        facts = {"id": number, "problem": PROBLEM, "grade": grade}
        made.append(Response(prompt, ids, [-1.0] * len(ids), text, "stop", 0, **facts))
    return Rollout(made, [], 1, {}, {})


def judged(policy, *texts: tuple[str, bool | None], source: str = "scratchpad", rows=None):
    tokenizer = build_tokenizer("0123456789+=;#")
    config = tiny_config(policy, "stapo", data={"source": source})
    found = judge(config, CallerInputs(data=rows), tokenizer)
    if found is None:
        return None
    cpu = torch.device("cpu")
    comm = ProcessGroup(cpu)
    rollout = responses(tokenizer, *texts)
    marked = [replace(r, columns={"spurious": found(r)}) for r in rollout.responses]
    table = shard(replace(rollout, responses=marked), config, comm, cpu).table
    return [part.tolist() for part in table.columns["spurious"].split(table.lengths.tolist())]


def test_wrong_digits_of_right_responses_are_spurious_and_wrong_responses_are_not_judged(policy):
    first, second, third, fourth = judged(
        policy, (RIGHT, True), (SLIP, True), (SLIP, False), (RIGHT, None)
    )
    assert not any(first)
    assert [place for place, mark in enumerate(second) if mark] == [8]
    assert all(map(math.isnan, third + fourth))


def test_other_tasks_and_given_problems_are_not_judged(policy):
    assert judged(policy, source="addition") is None
    assert judged(policy, rows=[vars(PROBLEM)]) is None


def test_every_spurious_token_is_recorded_as_such(tmp_path):
    observed = observed_of("dapo-loss")
    marks = torch.where(torch.arange(len(observed.logprobs)) % 3 == 0, 1.0, 0.0)
    marks[observed.table.responses == 1] = math.nan
    table = observed.table.replace(columns={"spurious": marks})
    recorder = record(tmp_path)
    recorder.update(1, 0, replace(observed, table=table))
    recorder.end_step(1)
    rows = read_records(tmp_path)
    assert len(rows) == int((marks[observed.plan.clauses.in_phase] == 1).sum()) > 0
    assert set(rows["spurious"].to_pylist()) == {True}
    assert rows["effect"].null_count == len(rows)
