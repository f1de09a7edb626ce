"""Rollouts of environments of verifiers, which asks the server of `rlobj serve` for each turn.

problem  ->  task  ->  episode of verifiers  ->  trace  ->  rows
"""

# pyright: reportMissingImports=false

import asyncio
import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError, RunError, Setting
from rlobj.base.threads import DaemonThreads
from rlobj.conversations.driving import Conversations
from rlobj.conversations.environment import checked_reward
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.conversations.traces import TraceRow, plain_traces, trace_rows, turn_numbers
from rlobj.data import Problem
from rlobj.data.verifiers import tasks_of
from rlobj.samplers import Done, Response, Sampler, SamplingSettings
from rlobj.samplers.response import ToolUse, TurnRecord, packed
from rlobj.samplers.vllm import VllmServerSampler
from rlobj.samplers.vllm.auth import find_key
from rlobj.workers.pool import Failures

_CONCURRENT = 256
"""Largest number of episodes at a time."""


class VerifiersRollouts(Conversations):
    """Has verifiers hold conversations.

    Args:
        environment: of verifiers.
        sampler: of a server.
        tokenizer: the policy's.
        settings: how many failures end the run; the environment has its own limits.

    Raises:
        ConfigError: the sampler is another one.
    """

    syncs_in_flight = False

    def __init__(
        self, environment: Any, sampler: Sampler, tokenizer: Any, settings: EnvironmentSettings
    ) -> None:
        if not isinstance(sampler, VllmServerSampler):
            server = Setting("sampling.engine", "vllm-server")
            raise ConfigError("verifiers asks a server of rlobj serve for each turn; use ", server)
        self._environment, self._server, self._tokenizer = environment, sampler, tokenizer
        self._tasks = tasks_of(environment)
        self._failures = Failures("environment.max_failures", settings.max_failures)

    def close(self) -> None:
        """Do nothing: nothing stays open between two calls."""

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that each problem is a task of the environment.

        Raises:
            ConfigError: one is not.
        """
        if strange := [p.id for p in problems if p.extra.get("verifiers") not in self._tasks]:
            raise ConfigError(f"{strange[0]!r} is no task of verifiers: leave out data.source")

    def sample(
        self,
        problems: Sequence[Problem],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Response]]:
        """Run `count` episodes of each problem's task; the arguments are those of `Conversations`.

        The engine draws with random numbers of its own: verifiers has one setting for all turns.

        Raises:
            WeightsLost: the server ended, or has other weights.
            RunError: too many episodes have failed, or one has several agents that train.
        """
        work = self._groups(problems, count, self._context_of(settings), done)
        groups = DaemonThreads().submit(asyncio.run, work).result()
        self._server.endpoint(settings)  # asks whether it still has these weights
        return groups

    def _context_of(self, settings: SamplingSettings) -> Any:
        """The model, server and settings of verifiers' agents."""
        import verifiers.v1 as verifiers

        _read_answers_without_text()
        url, model, fields = self._server.endpoint(settings)
        variable = f"RLOBJ_API_KEY_{urlsplit(url).port}"  # traces keep all but the environment
        os.environ[variable] = find_key(url) or ""
        name = self._tokenizer.name_or_path
        client = verifiers.TrainClientConfig(
            base_url=f"{url}/v1", api_key_var=variable, renderer_model_name=name
        )
        return verifiers.ModelContext(model, client, verifiers.Sampling(**fields))

    async def _groups(
        self, problems: Sequence[Problem], count: int, context: Any, done: Done | None
    ) -> list[list[Response]]:
        """The rows of the rollouts of each problem."""
        environment, free = self._environment, asyncio.Semaphore(_CONCURRENT)

        async def group(index: int, problem: Problem) -> list[Response]:
            slots = environment.slots(self._tasks[problem.extra["verifiers"]], count)
            running = (environment.run_slot(slot, context, free) for slot in slots)
            episodes = await asyncio.gather(*running)
            rows = [row for episode in episodes for row in self._rows(problem, episode)]
            if done is not None:
                done(index, rows)
            return rows

        async with environment.serving():
            return await asyncio.gather(*(group(*pair) for pair in enumerate(problems)))

    def _rows(self, problem: Problem, episode: Any) -> list[Response]:
        """The rows of an episode. One that failed is undecided.

        Raises:
            RunError: too many have failed, or several of its agents train.
        """
        traces = [trace for trace in episode.traces if trace.agent.trainable]
        if len(traces) > 1:
            raise RunError(f"{len(traces)} agents of an episode train, and rlobj trains one")
        errors = [error for source in (*traces, episode) for error in source.errors]
        said = f"{errors[-1].type}: {errors[-1].message}" if errors else "it ran no agent"
        held = bool(episode.ok and traces)
        self._failures.add(f"an episode failed: {said}" * (not held), "episode")
        last: dict[str, Any] = {"end": "broken", "uses": (ToolUse("verifiers", "error"),)}
        if held:
            [trace], cut = traces, {"max_turns": "turns"}
            reward = checked_reward(trace.reward, "the environment")
            end = cut.get(trace.stop_condition, "tokens") if trace.is_truncated else "done"
            last = {"end": end, "reward": reward}
        nodes = [node for trace in plain_traces(traces) for node in trace["nodes"]]
        rows = sorted(trace_rows(nodes), key=lambda row: row.places[0])
        if not rows:
            turns = [TurnRecord(0, "", array("i"), **last)]
            prompt = self._tokenizer(problem.prompt).input_ids
            return [Response(prompt, (), (), "", "length", self._server.version, turns=turns)]
        drawn = [self._response(row, nodes, turn_numbers(rows), last) for row in rows]
        return [replace(row, began="restart" * (row is not drawn[0])) for row in drawn]

    def _response(
        self,
        row: TraceRow,
        nodes: Sequence[Mapping[str, Any]],
        numbers: Mapping[int, int],
        last: Mapping[str, Any],
    ) -> Response:
        """A row of a rollout; the last turn of all of its rows has what `last` says."""
        tokens, turns, place = row.response.tokens, list[TurnRecord](), 0
        heard, decode = dict(row.response.gaps), self._tokenizer.decode
        for node, size in Counter(node for node, _ in row.places).items():
            text = decode(tokens[place : place + size], skip_special_tokens=True)
            place += size
            observed = packed("i", heard.get(place, ()))
            said = decode(observed, skip_special_tokens=True)
            more = last if numbers[node] + 1 == len(numbers) else {}
            turns.append(TurnRecord(size, text, observed, said, number=numbers[node], **more))
        logprobs = [nodes[node]["logprobs"][place] for node, place in row.places]
        finish = "stop" if turns[-1].end in ("done", "") else "length"
        said, version = turns[-1].text, self._server.version
        return Response(row.prompt, tokens, logprobs, said, finish, version, turns=turns)


@cache
def _read_answers_without_text() -> None:
    """Let renderers 0.1.12 read vLLM 0.32: it wants `token_id:5`, and vLLM names the id alone."""
    from renderers import client

    read = client.parse_generate_response

    def parsed(raw: bytes) -> dict[str, Any]:
        answer = read(raw)
        for choice in answer.get("choices") or ():
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                entry.setdefault("token", f"token_id:{entry.get('token_id')}")
        return answer

    client.parse_generate_response = parsed
