"""Protocols have the settings that the papers state."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import MATH_TEMPLATE, Problem, format_prompt
from rlobj.data.benchmarks import BENCHMARKS
from rlobj.evaluation.problem_sets import PROTOCOLS, find_protocol

SMALL = ("aime24", "aime25", "amc23", "brumo25", "cmimc25", "hmmt25")
EXPECTED = {
    "stapo": ((32, 0.7, 0.9, 20_480), (4, 0.7, 0.9, 20_480)),
    "stapo-sampled": ((32, 1.0, 1.0, 20_480), (4, 1.0, 1.0, 20_480)),
    "justrl": ((32, 0.7, 0.9, 31_744), (4, 0.7, 0.9, 31_744)),
    "stare": ((32, 1.0, 0.7, 3_072), (4, 1.0, 0.7, 3_072)),
    "dapo": ((32, 1.0, 0.7, 16_384 + 4_096),) * 2,
    "lp-reg": ((32, 0.6, 1.0, 8_192), (1, 0.0, 1.0, 8_192)),
}
"""Samples, temperature, top-p and tokens: on the small sets, and on the others."""


@pytest.mark.parametrize("name", PROTOCOLS)
def test_settings_are_those_of_the_paper(name):
    small = ("aime24", "aime25", "amc23") if name == "lp-reg" else SMALL
    for benchmark in BENCHMARKS:
        found = find_protocol(name).for_benchmark(benchmark)
        numbers = (found.samples, found.temperature, found.top_p, found.max_tokens)
        assert numbers == EXPECTED[name][benchmark not in small]


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


def test_an_unknown_protocol_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no protocol 'stapo-sample'.*mean 'stapo-sampled'"):
        find_protocol("stapo-sample")
