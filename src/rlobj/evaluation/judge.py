"""A language model that judges whether a response has the gold answer.

The model answers A (correct), B (incorrect) or C (invalid), as CompassVerifier does
(arXiv:2508.03686). It sees the problem, the gold answer and the response.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.files import packaged
from rlobj.config.run_config import build_config
from rlobj.data import Problem, encode_prompt
from rlobj.evaluation.engines import Engine, open_engine
from rlobj.models.location import require_model
from rlobj.samplers import SamplingSettings
from rlobj.samplers.vllm import versions

JUDGE = "judge:"
MAX_TOKENS = 2048
"""Longest output of a judge; at most a quarter of its context."""
TEMPLATE = packaged("rlobj.evaluation", "judge.txt")
_LETTER = re.compile(r"\W*([ABC])(?:\W+(?:CORRECT|INCORRECT|INVALID))?\W*")
_WORD = re.compile(r"\W*(CORRECT|INCORRECT|INVALID)\W*")
_BOX = re.compile(r"\\boxed\{\W*([ABC])\W*\}")


def read_judgement(output: str) -> bool | None:
    """Return whether the output of a judge means "correct"; None if it cannot be read.

    A letter or its word alone counts, or the last letter in a box. Text in thinking tags is left
    out.

    Example:
        >>> [read_judgement(text) for text in ("A", "B: INCORRECT", "INVALID", "A good answer.")]
        [True, False, False, None]
    """
    text = output.rpartition("</think>")[2].strip()
    if boxes := _BOX.findall(text):
        return boxes[-1] == "A"
    found = _LETTER.fullmatch(text) or _WORD.fullmatch(text)
    return None if found is None else found[1] in ("A", "CORRECT")


class Judge:
    """A model that judges responses, one output each, greedy.

    Args:
        engine: the open model.
        template: text with {question}, {gold_answer} and {llm_response}.
    """

    def __init__(self, engine: Engine, template: str) -> None:
        self._engine, self._template = engine, template
        self._tokens = min(MAX_TOKENS, (engine.context or 4 * MAX_TOKENS) // 4)

    def grade(self, questions: Sequence[tuple[Problem, str]]) -> list[tuple[bool | None, str]]:
        """Return (verdict, output) of each response; a prompt that is too long is undecided."""
        engine, prompts = self._engine, {}
        for index, (problem, response) in enumerate(questions):
            text = _filled(self._template, problem.prompt, " or ".join(problem.golds), response)
            ids = encode_prompt(engine.tokenizer, text, engine.chat)
            if engine.context is None or len(ids) + self._tokens <= engine.context:
                prompts[index] = ids
        settings = SamplingSettings(temperature=0.0, max_tokens=self._tokens)
        outputs = engine.sampler.sample(
            list(prompts.values()), count=1, settings=settings, seeds=[0] * len(prompts)
        )
        found: list[tuple[bool | None, str]] = [(None, "too long for the judge")] * len(questions)
        for index, [output] in zip(prompts, outputs, strict=True):
            found[index] = read_judgement(output.text), output.text.strip()
        return found


def _filled(template: str, question: str, gold: str, response: str) -> str:
    return template.format(question=question, gold_answer=gold, llm_response=response)


@contextlib.contextmanager
def open_judge(model: str, template: Path | str | None, sampler: str | None) -> Iterator[Judge]:
    """Open a judge.

    Args:
        model: hub id or folder.
        template: file with the template; None = `TEMPLATE`.
        sampler: engine; None = vllm if it is installed, else transformers.

    Raises:
        ConfigError: no such model, or a template that cannot be used.
    """
    text = TEMPLATE if template is None else _read(Path(template))
    require_model(model)
    engine = sampler or ("vllm" if versions.installed() else "transformers")
    settings: dict[str, Any] = {"model": {"name": model}, "sampling": {"engine": engine}}
    settings["data"] = {"source": "stored responses"}
    with open_engine(build_config([("--with", settings)]), model) as opened:
        yield Judge(opened, text)


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
        marks = ("\x01", "\x02", "\x03")
        missing = [mark for mark in marks if mark not in _filled(text, *marks)]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--judge-template {file} cannot be read: {error}") from error
    except (KeyError, IndexError, ValueError):
        missing = ["other braces"]
    if missing:
        raise ConfigError(
            f"--judge-template {file}: expected {{question}}, {{gold_answer}} and "
            "{llm_response}; write any other brace twice, as {{ or }}"
        )
    return text
