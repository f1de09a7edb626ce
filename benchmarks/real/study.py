"""Seven objectives train SmolLM2-135M-Instruct on sums of two-digit numbers, on a CPU.

    python -m benchmarks.real.study --runs DIR [--at-once 2]

A run takes 10 to 15 minutes of one core and 3 GiB. A run that is finished in DIR is not repeated.
`python -m benchmarks.real.report` makes a table and a picture from DIR.
"""

from __future__ import annotations

import itertools
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.harness import parser
from benchmarks.real_model import real_model
from rlobj import Objective, load_preset

POSITIVE = "(advantage > 0)"
STAPO = f"{POSITIVE} & (prob < 0.002) & entropy.bottom(0.8)"
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("grpo", "dapo-loss", "stapo", "stapo-v4", "stare", "lp-reg")},
    "random": ("stapo", {"drop": f"{POSITIVE}.sample(({STAPO}).count())"}),
}
"""Name -> its preset, of which only the objective is used, and the fields that it replaces.
`random` drops as many tokens as STAPO's rule, any with a positive advantage."""
SEEDS, STEPS, EVERY = 3, 30, 5
PROBLEMS, HELD_OUT = 2000, 0.05
SETTINGS = {
    "data.template": "3 + 14 = 17\n25 + 36 = 61\n{prompt} =",
    "data.test_fraction": HELD_OUT,
    "model.chat_template": False,
    "sampling.prompts_per_step": 16,
    "sampling.group_size": 8,
    "sampling.max_tokens": 6,
    "training.steps": STEPS,
    "training.updates_per_step": 2,
    "training.learning_rate": 1e-5,
    "training.warmup_steps": 5,
    "training.threads": 1,
    "evaluation.every": EVERY,
    "evaluation.samples": 4,
    "checkpoint.every": 0,
    "checkpoint.best": False,
    "output.tables_every": EVERY,
}


def main() -> None:
    made = parser(__doc__, "not used", runs=True)
    made.add_argument("--at-once", type=int, default=2, help="runs at one time")
    options = made.parse_args()
    model = real_model()  # before two runs look for it
    driver.make_study(
        [
            driver.Job(
                folder(options.runs, arm, seed),
                partial(train, arm, seed, model),
                ("config.resolved.yaml", "metrics.jsonl", "records", "tables", driver.LOG),
            )
            for seed in range(SEEDS)
            for arm in ARMS
        ],
        options.at_once,
    )


def folder(runs: Path, arm: str, seed: int) -> Path:
    """The folder of a run."""
    return runs / arm / str(seed)


def objective(arm: str) -> Objective:
    """The objective of an arm."""
    preset, changes = ARMS[arm]
    return load_preset(preset).objective.but(**changes)


def sums() -> list[dict[str, str]]:
    """2,000 different sums of two numbers from 10 to 99."""
    pairs = list(itertools.product(range(10, 100), repeat=2))
    chosen = random.Random(0).sample(pairs, PROBLEMS)
    return [{"prompt": f"{one} + {other}", "answer": str(one + other)} for one, other in chosen]


def first_number(response: str, answer: str, **_: Any) -> float:
    """1 if the first whole number of the response is the answer."""
    number = re.search(r"\d+", response)
    return float(number is not None and number[0] == answer)


def train(arm: str, seed: int, model: Path, out: Path) -> dict[str, str]:
    """Train one arm."""
    import rlobj

    rlobj.train(
        objective(arm),
        model=str(model),
        data=sums(),
        reward=first_number,
        out=out,
        settings={**SETTINGS, "seed": seed},
    )
    return {}


if __name__ == "__main__":
    main()
