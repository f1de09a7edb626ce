"""Runs whose rollouts wait for a step, are one step ahead, or go on all the time.

`smollm2`: SmolLM2-135M in float32, a server of one thread and a trainer of one thread on two cores,
4 prompts of 4 responses a step; lengths are lognormal (median 50, σ 0.8) and at most 160 tokens,
the same in each arm. `tool`: the same tokens in turns of a conversation, between which a tool
sleeps for a lognormal time, 0.1 to 2 s. The first step is not counted. 'waits': the share of the
time in which the trainer has nothing to train on; 'stale': the mean over trained tokens of the
steps that their weights are old, and 'most' the largest; 'drawn again': the share of the groups
that were too old.

`simulated` rows are PREDICTED, by a discrete simulation with ticks of half a second: a model of
7.6 billion weights on GPUs of 3.35 TB/s and 990 Tflop/s (bfloat16). An engine draws a token for
each of its n sequences, at most 128, in 8 ms + n · 0.16 ms; a trainer takes 6,500 tokens a second
and GPU, a sync 2 s, and the keys of what is in flight are computed again at 33,000 tokens a second.
A step has 64 responses a GPU, in groups of 8. Depth 0 draws and trains on all GPUs; the other arms
divide them, at the best of the shares 1/4, 3/8, 1/2, 5/8 and 3/4. Lengths:

    short   lognormal, median 2,000, σ 0.8, at most 16,384
    long    lognormal, median 5,700, σ 1.0, at most 40,960: the last tenth takes half of a
            synchronous rollout, as in the workloads of Seer (arXiv:2511.14617)
    tail    lognormal, median 1,245, σ 0.8, at most 24,000: the last hundredth ends after three
            times the time of the others, as Applied Compute report (2025)

Predicted before the first run, for SmolLM2: depth 1 1.4 times the tokens a second of depth 0 (the
rollout takes about as long as the training), continuous 1.6 times, since the longest response does
not hold the others. Measured: 1.35 and 1.48. The training takes two thirds of a step here, so
neither arm lets the trainer wait, and they differ by the lengths that three steps happen to have.
For comparison, verl reports 1.7 to 2.7 times for 32 to 128 GPUs, its synchronous arm against one
with partial rollouts (docs/advance/fully_async.md, 7B, 28k tokens).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.harness import Table, asked, main, medians, ratio
from benchmarks.made_up import QUIET
from benchmarks.real_model import real_model

MEDIAN, SIGMA, LONGEST = 50, 0.8, 160
"""Of the lengths of responses, in tokens."""
TURNS = 3
"""Of a conversation with a tool."""
ARMS: Mapping[str, Mapping[str, Any]] = {
    "depth 0": {},
    "depth 1": {"sampling.async_depth": 1},
    "continuous": {"sampling.schedule": "continuous"},
}
"""The settings of each arm."""


def measure(quick: bool, rounds: int) -> Table:
    """SmolLM2 with and without a tool, and the simulation."""
    steps = 3 if quick else 6
    questions = {
        (work, arm): {"arm": arm, "tool": work == "tool", "steps": steps}
        for work in ("smollm2", "tool")
        for arm in ARMS
    }
    found = asked("benchmarks.rollouts", questions, rounds)
    rows: list[dict[str, Any]] = []
    for (work, arm), runs in found.items():
        over = ratio(runs, found[work, "depth 0"], "rate")
        row = {"work": work, "arm": arm, "rounds": runs} | medians(runs)
        rows.append({**row, "over": over})
    for gpus in (8, 64):
        for name, lengths in LENGTHS.items():
            arms = {arm: best(gpus, lengths, arm, 10 if quick else 40) for arm in ARMS}
            for arm, row in arms.items():
                over = row["rate"] / arms["depth 0"]["rate"]
                rows.append({"work": f"simulated: {gpus} GPUs, {name}", "arm": arm, **row})
                rows[-1]["over"] = over
    columns = {
        "work": ("work", ""),
        "arm": ("rollouts", ""),
        "rate": ("tokens / s", ",.0f"),
        "over": ("over depth 0", ".2f"),
        "waits": ("waits", ".0%"),
        "stale": ("stale", ".2f"),
        "most": ("most", ".0f"),
        "again": ("drawn again", ".1%"),
        "share": ("GPUs that draw", ".0%"),
        "load": ("load", ".1f"),
    }
    return Table("rollouts", columns, rows, {"steps": steps, "rounds": rounds}, ("work", "arm"))


# SmolLM2.


def lognormal(chance: float) -> float:
    """A length in tokens, before it is cut."""
    return MEDIAN * math.exp(SIGMA * NormalDist().inv_cdf(chance))


class Lengths:
    """A sampler whose responses have lognormal lengths, each by its seed, in so many turns."""

    def __init__(self, sampler: Any, turns: int) -> None:
        self.inner, self.turns = sampler, turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def length(self, seed: int) -> int:
        """Tokens of a response or, with several turns, of each turn."""
        chance = random.Random(seed).uniform(1e-9, 1 - 1e-9)
        return max(1, round(min(lognormal(chance), LONGEST) / self.turns))

    def stream(self, feed: Any, settings: Any, done: Any) -> None:
        """As the sampler's, with other lengths."""

        def ended(request: Any, sample: Any) -> None:
            done(request, replace(sample, finish="stop"))

        self.inner.stream(Short(feed, self), settings, ended)

    def sample(
        self, prompts: Any, *, count: int, settings: Any, seeds: Any, done: Any = None
    ) -> Any:
        """As the sampler's, by `stream`."""
        from rlobj.samplers import Feed, Request, derive_seed
        from rlobj.samplers.response import packed

        groups: list[list[Any]] = [[None] * count for _ in prompts]
        requests = [
            Request((i, j), (i, j), packed("i", prompt), derive_seed(seeds[i], j), 1)
            for i, prompt in enumerate(prompts)
            for j in range(count)
        ]

        def arrived(request: Any, sample: Any) -> None:
            index, place = request.key
            groups[index][place] = sample
            if done is not None and all(each is not None for each in groups[index]):
                done(index, groups[index])

        self.stream(Feed.whole(requests), settings, arrived)
        return groups


