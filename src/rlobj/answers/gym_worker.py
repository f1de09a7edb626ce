r"""reasoning-gym in a process of its own: it makes problems and scores answers.

    gym_worker.py problems               a request on stdin -> problems on stdout, as JSON
    gym_worker.py DESCRIPTOR DEADLINE MEMORY      scores; the messages are those of `worker`

    in   [name, settings, entry, answer]          entry: question, answer and metadata
    out  [score | null, reason]                   null = undecided

What else a dataset writes to stdout goes to stderr.

A fixed hash seed in the environment makes every dataset reproducible. Some scorers evaluate the
answer as Python code; they see only answers that `refusal` accepts.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj

TEST_SEED = 10**9
"""Distance between the seeds of training and test problems. Problem i has the seed `seed + i`."""

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_HARMLESS = re.compile(r"[\w\s,.'\"\[\]()+*/^-]*")
_CALL = re.compile(r"(\b\w+|[\])'\"])\s*\(")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]|__")
_FUNCTIONS = {"sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt"}


class Scorer:
    """Scores answers by the scorers of their datasets."""

    def __init__(self, memory: int) -> None:
        import reasoning_gym  # pyright: ignore[reportMissingImports]  # an extra

        self._open = functools.lru_cache(
            lambda name, settings: reasoning_gym.create_dataset(name, **json.loads(settings))
        )

    def decide(
        self, name: str, settings: Any, entry: dict[str, Any], answer: str | None
    ) -> tuple[float, str]:
        """Return the score of an answer, in [0, 1], and the reason."""
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


def problems(name: str, settings: dict[str, Any], split: str) -> dict[str, Any]:
    """Return `{"problems": [...]}`, or `{"unknown": kind, "known": names}`, or `{"error": text}`.

    A test problem has another question than every training problem.
    """
    from reasoning_gym.factory import DATASETS  # pyright: ignore[reportMissingImports]

    if name not in DATASETS:
        return {"unknown": name, "known": list(DATASETS)}
    known = list(inspect.signature(DATASETS[name][1]).parameters)
    for key in settings:
        if key not in known:
            return {"unknown": key, "known": known}
    try:
        made = _made(name, settings)
        if split == "test":
            seed = {"seed": settings["seed"] + TEST_SEED}
            trained = {entry["question"] for entry in made}
            made = [e for e in _made(name, settings | seed) if e["question"] not in trained]
        return {"problems": made}
    except Exception as error:  # of the dataset
        return {"error": f"{type(error).__name__}: {error}"}


def _made(name: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    import reasoning_gym  # pyright: ignore[reportMissingImports]  # an extra

    dataset = reasoning_gym.create_dataset(name, **settings)
    return [dataset[index] for index in range(len(dataset))]


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    if sys.argv[1] == "problems":
        with open(os.dup(1), "w", encoding="utf-8") as out:
            os.dup2(2, 1)
            json.dump(problems(**json.load(sys.stdin)), out)
    else:
        from rlobj.answers.worker import main

        main(Scorer)
