"""Conversations of four turns beside one turn of as many tokens, slow tools, and calls of tools.

An observation of 8 tokens follows a turn. Each arm runs once in each round, one after another, in a
process with one thread; the server's engine is a process of its own. CPU seconds are those of all
processes; `own` in the JSON file are those of the sampler's. 'over': the median over the rounds of
the wall time, over that of one turn drawn by `Sampler.sample`. The slow tool sleeps for a time with
p50 10 ms and p99 2 s (lognormal, at most 5 s, the same in each arm and round). '90%': seconds until
so many conversations had ended. 'least': the longest time that a conversation's tool sleeps in all;
for the engine that waits for all conversations, the longest sleep of each turn, summed.

Predicted before the first run. Four turns instead of one, wall: transformers 1.2 times the time
(each turn computes the whole conversation again), vLLM in the process 1.3 (four times the requests,
prefixes from the cache), a server 1.5 (four times the HTTP requests). A slow tool: transformers
waits in each turn for the slowest tool, so it adds the four largest sleeps, 15 to 20 s; vLLM ends
at most as late as the conversation that sleeps longest, and 90% of its conversations end less than
1 s later than with an instant tool. A function in one worker process: 2,000 calls/s; the calculator
the same; `python`, which starts two processes for each call: 10 calls/s on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

from benchmarks.harness import Table, ask, main, medians, note, of_tests, ratio

ENGINES = ("transformers", "vllm", "vllm-server")
TURNS = 4
OBSERVED = "12345678"
LONGEST = 5.0
"""Limit on a sleep, in seconds."""


def measure(quick: bool, rounds: int) -> Table:
    """All engines, and the tools."""
    size = {"problems": 32, "count": 4 if quick else 8, "size": 32 if quick else 64}
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        note(engine)
        [found] = ask("benchmarks.conversations", {"engine": engine, "rounds": rounds, **size})
        rows += summary(found)
    note("tools")
    rows += ask("benchmarks.conversations", {"calls": 200 if quick else 1000, "rounds": rounds})[0]
    columns = {
        "engine": ("engine or tool", ""),
        "arm": ("what", ""),
        "rate": ("tokens or calls / s", ",.0f"),
        "cpu_rate": ("/ CPU s", ",.0f"),
        "over": ("over", ".2f"),
        "most": ("90% after, s", ".2f"),
        "wall": ("all after, s", ".2f"),
        "least": ("least, s", ".2f"),
        "load": ("load", ".1f"),
    }
    settings = {**size, "turns": TURNS, "rounds": rounds}
    return Table("conversations", columns, rows, settings, ("engine", "arm"))


def summary(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an engine: medians over the rounds of each arm."""
    rows, engine = [], found.pop("engine")
    for arm, rounds in found.items():
        base = found["one turn"]
        row: dict[str, Any] = {"engine": engine, "arm": arm, "rounds": rounds} | medians(rounds)
        row["rate"] = median(each["tokens"] / each["wall"] for each in rounds)
        row["cpu_rate"] = median(each["tokens"] / each["cpu"] for each in rounds)
        rows.append({**row, "over": ratio(rounds, base, "wall")})
    return rows


def answer(**question: Any) -> Any:
    """What one engine, or the tools, do in this process."""
    return rollouts(**question) if "engine" in question else tools(**question)


# Rollouts.


def slept(problem: int, number: int, turn: int) -> float:
    """Seconds that a slow tool sleeps: lognormal, p50 0.01 and p99 2."""
    from rlobj.samplers.types import derive_seed

    chance = (derive_seed("sleep", problem, number, turn) + 0.5) / 2**62
    sigma = math.log(2 / 0.01) / NormalDist().inv_cdf(0.99)
    return min(LONGEST, 0.01 * math.exp(sigma * NormalDist().inv_cdf(chance)))


@dataclass
class Others:
    """Makes the environments of a call, and knows when they ended."""

    turns: int
    slow: bool
    ends: list[float] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def __call__(self) -> Answers:
        return Answers(self)