class Short:
    """A feed whose requests have the lengths of a sampler."""

    def __init__(self, feed: Any, sampler: Lengths) -> None:
        self.feed, self.sampler = feed, sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.feed, name)

    def take(self, **settings: bool) -> list[Any] | None:
        """As the feed's."""
        taken = self.feed.take(**settings)
        length = self.sampler.length
        return taken and [replace(each, max_tokens=length(each.seed)) for each in taken]


class SlowTool:
    """Answers each turn but the last after a lognormal time, 0.1 to 2 s."""

    def __init__(self) -> None:
        self.turn = 0

    async def reset(self, problem: Any) -> None:
        """Begin with the problem's prompt."""

    async def step(self, messages: Any) -> Any:
        """Sleep, and answer."""
        from rlobj.conversations import Turn

        self.turn += 1
        if self.turn < TURNS:
            seconds = 0.45 * math.exp(0.8 * random.gauss(0, 1))
            await asyncio.sleep(min(max(seconds, 0.1), 2.0))
        return Turn("12345678", done=self.turn == TURNS)


def answer(arm: str, tool: bool, steps: int) -> dict[str, float]:
    """One run of an arm; the first step is not counted."""
    import rlobj
    from rlobj.training import Callback

    seen: list[dict[str, float]] = []
    ends: list[float] = []

    class Watch(Callback):
        """Keeps the metrics of each step, and when it ended."""

        def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
            """Keep them."""
            seen.append({**metrics})
            ends.append(time.monotonic())

    def reward(response: str, answer: str, **_: Any) -> float:
        return len(response) % 7 / 7  # hardly two of a group are equal

    with tempfile.TemporaryDirectory() as folder, served(str(real_model())) as sampler:
        rlobj.train(
            "grpo",
            model=str(real_model()),
            data=[{"prompt": f"{n} + {n + 1} =", "answer": str(2 * n + 1)} for n in range(64)],
            reward=reward,
            sampler=Lengths(sampler, TURNS if tool else 1),
            out=Path(folder, "run"),
            settings={
                "model.chat_template": False,
                "model.dtype": "float32",
                "data.template": "{prompt}",
                "sampling.prompts_per_step": 4,
                "sampling.group_size": 4,
                "sampling.max_tokens": LONGEST + TURNS,
                "training.steps": steps + 1,
                "training.updates_per_step": 1,
                "training.learning_rate": 1e-6,
                "training.threads": 1,
                "objective.mismatch": {"kind": "truncate"},
                **ARMS[arm],
                **QUIET,
            },
            callbacks=[Watch()],
            environment=SlowTool if tool else None,
        )
    tokens = sum(metrics["tokens/sampled"] for metrics in seen[1:])
    waited = sum(metrics["time/waiting"] for metrics in seen[1:])
    stale = [metrics.get("rollout/staleness/mean", 0.0) for metrics in seen[1:]]
    most = [metrics.get("rollout/staleness/max", 0.0) for metrics in seen[1:]]
    seconds = ends[-1] - ends[0]
    return {
        "rate": tokens / seconds,
        "waits": waited / seconds,
        "stale": sum(stale) / steps,
        "most": max(most),
        "load": os.getloadavg()[0],
    }


