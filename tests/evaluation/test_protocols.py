"""Protocols have the settings that the papers state."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import MATH_TEMPLATE, Problem, format_prompt
from rlobj.data.sources import BENCHMARKS
from rlobj.evaluation.problem_sets import PROTOCOLS, find_protocol

SMALL = ("aime24", "aime25", "amc23", "brumo25", "cmimc25", "hmmt25")
LARGE = ("math500", "minerva", "olympiadbench")


@pytest.mark.parametrize(
    ("name", "temperature", "top_p", "max_tokens"),
    [
        ("stapo", 0.7, 0.9, 20_480),
        ("stapo-sampled", 1.0, 1.0, 20_480),
        ("justrl", 0.7, 0.9, 31_744),
        ("stare", 1.0, 0.7, 3_072),
    ],
)
@pytest.mark.parametrize("benchmark", [*SMALL, *LARGE])
def test_small_sets_are_sampled_32_times_and_large_ones_4_times(
    name, temperature, top_p, max_tokens, benchmark
):
    settings = find_protocol(name).for_benchmark(benchmark)
    assert settings.samples == (32 if benchmark in SMALL else 4)
    assert (settings.temperature, settings.top_p) == (temperature, top_p)
    assert settings.max_tokens == max_tokens


def test_dapo_is_32_samples_at_top_p_07():
    settings = find_protocol("dapo").for_benchmark("aime24")
    assert (settings.samples, settings.temperature, settings.top_p) == (32, 1.0, 0.7)
    assert settings.max_tokens == 16_384 + 4_096


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_lp_reg_samples_aime_and_amc_and_is_greedy_elsewhere(benchmark):
    settings = find_protocol("lp-reg").for_benchmark(benchmark)
    sampled = benchmark in ("aime24", "aime25", "amc23")
    assert (settings.samples, settings.temperature) == ((32, 0.6) if sampled else (1, 0.0))
    assert (settings.top_p, settings.max_tokens) == (1.0, 8_192)


def test_templates_are_those_of_the_papers():
    sentence = "Please reason step by step, and put your final answer within \\boxed{}."
    problem = Problem("1", "What is 2+2?", "4")
    asked = {
        name: format_prompt(protocol.settings.template, problem)
        for name, protocol in PROTOCOLS.items()
    }
    for name in ("stapo", "stapo-sampled", "justrl", "lp-reg"):
        assert asked[name] == f"What is 2+2? {sentence}"
    assert asked["stare"] == f"What is 2+2?\n{sentence}"
    assert asked["dapo"] == (
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        '\n\nWhat is 2+2?\n\nRemember to put your answer on its own line after "Answer:".'
    )
    assert PROTOCOLS["justrl"].settings.template == MATH_TEMPLATE


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda protocol: protocol.name)
def test_a_protocol_has_a_source_and_notes_and_names_existing_benchmarks(protocol):
    assert "arXiv:" in protocol.source
    assert protocol.exceptions.keys() <= BENCHMARKS.keys()
    assert protocol.notes
    assert find_protocol(protocol.name) is protocol
    dumped = json.loads(json.dumps(dataclasses.asdict(protocol)))
    assert dumped["settings"]["max_tokens"] == protocol.settings.max_tokens
    templates = {each.template for each in [protocol.settings, *protocol.exceptions.values()]}
    assert len(templates) == 1


def test_an_unknown_protocol_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no protocol 'stapo-sample'.*mean 'stapo-sampled'"):
        find_protocol("stapo-sample")
