"""reasoning-gym in a worker process, whose fixed hash seed makes every dataset reproducible."""

# pyright: reportMissingImports=false

import functools
import inspect
import json
import re
from typing import Any

TEST_SEED = 10**9
"""Distance between the seeds of training and test problems. Problem i has the seed `seed + i`."""
_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_HARMLESS = re.compile(r"[\w\s,.'\"\[\]()+*/^-]*")
_CALL = re.compile(r"(\b\w+|[\])'\"])\s*\(")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]|__")
_FUNCTIONS = {"sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"}


class Problems:
    """Makes the problems of a split; a test problem has another question than training problems."""

    def __init__(self, name: str, settings: dict[str, Any], split: str) -> None:
        import reasoning_gym  # an extra

        def made(seed: int) -> list[dict[str, Any]]:
            dataset = reasoning_gym.create_dataset(name, **{**settings, "seed": seed})
            return [dataset[index] for index in range(len(dataset))]

        self.opening, seed = made(settings["seed"]), settings["seed"] + TEST_SEED
        if split == "test":
            trained = {entry["question"] for entry in self.opening}
            self.opening = [entry for entry in made(seed) if entry["question"] not in trained]


class Scorer:
    """Scores answers by the scorers of their datasets.

    Some of these evaluate the answer as Python code; they see only answers that `harmless` accepts.
    """

    def __init__(self) -> None:
        import reasoning_gym

        self._open = functools.lru_cache(
            lambda name, settings: reasoning_gym.create_dataset(name, **json.loads(settings))
        )

    def answer(
        self, name: str, settings: Any, entry: dict[str, Any], answer: str | None
    ) -> tuple[float, str]:
        """The score of an answer, in [0, 1], and the reason.

        Args:
            name: of the dataset.
            settings: of the dataset.
            entry: question, answer and metadata.
            answer: what is scored.
        """
        dataset = self._open(name, json.dumps(settings))
        evaluates = _EVALUATES.search(inspect.getsource(type(dataset).score_answer))
        if answer is not None and evaluates and not harmless(answer):
            return 0.0, "refused: neither a number, a list nor a formula"
        if dataset.category == "arc":  # its scorer compares grids as tuples
            entry = {**entry, "metadata": _tuples(entry["metadata"])}
        score = float(dataset.score_answer(answer, entry))
        if score != score:  # a reward of NaN would be undecided
            return 0.0, "error: the score is not a number"
        return score, "no answer" if answer is None else f"score {score:.3g}"


def harmless(answer: str) -> bool:
    """Whether an answer is a literal or a formula, which may be evaluated.

    Example:
        >>> harmless("(25 + 7) * 4 - sqrt(x)"), harmless("__import__('os').system('ls')")
        (True, False)
    """
    calls = set(_CALL.findall(answer)) <= _FUNCTIONS
    return bool(calls and _HARMLESS.fullmatch(answer) and not _ATTRIBUTE.search(answer))


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
