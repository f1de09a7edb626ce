"""Where a step's time goes: every second in one phase, and grades made while others are drawn."""

from __future__ import annotations

import contextlib
import threading
import time

import forked
import pytest
import torch
from tiny import tiny_config

from rlobj.base.errors import RunError
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Response, SamplingSettings, TransformersSampler
from rlobj.training import Callback, run_training
from rlobj.training.loop.clock import PHASES, Clock
from rlobj.training.rollouts.collector import Grading


@pytest.fixture
def ticking(monkeypatch):
    """A clock's hand that moves only where it is pushed."""
    now = [100.0]
    monkeypatch.setattr("rlobj.training.loop.clock.time.perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_a_second_counts_once_in_the_innermost_phase(ticking):
    heard = []

    class Listener(Callback):
        def phase(self, name):
            heard.append(name)

    clock = Clock([Listener()])
    clock.start("sampling")
    ticking(4)
    clock.move("sampling", "grading", 1)
    clock.start("updating")
    ticking(1)
    with clock.inside("forward"):
        ticking(2)
        with clock.inside("writing"):
            ticking(8)
    with contextlib.suppress(ValueError), clock.inside("backward"):
        ticking(16)
        raise ValueError
    found = clock.stop(tokens=230)
    expected = {"sampling": 3, "grading": 1, "forward": 2, "writing": 8, "backward": 16, "other": 1}
    assert {
        k: v for k, v in found.items() if v and k.removeprefix("time/") in (*PHASES, "other")
    } == {f"time/{name}": seconds for name, seconds in expected.items()}
    assert found["time/step"] == 31
    assert found["time/updating"] == 27
    assert found["tokens/per_second"] == 10  # without writing
    assert heard == ["sampling", "updating"]


def test_what_comes_after_a_step_counts_in_the_next(ticking):
    clock = Clock()
    clock.start("sampling")
    clock.stop(tokens=1)
    with clock.inside("writing"):  # a checkpoint
        ticking(5)
    clock.start("sampling")
    ticking(1)
    found = clock.stop(tokens=1)
    assert (found["time/step"], found["time/writing"], found["time/sampling"]) == (6, 5, 1)


@pytest.mark.parametrize("depth", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_phases_of_a_step_add_up_to_its_time(policy, tmp_path, depth):
    config = tiny_config(
        policy,
        "lopti",
        sampling={"async_depth": depth},
        training={"steps": 4, "micro_batch_tokens": 300},
        evaluation={"every": 2, "samples": 1},
        checkpoint={"every": 1},
    )
    history = run_training(config, tmp_path / "run").history[1:]
    for line in history:
        phases = [line[f"time/{phase}"] for phase in (*PHASES, "other")]
        assert sum(phases) == pytest.approx(line["time/step"])
        assert min(phases) >= -1e-6
        inside = [
            line[f"time/{phase}"] for phase in ("planning", "forward", "backward", "optimizer")
        ]
        assert line["time/updating"] > 0.5 * sum(inside)
        assert (line["time/sampling_hidden"] > 0) == (depth > 0)
    assert 0 < history[1]["time/evaluating"] > history[2]["time/evaluating"] == 0


# Grading beside sampling.


def sample(text: str) -> Response:
    return Response([1], [2], [-0.5], text, "stop", 0)


class Slow(Grader):
    """Grades by the text's number, each call taking a while; fails at "x"."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def score(self, responses, problems):
        self.threads.append(threading.current_thread().name)
        time.sleep(0.05)
        if "x" in responses:
            raise RunError("cannot grade x")
        return [
            Graded(float(text), True, problem, None)
            for text, problem in zip(responses, problems, strict=True)
        ]


def test_groups_are_graded_as_they_arrive_and_the_grades_are_in_order():
    grader = Slow()
    groups = [[sample(f"{g}{j}") for j in range(3)] for g in range(5)]
    with Grading(grader, lambda g: f"p{g}") as grading:
        for calls, g in enumerate((3, 0, 4)):
            grading.done(g, groups[g])
            forked.wait_until(lambda: len(grader.threads) > calls)  # noqa: B023
        graded = grading.finish(dict(enumerate(groups)))
    assert [[(grade.reward, grade.reason) for grade in group] for group in graded] == [
        [(float(f"{g}{j}"), f"p{g}") for j in range(3)] for g in range(5)
    ]
    assert "MainThread" not in grader.threads[:3]
    assert grading.hidden > 0.05
    assert len(grader.threads) == 4, "three early groups, and the others in one call"


def test_a_grader_that_fails_ends_sampling_and_the_call():
    with Grading(Slow(), "pq".__getitem__) as grading:
        grading.done(0, [sample("x")])
        forked.wait_until(lambda: grading._work.done())
        with pytest.raises(RunError, match="cannot grade x"):
            grading.done(1, [sample("1")])
    with Grading(Slow(), "p".__getitem__) as grading:
        grading.done(0, [sample("x")])
        with pytest.raises(RunError, match="cannot grade x"):
            grading.finish({0: [sample("x")]})


def test_a_response_is_told_of_before_longer_ones_of_its_batch_end(policy):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(policy) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    sampler, lengths, passes = TransformersSampler(model, tokenizer), [], []
    model.register_forward_hook(lambda *_: passes.append(1))
    told = []

    def done(index, samples):
        told.append(len(passes))
        lengths.append(len(samples[0].tokens))

    settings = SamplingSettings(max_tokens=12)
    asked = {"count": 1, "settings": settings, "seeds": range(64)}
    sampler.sample([[3, 4]], count=1, settings=settings, seeds=[0])  # which tries the cache
    passes.clear()
    drawn = sampler.sample([[3, 4]] * 64, **asked, done=done)
    assert lengths == sorted(lengths)
    # After as many passes as it has tokens, or one more while others go on.
    assert {after - length for after, length in zip(told, lengths, strict=True)} <= {0, 1}
    assert len(told) == 64
    assert len(set(lengths)) > 2
    assert drawn == sampler.sample([[3, 4]] * 64, **asked)


# Tokens in four bytes.


def test_a_response_holds_arrays():
    import pickle

    one = Response([1, 2], [3, 4, 5], [-0.5, -0.25, -1.0], "abc", "stop", 7)
    assert one.prompt.tolist() + one.tokens.tolist() == [1, 2, 3, 4, 5]
    assert one.logprobs.tolist() == [-0.5, -0.25, -1.0]
    assert (one.tokens.itemsize, one.logprobs.itemsize) == (4, 4)
    assert pickle.loads(pickle.dumps(one)) == one != Response([1], [3], [0.0], "a", "stop", 7)
    values = torch.rand(1000).log()
    assert torch.equal(
        torch.tensor(Response([], [], values.tolist(), "", "stop", 0).logprobs), values
    )
