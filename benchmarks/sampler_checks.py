"""Which faults inside the sampling engine stop a run, and how soon? Do healthy runs go on?

    python -m benchmarks.sampler_checks [--full] [--rounds SEEDS] [--out DIR]

Each run trains the embedded policy on its default task with learning rate 1e-6. After some sound
steps a fault is planted in the engine (see planted.py), behind the checksums of what it received.
One engine serves all runs of a configuration. The table has the steps after the fault until the run
stopped, one number a seed, or one if all seeds agree; '> N': it did not stop. 0: it did not start.
The gap is the mean |Δ log-prob| of the faulty steps. The JSON file has the messages.
`--full` takes 200 healthy steps, also at larger learning rates, weights that are one version old at
these rates, and the smallest factor on one tensor that log-probs alone find.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from textwrap import shorten
from typing import Any
from unittest.mock import patch

from benchmarks import harness, planted
from benchmarks.harness import ROOT, Table, note
from benchmarks.planted import LINEAR, NORM, SAMPLING

Run = dict[str, Any]
"""What came of a run: `steps` until it stopped (None: it did not), `message`, gaps."""

ENGINES = {"vllm": "colocated", "vllm-server": "server"}
DTYPES = ("float32", "bfloat16")
LIMIT = 20
"""Steps after which a fault counts as not found."""
FEW = 5
"""The same for faults that need not be found."""
PROBLEMS = 512
"""Problems of a run: those of the task take seconds to tokenize."""
FACTOR = "smallest factor on this layer found in 2 steps, live weights unread"
FACTORS = (1.001, 1.002, 1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
SMALL = 1e-6
"""Learning rate of the faults."""
LATE = "weights one version old, live weights unread"
"""A fault that takes longer to find in bfloat16."""
WORDS = 60
"""Most characters of a reason in the table."""
BEFORE = ROOT / "benchmarks" / "results" / "sampler-checks-before.json"
"""Rows that were measured at an earlier commit."""

WEIGHTS: dict[str, tuple[Any, ...]] = {
    "nothing is loaded": ("frozen",),
    "weights one version old": ("stale",),
    "tied head not refreshed": ("head",),
    "up_proj of two layers exchanged": ("exchanged", "layers"),
    "gate_proj and up_proj exchanged": ("exchanged", "gate and up"),
    "rows of one linear layer reversed": ("reversed", LINEAR),
    "one linear layer x1.01 before loading": ("scaled", LINEAR, 1.01),
    "one linear layer x1.01 after loading": ("scaled live", LINEAR, 1.01),
    "final norm x1.01 after loading": ("scaled live", NORM, 1.01),
}
CHANGED = {case: ("sampling", case) for case in SAMPLING}
RAW = {f"{case}, raw log-probs": ("sampling raw", case) for case in SAMPLING}
UNREAD = {
    f"{case}, live weights unread": (*fault, *("", 1.0)[len(fault) - 1 :], True)
    for case, fault in WEIGHTS.items()
    if "before" not in case and "reversed" not in case
}
"""The same faults, found by log-probs only."""
FAULTS = {**WEIGHTS, **CHANGED, **UNREAD, **RAW}
GATES = [*WEIGHTS, *CHANGED]
"""Faults that must stop a run within two steps."""


def measure(quick: bool, rounds: int) -> Table:
    """The table of all configurations."""
    healthy = [[SMALL, 20]] if quick else [[SMALL, 200], [1e-4, 200], [5e-4, 200]]
    size = {"seeds": list(range(rounds)), "healthy": healthy, "factors": not quick}
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        for dtype in DTYPES:
            note(f"{engine}, {dtype}")
            [found] = harness.ask(
                "benchmarks.sampler_checks", {"engine": engine, "dtype": dtype, **size}
            )
            place = {"engine": ENGINES[engine], "dtype": dtype, "commit": harness.commit()}
            rows += [{**place, **row} for row in found]
    return to_table(rows, size)


def to_table(rows: list[dict[str, Any]], settings: dict[str, Any]) -> Table:
    """Add what was found at the earlier commit to the rows."""
    key = ("engine", "dtype", "case")
    earlier = json.loads(BEFORE.read_text())["rows"] if BEFORE.exists() else []
    old = {tuple(row[name] for name in key): row["found"] for row in earlier}
    for row in rows:
        row["before"] = old.get(tuple(row[name] for name in key))
        reason = (row["message"] or "").partition(": ")[2]
        row["reason"] = shorten(reason, WORDS, placeholder=" …")
    columns = {
        "engine": ("engine", ""),
        "dtype": ("dtype", ""),
        "case": ("fault", ""),
        "before": ("before: steps", ""),
        "found": ("steps until the run stopped", ""),
        "gap": ("gap, nats", ".2g"),
        "commit": ("commit", ""),
        "reason": ("reason", ""),
    }
    return Table("sampler-checks", columns, rows, settings)


# What one process measures.


def answer(engine: str, dtype: str, seeds: list[int], healthy: Any, factors: bool) -> list[Any]:
    """The rows of one configuration, with one engine."""
    with opened(engine, dtype) as bench:
        rows = []
        for case, fault in FAULTS.items():
            limit = LIMIT if case in GATES else FEW
            rows.append(row(case, [bench.run(seed, fault, limit=limit) for seed in seeds], limit))
        for case, fault in CHANGED.items():
            runs = [bench.run(seed, fault, sound=0) for seed in seeds]
            rows.append(row(f"{case}, from the start", runs))
        if factors:
            rows.append({**row(FACTOR, []), "found": smallest(bench, seeds)})
        for rate, steps in healthy:
            size = {"limit": steps, "rate": rate, "prompts": 4}
            runs = [bench.run(seed, sound=0, **size) for seed in seeds]
            rows.append(row(f"none, learning rate {rate:g}, {steps} steps", runs, steps))
            if rate > SMALL:
                size["limit"] = 3 * LIMIT
                runs = [bench.run(seed, UNREAD[LATE], **size) for seed in seeds]
                rows.append(row(f"{LATE}, learning rate {rate:g}", runs, 3 * LIMIT))
        return rows


def row(case: str, runs: list[Run], limit: int = LIMIT) -> dict[str, Any]:
    """The runs of a case as a row; it shows the most frequent message."""
    shown = [f"> {limit}" if run["steps"] is None else str(run["steps"]) for run in runs]
    messages = Counter(run["message"] for run in runs if run["message"])
    gaps = [gap for run in runs for gap in run["gaps"]]
    found = {
        "case": case,
        "found": ", ".join(shown[:1] if len({*shown}) == 1 else shown),
        "message": messages.most_common(1)[0][0] if messages else None,
        "gap": sum(gaps) / len(gaps) if gaps else None,
        "runs": runs,
    }
    note(f"  {case}: {found['found']}  {found['gap'] or 0:.2g}  {found['message'] or ''}")
    return found


def smallest(bench: Bench, seeds: list[int]) -> str:
    """The smallest factor on the layer that every seed finds in two steps, from log-probs only."""
    for factor in FACTORS:
        fault = ("scaled live", LINEAR, factor, True)
        runs = (bench.run(seed, fault, limit=2) for seed in seeds)
        if all(run["steps"] is not None for run in runs):
            return f"{factor:g}"
    return f"> {FACTORS[-1]:g}"


class Bench:
    """Runs on one engine.

    Args:
        settings: settings of the runs, which name the engine.
        sampler: the engine in this process; None = a server.
        plant: plants a fault in the engine.
    """

    def __init__(self, settings: Any, sampler: Any, plant: Callable[..., Any]) -> None:
        self._settings, self._sampler, self._plant = settings, sampler, plant

    def run(
        self,
        seed: int,
        fault: tuple[Any, ...] = ("",),
        *,
        sound: int = 2,
        limit: int = LIMIT,
        rate: float = SMALL,
        prompts: int = 8,
    ) -> Run:
        """Train some sound steps, plant a fault, and train until the run stops.

        Args:
            seed: of the run.
            fault: arguments of `rlobj_plant`.
            sound: steps before the fault; 0 = it is there before the run starts.
            limit: steps with the fault.
            rate: learning rate.
            prompts: of a step; each has 8 responses.
        """
        from rlobj.base.errors import RunError
        from rlobj.data import load_problems
        from rlobj.training.loop.inputs import CallerInputs
        from rlobj.training.loop.opening import open_trainer
        from rlobj.training.loop.step import run_step

        config, done, gaps = configured(self._settings, seed, rate, prompts), 0, []
        problems = load_problems(config.data, "train")[:PROBLEMS]
        self._plant(*(fault if not sound else ("",)))
        rows = [{"prompt": each.prompt, "answer": each.answer} for each in problems]
        inputs = CallerInputs(data=rows, sampler=self._sampler)
        try:
            with (
                tempfile.TemporaryDirectory() as path,
                open_trainer(config, f"{path}/run", inputs) as trainer,
            ):
                for _ in range(sound):
                    run_step(trainer)
                if sound:
                    self._plant(*fault)
                for done in range(1, limit + 1):  # noqa: B007
                    run_step(trainer)
                    gaps.append(float(f"{trainer.metrics['sampler/logprob_gap']:.3g}"))
        except RunError as error:
            head = " ".join(" ".join(str(error).splitlines()[:2]).split())
            return {"steps": done, "message": head[:300], "gaps": gaps}
        finally:
            self._plant("")
        return {"steps": None, "message": None, "gaps": gaps}


def configured(settings: Any, seed: int = 0, rate: float = SMALL, prompts: int = 8) -> Any:
    """The configuration of a run: `rlobj train --preset stapo` with small steps."""
    from rlobj.config.layers import DEFAULT_TASK, PROFILES
    from rlobj.config.run_config import compose

    sizes = {
        "sampling": {"prompts_per_step": prompts, "group_size": 8},
        "training": {
            "steps": 10_000,
            "updates_per_step": 1,
            "learning_rate": rate,
            "warmup_steps": 0,
        },
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"samples_every": 0, "tables_every": 0, "records_mb": 0},
        "seed": seed,
    }
    layers = [("profile", PROFILES[DEFAULT_TASK]), ("benchmark", sizes), ("engine", settings)]
    return compose("stapo", layers)


@contextlib.contextmanager
def opened(engine: str, dtype: str, **arguments: Any) -> Iterator[Bench]:
    """One engine with `Planted` as its extension; the arguments are those of a server."""
    from rlobj.base.files import free_port
    from rlobj.config.layers import DEFAULT_TASK
    from rlobj.models.embedded import embedded_policy
    from rlobj.models.policy import load_policy
    from rlobj.models.vllm_sampler import vllm_sampler
    from rlobj.samplers.vllm import Server, colocated, server
    from rlobj.samplers.vllm.connection import Connection

    folder = str(embedded_policy(DEFAULT_TASK))
    settings: dict[str, Any] = {"model": {"dtype": dtype}, "sampling": {"engine": engine}}
    if engine == "vllm":
        config = configured(settings)
        policy = load_policy(config.model, config.data, folder, None)
        with patch.object(colocated, "EXTENSION", planted.EXTENSION):
            sampler: Any = vllm_sampler(config, folder, policy.tokenizer, policy.model)
        with contextlib.closing(sampler):

            def plant(*fault: Any) -> None:
                sampler._engine.collective_rpc("rlobj_plant", args=fault)

            yield Bench(settings, sampler, plant)
        return
    with patch.object(server, "EXTENSION", planted.EXTENSION):
        started = Server(folder, port=free_port(), dtype=dtype, arguments=arguments)
    with patch.dict(os.environ, PYTHONPATH=str(ROOT)), started:  # its workers import `planted`
        started.wait(600)
        settings["sampling"]["server"] = {"url": started.url}
        connection = Connection(started.url, 60.0)
        yield Bench(settings, None, lambda *fault: connection.call("rlobj_plant", *fault))


if __name__ == "__main__":
    harness.main(measure, answer)
