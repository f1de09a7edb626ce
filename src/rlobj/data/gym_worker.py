"""Makes problems of reasoning-gym, in a worker process.

Its fixed hash seed makes every dataset reproducible, and what a dataset prints is not shown.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import inspect
from typing import Any

TEST_SEED = 10**9
"""Distance between the seeds of training and test problems. Problem i has the seed `seed + i`."""


class Problems:
    """Makes the problems of a split."""

    def __init__(self) -> None:
        import reasoning_gym  # an extra
        from reasoning_gym.factory import DATASETS

        self._create, self._datasets = reasoning_gym.create_dataset, DATASETS

    def answer(self, name: str, settings: dict[str, Any], split: str) -> dict[str, Any]:
        """Return `{"problems": [...]}`, or `{"unknown": kind, "known": names}`, or an `error`.

        A test problem has another question than every training problem.
        """
        if name not in self._datasets:
            return {"unknown": name, "known": list(self._datasets)}
        parameters = list(inspect.signature(self._datasets[name][1]).parameters)
        for key in settings:
            if key not in parameters:
                return {"unknown": key, "known": parameters}
        try:
            made = self._made(name, settings)
            if split == "test":
                seed = {"seed": settings["seed"] + TEST_SEED}
                trained = {entry["question"] for entry in made}
                made = [
                    e for e in self._made(name, settings | seed) if e["question"] not in trained
                ]
            return {"problems": made}
        except Exception as error:  # of the dataset
            return {"error": f"{type(error).__name__}: {error}"}

    def _made(self, name: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
        dataset = self._create(name, **settings)
        return [dataset[index] for index in range(len(dataset))]