@contextlib.contextmanager
def served(model: str) -> Iterator[Any]:
    """A sampler of a server of its own, that never ends a response."""
    from transformers import AutoConfig, AutoTokenizer

    from rlobj.base.addresses import free_port
    from rlobj.samplers.vllm import Server, ServerSettings, VllmServerSampler

    arguments = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 30, "max_model_len": 512}
    with Server(model, port=free_port(), arguments=arguments) as server:
        server.wait()
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        config = AutoConfig.from_pretrained(model)
        settings = ServerSettings(url=server.url, timeout=300)
        sampler = VllmServerSampler(settings, tokenizer, eos=[], model_config=config)
        with contextlib.closing(sampler):
            yield sampler


# The simulation.

LENGTHS = {"short": (2000, 0.8, 16384), "long": (5700, 1.0, 40960), "tail": (1245, 0.8, 24000)}
"""Median, σ and largest length in tokens."""
TICK, GROUP, AT_ONCE = 0.5, 8, 128
"""Seconds; responses of a group; sequences that an engine draws at once."""
FIXED, EACH = 8e-3, 1.6e-4
"""Seconds of a token of all sequences of an engine: FIXED + EACH · sequences."""
MAX_STALENESS = 4
"""Steps; an older group is drawn again."""
TRAINED, PREFILLED, SYNC = 6500.0, 33000.0, 2.0
"""Tokens a second and GPU; seconds of a sync."""


