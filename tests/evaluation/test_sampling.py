"""Responses are sampled once, stored in a folder, and graded."""

from __future__ import annotations

import json

import pytest

from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.data import Problem
from rlobj.evaluation import GradedBenchmark, sample_and_grade
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.rewards import Exact
from rlobj.runs.evaluation_samples import FORMAT, Samples
from rlobj.samplers import Response, SamplingSettings, derive_seed

PROBLEMS = [Problem(str(n), f"{n}+1=", str(n + 1)) for n in range(5)]
SETTINGS = SamplingSettings(max_tokens=4)


class Echo:
    """A sampler whose responses are their seeds, or the right answer for every third seed."""

    dtype = None

    def __init__(self, dies_after=None, early=None):
        self.drawn = []
        self.dies_after = dies_after
        self.early = early

    def sample(self, prompts, *, count, settings, seeds, done=None):
        if self.dies_after is not None and len(self.drawn) >= self.dies_after:
            raise RunError("killed")
        self.drawn += seeds
        for place in range(self.early or 0):
            done(place, [self._sample(prompts[place], seeds[place])])
        if self.early:
            raise KeyboardInterrupt
        return [[self._sample(prompt, seed)] for prompt, seed in zip(prompts, seeds, strict=True)]

    def _sample(self, prompt, seed):
        return Response(list(prompt), [1], [0.0], self._text(prompt, seed), "stop", 0)

    def _text(self, prompt, seed):
        return str(prompt[0] + 1) if seed % 3 == 0 else f"\u2028 wrong \ud800 {seed}\r\n"


class Received(EvaluationCallback):
    """Keeps how many responses were graded with each event."""

    def __init__(self):
        self.graded_responses = []

    def graded(self, benchmark, done, total, accuracy):
        assert (benchmark, total) == ("evaluation", 20)
        self.graded_responses.append(done - sum(self.graded_responses))


def encode(problem):
    return [int(problem.id)]


def run(sampler, samples=None, count=4, block=3, **more):
    with Exact().open() as grader:
        return sample_and_grade(
            sampler, encode, PROBLEMS, grader, SETTINGS,
            count=count, seed=7, samples=samples, block=block, **more,
        )  # fmt: skip


def test_every_problem_has_its_responses_whose_seeds_depend_on_their_names_alone():
    received, whole, split = Received(), Echo(), Echo()
    evaluation = run(split, callback=received)
    assert [each.problem for each in evaluation.problems] == PROBLEMS
    for each in evaluation.problems:
        assert [response.id for response in each.responses] == [0, 1, 2, 3]
        right = [grade.correct for grade in each.grades]
        assert right == [response.seed % 3 == 0 for response in each.responses]
    assert sum(received.graded_responses) == 20
    assert max(received.graded_responses) == 3
    assert run(whole, block=1000) == evaluation
    assert sorted(whole.drawn) == sorted(split.drawn)
    assert len(set(whole.drawn)) == 20
    assert derive_seed(7, "evaluation", "3", 2) in whole.drawn


def test_responses_sampled_before_ctrl_c_are_stored_and_extended(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Echo(early=2), Samples(tmp_path), count=2)
    directory, rest = Samples(tmp_path), Echo()
    directory.read()
    assert len(directory.responses) == 2
    assert run(rest, directory) == run(Echo())
    assert len(rest.drawn) == 18


@pytest.mark.parametrize("dies_after", [3, 9, 18])
def test_a_killed_evaluation_continues_to_the_same_result(tmp_path, dies_after):
    expected = run(Echo())
    with pytest.raises(RunError):
        run(Echo(dies_after), Samples(tmp_path))
    with (tmp_path / "samples.jsonl").open("ab") as file:
        file.write(b'{"benchmark": "evaluation", "problem": "4", "sam')  # cut off by the kill
    directory = Samples(tmp_path)
    directory.take_over()
    directory.read()
    assert len(directory.responses) == dies_after
    second = Echo()
    assert run(second, directory) == expected
    assert len(second.drawn) == 20 - dies_after
    lines = (tmp_path / "samples.jsonl").read_bytes().split(b"\n")[:-1]
    keys = [(row["problem"], row["sample"]) for row in map(json.loads, lines)]
    assert len(keys) == len(set(keys)) == 20
    fresh = Samples(tmp_path)
    fresh.read()
    assert GradedBenchmark.of(fresh, "evaluation", PROBLEMS) == expected


def test_responses_without_a_grade_are_graded_and_not_sampled_again(tmp_path):
    run(Echo(), Samples(tmp_path))
    grades = tmp_path / "grades.jsonl"
    grades.write_bytes(b"\n".join(grades.read_bytes().split(b"\n")[:5]) + b"\n")
    directory = Samples(tmp_path)
    directory.read()
    sampler = Echo()
    assert run(sampler, directory) == run(Echo())
    assert sampler.drawn == []


def test_error_names_the_line_that_is_not_json(tmp_path):
    run(Echo(), Samples(tmp_path))
    file = tmp_path / "samples.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"oops\n", *lines[2:]]))
    with pytest.raises(DataError, match=r"samples\.jsonl:3: damaged, or not JSON"):
        Samples(tmp_path).read()


def test_responses_of_another_process_are_read_and_taken_over(tmp_path):
    expected, other = run(Echo()), Samples(tmp_path, rank=1)
    run(Echo(), other, count=3)
    with (tmp_path / "samples.1.jsonl").open("ab") as file:
        file.write(b'{"benchmark": "evaluation", "problem": "4", "sam')  # cut off by a kill
    shown, first, sampler = Samples(tmp_path), Samples(tmp_path), Echo()
    shown.read()
    assert (shown.responses, shown.grades) == (other.responses, other.grades)
    first.take_over()
    assert [file.name for file in tmp_path.glob("*.1.jsonl")] == []
    first.read()
    assert run(sampler, first) == expected
    assert len(sampler.drawn) == 5
    assert len((tmp_path / "samples.jsonl").read_bytes().split(b"\n")) == 21


def test_error_if_another_process_writes_to_the_folder(tmp_path):
    with (
        Samples(tmp_path / "new").locked(),
        pytest.raises(ConfigError, match="another process"),
        Samples(tmp_path / "new").locked(),
    ):
        pass


def test_an_evaluation_of_another_format_is_refused_with_both_versions(tmp_path):
    sessions = [{"versions": {"rlobj": "0.0.9"}}]
    stored = {"format": FORMAT - 1, "model": {"name": "m"}, "benchmarks": {}, "sessions": sessions}
    Samples(tmp_path).write_settings(stored)
    expected = (
        rf"was written by another rlobj \(0\.0\.9, format {FORMAT - 1}\), and this one reads "
        rf"format {FORMAT}: use the one that wrote it, or "
    )
    with pytest.raises(ConfigError, match=expected):
        Samples.open(tmp_path)


def test_problems_and_settings_are_read_back(tmp_path):
    directory = Samples(tmp_path)
    directory.write_problems({"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]})
    assert directory.problems() == {"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]}
    settings = {"format": FORMAT, "model": {"name": "m"}, "benchmarks": {}}
    directory.write_settings(settings)
    assert Samples.open(tmp_path).settings() == settings
    directory.write_settings({"another": "program's"})
    with pytest.raises(ConfigError, match="has no benchmarks"):
        Samples.open(tmp_path)
    with pytest.raises(ConfigError, match="not an evaluation"):
        Samples.open(tmp_path / "elsewhere")
