"""Evaluating: what is sampled once is kept, whatever happens in between."""

from __future__ import annotations

import json
import re

import pytest

from rlobj.base.errors import ConfigError, DataError, RunError
from rlobj.data import Problem
from rlobj.evaluation import EvaluationDirectory, Samples, grade_all, sample_and_grade, sample_seed
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.identity import (
    differences,
    environment,
    fingerprint,
    model_identity,
    require_same,
)
from rlobj.rewards import Exact
from rlobj.samplers import Sample, SamplingSettings

PROBLEMS = [Problem(str(n), f"{n}+1=", str(n + 1)) for n in range(5)]
SETTINGS = SamplingSettings(max_tokens=4)


class Echo:
    """A sampler whose responses are their seeds, or the right answer for every third seed."""

    dtype = None

    def __init__(self, dies_after=None, tells=None):
        self.drawn = []
        self.dies_after = dies_after
        self.tells = tells

    def sample(self, prompts, *, count, settings, seeds, done=None):
        if self.dies_after is not None and len(self.drawn) >= self.dies_after:
            raise RunError("killed")
        self.drawn += seeds
        for place in range(self.tells or 0):
            done(place, [self._sample(prompts[place], seeds[place])])
        if self.tells:
            raise KeyboardInterrupt
        return [[self._sample(prompt, seed)] for prompt, seed in zip(prompts, seeds, strict=True)]

    def _sample(self, prompt, seed):
        return Sample(list(prompt), [1], [0.0], self._text(prompt, seed), "stop", 0)

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


def test_every_problem_gets_its_responses_in_order():
    received = Received()
    evaluation = run(Echo(), callback=received)
    assert [each.problem for each in evaluation.problems] == PROBLEMS
    for each in evaluation.problems:
        assert [response.sample for response in each.responses] == [0, 1, 2, 3]
        right = [grade.correct for grade in each.grades]
        assert right == [response.seed % 3 == 0 for response in each.responses]
    assert sum(received.graded_responses) == 20
    assert max(received.graded_responses) == 3


def test_a_seed_depends_on_everything_that_names_a_response_and_on_nothing_else():
    whole, split = Echo(), Echo()
    run(whole, block=1000)
    run(split, block=1)
    assert sorted(whole.drawn) == sorted(split.drawn)
    assert len(set(whole.drawn)) == 20
    assert sample_seed(7, "evaluation", "3", 2) in whole.drawn
    assert sample_seed(7, "another", "3", 2) not in whole.drawn


@pytest.mark.parametrize("dies_after", [3, 9, 18])
def test_a_killed_evaluation_goes_on_and_ends_the_same(tmp_path, dies_after):
    expected = run(Echo())
    with pytest.raises(RunError):
        run(Echo(dies_after), EvaluationDirectory(_made(tmp_path)))
    with (tmp_path / "samples.jsonl").open("ab") as file:
        file.write(b'{"benchmark": "evaluation", "problem": "4", "sam')  # cut off by the kill
    directory = EvaluationDirectory(tmp_path)
    directory.read(repair=True)
    assert len(directory.responses) == dies_after
    second = Echo()
    assert run(second, directory) == expected
    assert len(second.drawn) == 20 - dies_after
    lines = (tmp_path / "samples.jsonl").read_bytes().split(b"\n")[:-1]
    keys = [(row["problem"], row["sample"]) for row in map(json.loads, lines)]
    assert len(keys) == len(set(keys)) == 20
    fresh = EvaluationDirectory(tmp_path)
    fresh.read()
    assert fresh.graded("evaluation", PROBLEMS) == expected


def test_responses_without_a_grade_are_graded_and_not_drawn_again(tmp_path):
    run(Echo(), EvaluationDirectory(_made(tmp_path)))
    grades = tmp_path / "grades.jsonl"
    grades.write_bytes(b"\n".join(grades.read_bytes().split(b"\n")[:5]) + b"\n")
    directory = EvaluationDirectory(tmp_path)
    directory.read()
    sampler = Echo()
    assert run(sampler, directory) == run(Echo())
    assert sampler.drawn == []


def test_more_responses_extend_an_evaluation():
    samples = Samples()
    run(Echo(), samples, count=2)
    more = Echo()
    assert run(more, samples, count=4) == run(Echo(), count=4)
    assert len(more.drawn) == 10


def test_grading_is_apart_from_sampling():
    samples = Samples()
    first = run(Echo(), samples)
    samples.grades.clear()
    with Exact().open() as grader:
        grade_all(grader, PROBLEMS, "evaluation", samples)
    assert samples.graded("evaluation", PROBLEMS) == first


def test_a_line_that_is_not_json_is_told_with_its_number(tmp_path):
    run(Echo(), EvaluationDirectory(_made(tmp_path)))
    file = tmp_path / "samples.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"oops\n", *lines[2:]]))
    with pytest.raises(DataError, match=r"samples\.jsonl:3: not JSON"):
        EvaluationDirectory(tmp_path).read()


