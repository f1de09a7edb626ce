"""Protocols: the settings under which papers evaluate, by name.

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

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlobj.base.errors import ConfigError, nearest
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
    template: str = MATH_TEMPLATE


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

    def notes_on(self, benchmark: str) -> tuple[str, ...]:
        """The notes that concern a benchmark."""
        return tuple(note for note in self.notes if note != _2025_AS_JUSTRL or benchmark in _2025)

    def for_benchmark(self, name: str) -> Settings:
        """The settings for a benchmark, also for one that is not in the paper.

        Example:
            >>> PROTOCOLS["stapo"].for_benchmark("aime24").samples
            32
            >>> PROTOCOLS["stapo"].for_benchmark("my-problems.jsonl").samples
            4
        """
        return self.exceptions.get(name, self.settings)


_AIME_AMC = ("aime24", "aime25", "amc23")
_2025 = ("brumo25", "cmimc25", "hmmt25")


def _small_sets(settings: Settings) -> dict[str, Settings]:
    """32 samples on the competitions with 30 or 40 problems."""
    return dict.fromkeys((*_AIME_AMC, *_2025), replace(settings, samples=32))


_COMPASS = (
    "the paper gives responses that its rules reject to a model, CompassVerifier-3B, which can "
    "only raise scores; here only rlobj's verifier decides"
)
_THREE_GRADERS = (
    "the paper accepts a response if one of three graders does; here only rlobj's verifier decides"
)
_2025_AS_JUSTRL = (
    "BRUMO25, CMIMC25 and HMMT25 are not in the paper; they get 32 samples as JustRL gives them"
)
_STAPO = Settings(samples=4, temperature=0.7, top_p=0.9, max_tokens=20_480)
_STAPO_SAMPLED = replace(_STAPO, temperature=1.0, top_p=1.0)
_STAPO_NOTES = (
    _COMPASS,
    "the paper does not print its prompt; JustRL's template is assumed",
    _2025_AS_JUSTRL,
)
_JUSTRL = Settings(samples=4, temperature=0.7, top_p=0.9, max_tokens=31_744)
_STARE = Settings(
    samples=4,
    temperature=1.0,
    top_p=0.7,
    max_tokens=3_072,
    template=MATH_TEMPLATE.replace("{prompt} ", "{prompt}\n"),
)
_DAPO = Settings(samples=32, temperature=1.0, top_p=0.7, max_tokens=20_480, template=DAPO_TEMPLATE)
_LP_REG = Settings(samples=1, temperature=0.0, top_p=1.0, max_tokens=8_192)
_ALL = (
    Protocol(
        "stapo",
        "STAPO, arXiv:2602.15620v4, section Settings: its default, T = 0.7 and top-p = 0.9",
        _STAPO,
        _small_sets(_STAPO),
        _STAPO_NOTES,
    ),
    Protocol(
        "stapo-sampled",
        "STAPO, arXiv:2602.15620v4, section Settings: as in training, T = 1 and top-p = 1",
        _STAPO_SAMPLED,
        _small_sets(_STAPO_SAMPLED),
        _STAPO_NOTES,
    ),
    Protocol(
        "justrl",
        "JustRL, arXiv:2512.16649: evals/gen_vllm.py of github.com/thunlp/JustRL at cf444e9",
        _JUSTRL,
        _small_sets(_JUSTRL),
        (_COMPASS, "the paper takes new seeds in every run; here they follow --seed"),
    ),
    Protocol(
        "stare",
        "STARE, arXiv:2606.19236: README and recipe/STARE/scripts of github.com/hp-luo/STARE",
        _STARE,
        _small_sets(_STARE),
        (
            "3,072 tokens are those of the short-CoT script; for long reasoning give --max-tokens",
            "the evaluation files are not released; the template is that of the training data",
            _THREE_GRADERS,
            _2025_AS_JUSTRL,
        ),
    ),
    Protocol(
        "dapo",
        "DAPO, arXiv:2503.14476, section 4.1; 20,480 = 16,384 tokens and 4,096 of soft punishment",
        _DAPO,
        notes=(
            "the paper evaluates AIME 2024 only; other benchmarks get the same settings",
            "the paper compares the text after 'Answer:' in the last 300 characters as a string; "
            "here rlobj's verifier decides, and an answer in a box counts too",
            "the wording of the template is that of DAPO-Math-17k",
        ),
    ),
    Protocol(
        "lp-reg",
        "Lp-Reg, arXiv:2510.03222: verl/trainer/ppo/ray_trainer.py and recipe/lp_reg of "
        "github.com/CarlanLark/Lp-Reg-dev",
        _LP_REG,
        dict.fromkeys(_AIME_AMC, replace(_LP_REG, samples=32, temperature=0.6)),
        (
            "the scripts set one sample, and the code calls the AIME and AMC batch pass32: 32 "
            "samples of those are assumed",
            "the evaluation files are not released; the usual template is assumed",
            _THREE_GRADERS,
        ),
    ),
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _ALL}
"""The protocols by name."""


def find_protocol(name: str) -> Protocol:
    """The protocol of that name.

    Raises:
        ConfigError: there is none; with the nearest name.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"There is no protocol '{name}'.{nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