class Answers:
    """Says `OBSERVED` after each turn but the last."""

    def __init__(self, others: Others) -> None:
        self.others, self.turn, self.place = others, 0, (0, 0)

    async def reset(self, problem: Any) -> None:
        """Begin with the problem's prompt."""
        number = self.others.numbers[problem.id] = self.others.numbers.get(problem.id, -1) + 1
        self.place = int(problem.id), number

    async def step(self, messages: Any) -> Any:
        """Sleep if it is slow, and answer."""
        from rlobj.conversations import Turn

        if self.others.slow:
            await asyncio.sleep(slept(*self.place, self.turn))
        self.turn += 1
        done = self.turn == self.others.turns
        if done:
            self.others.ends.append(time.monotonic())
        return Turn(OBSERVED, done=done)


class Cut:
    """A sampler whose turns end by themselves after so many tokens."""

    def __init__(self, sampler: Any, size: int) -> None:
        self.inner, self.size = sampler, size
        self.context = sampler.context

    def stream(self, feed: Any, settings: Any, done: Callable[..., None]) -> None:
        """As the sampler, with shorter turns."""

        def ended(request: Any, sample: Any) -> None:
            assert len(sample.tokens) == self.size
            sample.finish = "stop"
            done(request, sample)

        self.inner.stream(Short(feed, self.size), settings, ended)


class Short:
    """A feed whose requests have so many tokens."""

    def __init__(self, feed: Any, size: int) -> None:
        self.feed, self.size, self.sources = feed, size, feed.sources

    def take(self, **settings: bool) -> list[Any] | None:
        """As the feed's."""
        taken = self.feed.take(**settings)
        return taken and [replace(request, max_tokens=self.size) for request in taken]


def rollouts(engine: str, rounds: int, problems: int, count: int, size: int) -> dict[str, Any]:
    """The arms of an engine, one after another in each round."""
    arms = {"one turn": (0, False), "a conversation of one turn": (1, False)}
    arms |= {"instant tool": (TURNS, False), "slow tool": (TURNS, True)}
    result: dict[str, Any] = {"engine": engine, **{arm: [] for arm in arms}}
    with opened(engine) as sampler:
        hold(sampler, problems, count, size, (TURNS, False))
        for _ in range(rounds):
            for arm, kind in arms.items():
                before, own = cpu_seconds(), time.process_time()
                found = hold(sampler, problems, count, size, kind)
                found |= {"cpu": cpu_seconds() - before, "own": time.process_time() - own}
                found["load"] = os.getloadavg()[0]
                if arm == "slow tool":
                    found["least"] = least(problems, count, together=engine == "transformers")
                result[arm].append(found)
    return result


def hold(
    sampler: Any, problems: int, count: int, size: int, kind: tuple[int, bool]
) -> dict[str, float]:
    """One rollout of `kind`: the turns of its conversations, 0 = none, and whether tools are slow.

    `size` is a quarter of the policy's tokens of each response.
    """
    from rlobj.conversations import EnvironmentSettings
    from rlobj.conversations.opening import open_conversations
    from rlobj.data import Problem
    from rlobj.samplers import SamplingSettings

    tokenizer, whole, (turns, slow) = sampler.tokenizer, TURNS * size, kind
    asked = [Problem(str(n), f"{n % 10}+{n // 10}=", "") for n in range(problems)]
    given: dict[str, Any] = {"count": count, "seeds": range(problems)}
    others, began = Others(turns, slow), time.monotonic()
    if turns:
        shorter: Any = Cut(sampler, whole // turns)
        with open_conversations(
            *(EnvironmentSettings(target="given"), shorter, tokenizer, None),
            lambda problem: problem.prompt,
            environment=others,
        ) as conversations:
            assert conversations is not None
            settings = SamplingSettings(max_tokens=whole + 1)
            found = conversations.sample(asked, settings=settings, **given)
    else:
        prompts = [tokenizer(each.prompt).input_ids for each in asked]
        found = sampler.sample(prompts, settings=SamplingSettings(max_tokens=whole), **given)
    wall = time.monotonic() - began
    tokens = sum(len(sample.tokens) for group in found for sample in group)
    assert tokens == problems * count * whole
    ends = sorted(others.ends)
    most = {"most": ends[int(0.9 * len(ends))] - began} if turns else {}
    return {"wall": wall, "tokens": tokens, **most}


def least(problems: int, count: int, together: bool) -> float:
    """Seconds that an engine waits for tools at least; `together`: all wait for the slowest."""
    sleeps = [
        [slept(problem, number, turn) for turn in range(TURNS)]
        for problem in range(problems)
        for number in range(count)
    ]
    if together:
        return sum(map(max, zip(*sleeps, strict=True)))
    return max(map(sum, sleeps))


def cpu_seconds() -> float:
    """CPU seconds of this process and all below it, also of those that have ended."""
    import psutil

    here = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (here, *here.children(recursive=True)))