def test_a_folder_is_for_one_process_at_a_time(tmp_path):
    with (
        EvaluationDirectory(tmp_path / "new").locked(),
        pytest.raises(ConfigError, match="another process"),
        EvaluationDirectory(tmp_path / "new").locked(),
    ):
        pass


def test_problems_and_settings_are_read_back(tmp_path):
    directory = EvaluationDirectory(_made(tmp_path))
    directory.write_problems({"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]})
    assert directory.problems() == {"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]}
    directory.write_settings({"model": {"name": "m"}, "benchmarks": {}})
    settings = EvaluationDirectory.open(tmp_path).settings()
    assert settings == {"model": {"name": "m"}, "benchmarks": {}}
    directory.write_settings({"another": "program's"})
    with pytest.raises(ConfigError, match="names no benchmarks"):
        EvaluationDirectory.open(tmp_path)
    with pytest.raises(ConfigError, match="no evaluation"):
        EvaluationDirectory.open(tmp_path / "elsewhere")


def _made(path):
    path.mkdir(exist_ok=True)
    return path


THERE = {
    "model": {"name": "m", "weights": "abc"},
    "engine": {"name": "vllm"},
    "benchmarks": {"my.jsonl": {"samples": 4, "temperature": 0.7, "template": "{prompt}\n"}},
    "sessions": [1],
}


def _with(path, value):
    changed = json.loads(json.dumps(THERE))
    *folders, last = re.split(r"/", path) if "/" in path else path.split(".")
    inner = changed
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("model.weights", "abd", "model.weights"),
        ("engine.name", "transformers", "engine.name"),
        ("benchmarks/my.jsonl/temperature", 0.6, "my.jsonl.temperature"),
        ("benchmarks/my.jsonl/template", "{prompt} ", "my.jsonl.template"),
        ("benchmarks/my.jsonl/samples", 2, "my.jsonl.samples"),
    ],
)
def test_other_settings_are_refused_with_the_difference(path, value, name):
    with pytest.raises(ConfigError, match=re.escape(name) + ": .* there, .* now") as error:
        require_same("evals/x", THERE, _with(path, value))
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "now",
    [
        THERE,
        _with("sessions", []),
        _with("benchmarks/my.jsonl/samples", 32),
        _with("benchmarks/math500", {"samples": 1}),
        _with("benchmarks", {"math500": {"samples": 1}}),
    ],
)
def test_more_samples_and_other_benchmarks_may_go_on(now):
    assert differences(THERE, now) == []
    require_same("evals/x", THERE, now)
    require_same("evals/x", {}, now)


def test_every_byte_of_the_weights_and_settings_is_in_a_models_identity(tmp_path):
    file = tmp_path / "model.safetensors"
    content = bytearray(range(256)) * 4096
    file.write_bytes(content)
    first = model_identity(str(tmp_path))
    assert first == model_identity(str(tmp_path))
    for place in (0, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        assert model_identity(str(tmp_path)) != first
    (tmp_path / "config.json").write_text("{}")
    with_settings = model_identity(str(tmp_path))
    (tmp_path / "config.json").write_text('{"rope_theta": 5}')
    assert model_identity(str(tmp_path)) != with_settings
    nowhere = {"weights": None, "settings": None, "revision": None}
    assert model_identity("nobody/no-such-model") == nowhere


def test_the_environment_names_versions_and_hardware():
    found = environment()
    assert {"rlobj", "python", "torch", "transformers", "math-verify"} <= found["versions"].keys()
    assert found["hardware"]


def test_a_line_cut_in_the_middle_of_a_character_is_left_out(tmp_path):
    run(Echo(), EvaluationDirectory(_made(tmp_path)))
    file = tmp_path / "samples.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + '{"benchmark": "é'.encode()[:-1])
    directory = EvaluationDirectory(tmp_path)
    directory.read()
    assert len(directory.responses) == 20
    assert file.read_bytes() != whole
    directory.read(repair=True)
    assert file.read_bytes() == whole


def test_where_and_under_which_name_does_not_change_what_is_measured():
    moved = _with("benchmarks/my.jsonl/source", "/elsewhere/my.jsonl")
    moved["model"] |= {"name": "./m", "source": "./m"}
    assert differences(THERE, moved) == []
    assert fingerprint(THERE) == fingerprint(moved)
    assert fingerprint(THERE) != fingerprint(_with("benchmarks/my.jsonl/temperature", 0.6))
    hub = _with("model.weights", None)
    assert differences(hub, {**hub, "model": {**hub["model"], "source": "a/b"}})


def test_what_is_drawn_when_ctrl_c_comes_is_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(Echo(tells=2), EvaluationDirectory(_made(tmp_path)))
    directory = EvaluationDirectory(tmp_path)
    directory.read()
    assert len(directory.responses) == 2
    rest = Echo()
    assert run(rest, directory) == run(Echo())
    assert len(rest.drawn) == 18
