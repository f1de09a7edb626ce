"""The settings under which papers evaluate, by name.

| name | samples | temperature | top-p | tokens |
|---|---|---|---|---|
| stapo | 32, or 4 on the large sets | 0.7 | 0.9 | 20,480 |
| stapo-sampled | 32, or 4 on the large sets | 1.0 | 1.0 | 20,480 |
| justrl | 32, or 4 on the large sets | 0.7 | 0.9 | 31,744 |
| stare | 32, or 4 on the large sets | 1.0 | 0.7 | 3,072 |
| dapo | 32 | 1.0 | 0.7 | 20,480 |
| lp-reg | 32 on AIME and AMC, else 1 | 0.6 on AIME and AMC, else greedy | 1.0 | 8,192 |

The large sets are MATH-500, Minerva and OlympiadBench. rlobj's own verifier grades under every
protocol; `notes` say how that differs from the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.yaml import packaged_table
from rlobj.data.prompts import DAPO_TEMPLATE, MATH_TEMPLATE


@dataclass(frozen=True)
class Settings:
    """Sampling settings for one benchmark.

    Attributes:
        samples: responses to each problem.
        temperature: 0 is greedy.
        top_p: nucleus sampling.
        max_tokens: longest response.
        template: text around the question.
    """

    samples: int
    temperature: float
    top_p: float
    max_tokens: int
    template: str


@dataclass(frozen=True)
class Protocol:
    """How one paper evaluates.

    Attributes:
        name: what `--protocol` calls it.
        source: where the numbers are from.
        settings: for all benchmarks that are not in `exceptions`.
        exceptions: benchmark -> its own settings.
        notes: what is assumed, and what differs from the paper.
    """

    name: str
    source: str
    settings: Settings
    exceptions: Mapping[str, Settings] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def for_benchmark(self, name: str) -> Settings:
        """The settings for a benchmark, also for one that is not in the paper.

        Example:
            >>> PROTOCOLS["stapo"].for_benchmark("aime24").samples
            32
            >>> PROTOCOLS["stapo"].for_benchmark("my-problems.jsonl").samples
            4
        """
        return self.exceptions.get(name, self.settings)


_TEMPLATES = {
    "math": MATH_TEMPLATE,
    "math-line": MATH_TEMPLATE.replace("{prompt} ", "{prompt}\n"),
    "dapo": DAPO_TEMPLATE,
}


def _protocol(name: str, source: str, settings: Any, exceptions: Any, notes: Any) -> Protocol:
    usual = Settings(**{**settings, "template": _TEMPLATES[settings["template"]]})
    others = {
        benchmark: replace(usual, **changes)
        for names, changes in exceptions.items()
        for benchmark in names.split()
    }
    return Protocol(name, source, usual, others, tuple(notes))


PROTOCOLS = {
    name: _protocol(name, **keys)
    for name, keys in packaged_table("rlobj.evaluation", "protocols.yaml").items()
}
"""The protocols by name."""


def find_protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        ConfigError: there is none; with the nearest name.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"There is no protocol '{name}'.{nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