@contextlib.contextmanager
def opened(engine: str) -> Iterator[Any]:
    """A sampler of a tiny policy that never ends a response."""
    import torch

    from benchmarks.embedded_policy import build_tokenizer
    from rlobj.base.addresses import free_port
    from rlobj.samplers.transformers import TransformersSampler
    from rlobj.samplers.vllm import (
        Server,
        ServerSettings,
        VllmSampler,
        VllmServerSampler,
        VllmSettings,
    )

    save_policy = of_tests("vllm_tools").save_policy
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model, tokenizer = save_policy(Path(folder), tied=True), build_tokenizer()
        tokenizer.eos_token = model.generation_config.eos_token_id = None
        given: dict[str, Any] = {"eos": []}
        if engine == "transformers":
            sampler: Any = TransformersSampler(model, tokenizer)
        elif engine == "vllm":
            given |= {"settings": VllmSettings(), "dtype": torch.float32}
            sampler = VllmSampler(folder, tokenizer, **given)
        else:
            started = stack.enter_context(
                Server(folder, port=free_port(), arguments={"dtype": "float32"})
            )
            started.wait()
            given["model_config"] = model.config
            sampler = VllmServerSampler(ServerSettings(url=started.url), tokenizer, **given)
        with contextlib.closing(sampler):
            yield sampler


# Tools.

FUNCTION = '''
def add(a: int, b: int) -> str:
    """Add two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    return str(a + b)
'''


def tools(calls: int, rounds: int) -> list[dict[str, Any]]:
    """Calls of tools a second, all asked for at once, after one that starts each process."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some_tools.py")
        path.write_text(FUNCTION, encoding="utf-8")
        asked: dict[str, tuple[str, dict[str, Any], int]] = {
            "function": (f"{path}:add", {"a": 1, "b": 2}, calls),
            "calculator": ("calculator", {"expression": "37*46"}, calls),
            "python": ("python", {"code": "print(37 * 46)"}, calls // 10),
        }
        for name, (tool, arguments, number) in asked.items():
            for workers in (1, 4):
                found = [called(tool, arguments, number, workers) for _ in range(rounds)]
                row = {"engine": name, "arm": f"workers: {workers}", "rounds": found}
                rows.append(row | medians(found))
    return rows


def called(tool: str, arguments: dict[str, Any], number: int, workers: int) -> dict[str, float]:
    """The rates of calls of a tool."""
    from rlobj.conversations import EnvironmentSettings
    from rlobj.conversations.pool import ToolPool

    async def many(pool: ToolPool, count: int) -> None:
        name = tool.rpartition(":")[2]
        found = await asyncio.gather(*(pool.call(name, arguments) for _ in range(count)))
        assert not any(use.error for _, use in found), found[0]

    async def measured(pool: ToolPool) -> dict[str, float]:
        await many(pool, 4 * workers)
        before, began = cpu_seconds(), time.monotonic()
        await many(pool, number)
        wall, cpu = time.monotonic() - began, cpu_seconds() - before
        return {"rate": number / wall, "cpu_rate": number / cpu, "wall": wall}

    with ToolPool(EnvironmentSettings(tools=(tool,), workers=workers)) as pool:
        return asyncio.run(measured(pool)) | {"load": os.getloadavg()[0]}


if __name__ == "__main__":
    main(measure, answer)
