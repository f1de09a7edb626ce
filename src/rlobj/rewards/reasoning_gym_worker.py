"""Scores answers to problems of reasoning-gym, in a worker process.

Some scorers evaluate the answer as Python code; they see only answers that `refusal` accepts.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
from typing import Any

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_HARMLESS = re.compile(r"[\w\s,.'\"\[\]()+*/^-]*")
_CALL = re.compile(r"(\b\w+|[\])'\"])\s*\(")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]|__")
_FUNCTIONS = {"sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"}


class Scorer:
    """Scores answers by the scorers of their datasets."""

    def __init__(self) -> None:
        import reasoning_gym  # pyright: ignore[reportMissingImports]  # an extra

        self._open = functools.lru_cache(
            lambda name, settings: reasoning_gym.create_dataset(name, **json.loads(settings))
        )

    def answer(
        self, name: str, settings: Any, entry: dict[str, Any], answer: str | None
    ) -> tuple[float, str]:
        """Return the score of an answer, in [0, 1], and the reason.

        Args:
            name: of the dataset.
            settings: of the dataset.
            entry: question, answer and metadata.
            answer: what is scored.
        """
        dataset = self._open(name, json.dumps(settings))
        reason = None if answer is None else refusal(answer)
        if reason and _EVALUATES.search(inspect.getsource(type(dataset).score_answer)):
            return 0.0, reason
        if dataset.category == "arc":  # its scorer compares grids as tuples
            entry = {**entry, "metadata": _tuples(entry["metadata"])}
        score = float(dataset.score_answer(answer, entry))
        if math.isnan(score):  # a reward of NaN would be undecided
            return 0.0, "error: the score is not a number"
        return score, "no answer" if answer is None else f"score {score:.3g}"


def refusal(answer: str) -> str | None:
    """Return why an answer must not be evaluated; None if it is a literal or a formula.

    Example:
        >>> refusal("(25 + 7) * 4 - sqrt(x)"), refusal("[[0, 1], [1, 0]]")
        (None, None)
        >>> refusal("__import__('os').system('ls')")
        'refused: neither a number, a list nor a formula'
    """
    calls = set(_CALL.findall(answer)) <= _FUNCTIONS
    if calls and _HARMLESS.fullmatch(answer) and not _ATTRIBUTE.search(answer):
        return None
    return "refused: neither a number, a list nor a formula"


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