class Engines:
    """Engines that draw, each what it was given, first come, first served.

    A request has its group, its tokens that are left and drawn, the version of its oldest token and
    the sum of the versions of its tokens.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.left, self.drawn, self.versions = np.zeros(0), np.zeros(0), np.zeros(0)
        self.group, self.oldest = np.zeros(0, int), np.zeros(0, int)
        self.engine = np.zeros(0, int)

    def add(self, lengths: np.ndarray, group: int, version: int) -> None:
        """Give the requests of a group to the engines that have the fewest."""
        load = np.bincount(self.engine, minlength=self.count)
        for length in lengths:
            engine = int(load.argmin())
            load[engine] += 1
            self.engine = np.append(self.engine, engine)
            self.left = np.append(self.left, length)
        zeros = np.zeros(len(lengths))
        self.drawn, self.versions = np.append(self.drawn, zeros), np.append(self.versions, zeros)
        self.group = np.append(self.group, [group] * len(lengths))
        self.oldest = np.append(self.oldest, [-1] * len(lengths))

    def advance(self, version: int) -> np.ndarray:
        """Draw for a tick; of what ended [4, E]: group, tokens, sum of versions, oldest."""
        order = np.lexsort((np.arange(len(self.engine)), self.engine))
        counts = np.bincount(self.engine, minlength=self.count)
        rank = np.empty(len(order), int)
        rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        running = rank < AT_ONCE
        speed = TICK / (FIXED + EACH * np.minimum(counts, AT_ONCE))
        tokens = np.where(running, np.minimum(speed[self.engine], self.left), 0.0)
        self.oldest = np.where(running & (self.oldest < 0), version, self.oldest)
        self.left, self.drawn = self.left - tokens, self.drawn + tokens
        self.versions = self.versions + tokens * version
        ended = self.left <= 1e-9
        found = np.stack([self.group, self.drawn, self.versions, self.oldest])[:, ended]
        for name in ("left", "drawn", "versions", "group", "oldest", "engine"):
            setattr(self, name, getattr(self, name)[~ended])
        return found


def best(gpus: int, lengths: tuple[float, float, int], arm: str, steps: int) -> dict[str, float]:
    """The fastest of the shares of GPUs that draw."""
    if arm == "depth 0":
        return simulated(gpus, gpus, gpus, lengths, arm, steps)
    shares = [gpus * eighths // 8 for eighths in (2, 3, 4, 5, 6)]
    rows = [simulated(gpus, n, gpus - n, lengths, arm, steps) | {"share": n / gpus} for n in shares]
    return max(rows, key=lambda row: row["rate"])


def simulated(
    gpus: int,
    drawing: int,
    training: int,
    lengths: tuple[float, float, int],
    arm: str,
    steps: int,
) -> dict[str, float]:
    """Some steps, of which the first quarter is not counted."""
    numbers = np.random.default_rng(0)
    median, sigma, longest = lengths
    prompts, groups = 8 * gpus, iter(range(10**9))
    engines = Engines(drawing)

    def start(count: int, version: int) -> None:
        for _ in range(count):
            drawn = median * np.exp(sigma * numbers.standard_normal(GROUP))
            engines.add(np.clip(drawn, 1, longest), next(groups), version)

    now, version, until = 0.0, 0, -1.0
    parts: dict[int, list[np.ndarray]] = {}
    complete: list[np.ndarray] = []
    history: list[tuple[float, float, float, float, float]] = []
    waited = since = 0.0
    again = 0
    together = arm != "continuous"  # a rollout is drawn as a whole, from one version
    start(prompts if together else 2 * prompts, 0)
    drawn_from = 0
    while len(history) < steps:
        now += TICK
        if not (arm == "depth 0" and until > now):
            for column in engines.advance(drawn_from if together else version).T:
                rows = parts.setdefault(int(column[0]), [])
                rows.append(column)
                if len(rows) == GROUP:
                    complete.append(np.stack(parts.pop(int(column[0]))))
        if until > now:
            continue
        if until > 0:  # a step has ended
            now += SYNC
            if not together:
                now += engines.drawn.sum() / drawing / PREFILLED
            version, until, since = version + 1, -1.0, now
        if not together:
            old = [rows for rows in complete if version - rows[:, 3].min() > MAX_STALENESS]
            complete = [rows for rows in complete if version - rows[:, 3].min() <= MAX_STALENESS]
            start(len(old), version)
            again += len(old)
        if len(complete) < prompts or (together and len(engines.left)):
            continue
        taken, complete = np.concatenate(complete[:prompts]), complete[prompts:]
        waited += now - since
        tokens = taken[:, 1].sum()
        stale = version - taken[:, 2].sum() / tokens
        history.append((now, tokens, waited, stale, version - taken[:, 3].min()))
        until = now + tokens / training / TRAINED
        start(prompts, version)
        drawn_from = version if arm == "depth 1" else version + 1
    rows = np.array(history[steps // 4 :])
    seconds = rows[-1, 0] - rows[0, 0]
    return {
        "rate": rows[:-1, 1].sum() / seconds,
        "waits": (rows[-1, 2] - rows[0, 2]) / seconds,
        "stale": abs(float(rows[:, 3].mean())),
        "most": float(rows[:, 4].max()),
        "again": again / (prompts * steps + again),
    }


if __name__ == "__main__":
    main(measure, answer)
