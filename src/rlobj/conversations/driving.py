"""Conversations of a policy with environments: each goes on by itself.

    turn of the policy  ->  step of the environment  ->  tokens that follow  ->  next turn

Conversations run on an event loop in a thread of its own. An environment that a setting names runs
in processes; see `named`. Of one that was passed, plain methods are called in further threads, and
`async` ones run on the loop. The sampler takes the next turn of a
conversation when it is known, so that a slow tool holds up its own conversation only.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from rlobj.base.errors import RunError
from rlobj.conversations.calls import CallReader
from rlobj.conversations.environment import (
    LIMITS,
    Adapter,
    Environment,
    Message,
    NoRoom,
    Turn,
    asked,
    called,
    checked_opening,
    checked_reward,
    checked_turn,
    limited_text,
    name_of,
)
from rlobj.conversations.rendering import Rendering
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem
from rlobj.samplers import Done, Feed, Request, Response, Sampler, SamplingSettings, derive_seed
from rlobj.samplers.response import ToolUse, TurnRecord
from rlobj.workers.pool import Failures
from rlobj.workers.worker import NoReply

_CLOSE_SECONDS = 5.0
_Place = tuple[int, int]
"""The number of a problem in a call, and that of the conversation about it."""


@dataclass
class _Spoken:
    """A conversation so far.

    Attributes:
        prompt: token ids that the policy reads first.
        messages: what was said.
        turns: of the policy.
        tokens, logprobs: of the policy's turns.
        version: of the weights; -1 before the first turn.
    """

    prompt: array[int]
    messages: list[Message]
    turns: list[TurnRecord] = field(default_factory=list)
    tokens: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    version: int = -1

    def add(self, turn: TurnRecord, sample: Response) -> None:
        """Add a turn."""
        self.turns.append(turn)
        self.tokens.extend(sample.tokens)
        self.logprobs.extend(sample.logprobs)
        self.version = sample.weight_version

    def read(self) -> array[int]:
        """All token ids that the policy has read and written."""
        ids, start = array("i", self.prompt), 0
        for turn in self.turns:
            ids += self.tokens[start : start + turn.size]
            ids += turn.observed
            start += turn.size
        return ids

    def sample(self) -> Response:
        """The conversation as one response."""
        last = self.turns[-1]
        finish = "stop" if last.end == "done" else "length"
        return Response(
            self.prompt, self.tokens, self.logprobs, last.text, finish, self.version, self.turns
        )


class Conversations:
    """Draws conversations with a sampler.

    Args:
        sampler: draws turns.
        opened: makes the environment of one conversation.
        rendering: of messages.
        reader: finds calls of tools; None = there are no tools.
        text: problem -> the text of its prompt.
        settings: limits.
        context: largest number of tokens that the policy reads and writes in a conversation; None =
            what the sampler allows.
    """

    def __init__(
        self,
        sampler: Sampler,
        opened: Callable[[], Environment],
        rendering: Rendering,
        reader: CallReader | None,
        text: Callable[[Problem], str],
        settings: EnvironmentSettings,
        context: int | None = None,
    ) -> None:
        self.settings = settings
        self._sampler, self._opened = sampler, opened
        self._rendering, self._reader, self._text = rendering, reader, text
        limits = [limit for limit in (context, sampler.context) if limit is not None]
        self._context = min(limits, default=None)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failures = Failures("environment.max_failures", settings.max_failures)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _running(self) -> asyncio.AbstractEventLoop:
        """The event loop, in its thread."""
        if not self._thread.is_alive():
            self._thread.start()
        return self._loop

    def close(self) -> None:
        """End the event loop."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_SECONDS)  # an environment may block it
        if not self._thread.is_alive():
            self._loop.close()

    def sample(
        self,
        problems: Sequence[Problem],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Response]]:
        """Hold `count` conversations about each problem; the arguments are those of a sampler.

        The seed of a turn is derived from the problem's seed, the number of the conversation and
        the number of the turn.

        Args:
            problems: one for each seed.
            count: conversations about each.
            settings: how turns are drawn; `max_tokens` counts the policy's tokens of all turns.
            seeds: one per problem.
            done: called with a problem's number and samples, in the thread of the environments.

        Raises:
            NoRoom: an opening leaves no room for a turn.
            RunError: an environment returned something that is no turn, cannot begin, or has
                failed too often.
            Exception: of the sampler.
        """
        self._running()
        feed: Feed[Request] = Feed(sources=len(problems) * count)
        call = _Call(feed, settings, seeds)
        groups: list[list[Response | None]] = [[None] * count for _ in problems]

        async def one(index: int, number: int) -> None:
            spoken = await self._converse(call, problems[index], (index, number))
            groups[index][number] = spoken.sample()
            group = [response for response in groups[index] if response is not None]
            if done is not None and len(group) == count:
                done(index, group)

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as tasks:
                for index in range(len(problems)):
                    for number in range(count):
                        tasks.create_task(one(index, number))

        work = asyncio.run_coroutine_threadsafe(all_of_them(), self._loop)
        work.add_done_callback(lambda _: feed.close())
        try:
            self._sampler.stream(feed, settings, self._arrived)
        finally:
            work.cancel()
        try:
            work.result()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [[response for response in group if response is not None] for group in groups]

    def _arrived(self, request: Request, sample: Response) -> None:
        self._loop.call_soon_threadsafe(_settle, request.key, sample)

    async def _converse(self, call: _Call, problem: Problem, place: _Place) -> _Spoken:
        """Hold a conversation."""
        async with self._begun(problem) as (environment, spoken):
            while not (spoken.turns and spoken.turns[-1].end):
                sample, left = await self._drawn(call, spoken, place)
                calls = self._reader.read(sample.tokens) if self._reader is not None else []
                message: Message = {"role": "assistant", "content": sample.text}
                spoken.messages.append(message | ({"tool_calls": calls} if calls else {}))
                seed = call.seed(place, "tools", len(spoken.turns))
                turn = await self._answered(environment, spoken, sample, left, seed)
                spoken.add(turn, sample)
        call.feed.leave()
        return spoken

    @asynccontextmanager
    async def _begun(self, problem: Problem) -> AsyncIterator[tuple[Any, _Spoken]]:
        """A new environment, which ends afterwards, and its conversation.

        Raises:
            NoRoom: its opening leaves no room for a turn.
            RunError: the environment failed.
        """
        name, on = "the environment cannot be made: it", f" on problem {problem.id!r}"
        with _stopping():
            environment = await called(self._opened, name, self.settings.deadline, on)
        try:
            yield environment, await self._opening(environment, problem)
        finally:
            if isinstance(environment, Adapter):
                environment.end()

    async def _opening(self, environment: Environment, problem: Problem) -> _Spoken:
        """A conversation that an environment begins; the errors are those of `_begun`."""
        name, on = f"{name_of(environment)}.reset", f" on problem {problem.id!r}"
        with _stopping():
            deadline = self.settings.deadline
            said = await asked(environment, "reset", problem, deadline=deadline, on=on)
        said = checked_opening(said, name)
        prompt = [{"role": "user", "content": self._text(problem)}]
        messages = prompt if said is None else [*said]
        ids = self._rendering.opening(messages, trusted=said is None)
        if self._context is not None and len(ids) >= self._context:
            raise NoRoom(
                f"the opening about problem {problem.id!r} has {len(ids)} tokens, and a "
                f"conversation may have {self._context}. Raise sampling.context, or leave out long "
                "prompts with data.max_prompt_tokens; a resumed run keeps both"
            )
        return _Spoken(array("i", ids), messages)

    def check(self, problems: Sequence[Problem]) -> None:
        """Begin a conversation about the problem with the longest text, before a run.

        Raises:
            NoRoom: its opening leaves no room for a turn.
            RunError: the environment failed.
        """

        async def begin(problem: Problem) -> None:
            async with self._begun(problem):
                pass

        for problem in sorted(problems, key=lambda problem: -len(self._text(problem)))[:1]:
            asyncio.run_coroutine_threadsafe(begin(problem), self._running()).result()

    async def _drawn(
        self, call: _Call, spoken: _Spoken, place: _Place
    ) -> tuple[Response, tuple[int, int | None]]:
        """The next turn, and the tokens that are left then: of the policy, and in all.

        Raises:
            RunError: the weights have changed.
        """
        read = spoken.read()
        policy = call.settings.max_tokens - len(spoken.tokens)
        whole = None if self._context is None else self._context - len(read)
        seed = call.seed(place, "turn", len(spoken.turns))
        answer = self._loop.create_future()
        most = policy if whole is None else min(policy, whole)
        call.feed.put(Request(place, answer, read, seed, most))
        sample: Response = await answer
        if spoken.turns and sample.weight_version != spoken.version:
            raise RunError("the weights changed during a conversation")
        size = len(sample.tokens)
        return sample, (policy - size, None if whole is None else whole - size)

    async def _answered(
        self,
        environment: Any,
        spoken: _Spoken,
        sample: Response,
        left: tuple[int, int | None],
        seed: int,
    ) -> TurnRecord:
        """The turn with what the environment said to it.

        `left` are the tokens that the policy may still write, and those that are left in all.

        Raises:
            RunError: the environment returned something that is no turn, or has failed too often.
        """
        turn = TurnRecord(len(sample.tokens), sample.text, array("i"))
        name, method = name_of(environment), "step"
        try:
            if sample.finish == "length":
                turn = replace(turn, end="tokens")
            else:
                if hasattr(environment, "conversation_seed"):
                    environment.conversation_seed = seed
                said = await self._counted(environment, method, copy.deepcopy(spoken.messages))
                answer = checked_turn(said, f"{name}.step")
                answer = answer if answer.done else self._short(answer)
                turn = self._heard(spoken, turn, answer, sample, left)
            method = "reward_at_limit"
            if turn.end in LIMITS and hasattr(environment, method):
                rest = await self._counted(environment, method)
                turn = replace(turn, reward=turn.reward + checked_reward(rest, f"{name}.{method}"))
            return turn
        except NoReply as failed:
            return replace(turn, uses=(*turn.uses, ToolUse(method, failed.reason)), end="broken")

    def _short(self, answer: Turn) -> Turn:
        """The answer with at most `max_output` characters in each message."""
        most = self.settings.max_output
        short = [
            {**each, "content": limited_text(each["content"], most)}
            for each in cast("Sequence[Message]", answer.observation)
        ]
        return replace(answer, observation=short)

    def _heard(
        self,
        spoken: _Spoken,
        turn: TurnRecord,
        answer: Turn,
        sample: Response,
        left: tuple[int, int | None],
    ) -> TurnRecord:
        """The turn with an answer, and why the conversation ends, if it does."""
        heard: list[Any] = [*answer.observation]
        turn = replace(turn, reward=answer.reward, correct=answer.correct, uses=answer.uses)
        for use in turn.uses:
            if use.error.startswith("exception"):
                text = f"Tool {use.name!r} failed: {use.error}\nThe policy reads it"
                self._failures.warn(text, "tools")
        if answer.done:
            return replace(turn, end="done")
        failed = sum(bool(use.error) for record in (*spoken.turns, turn) for use in record.uses)
        if self.settings.max_errors is not None and failed > self.settings.max_errors:
            return replace(turn, end="errors")
        if len(spoken.turns) + 1 >= self.settings.max_turns:
            return replace(turn, end="turns")
        last = sample.tokens[-1] if len(sample.tokens) else None
        observed = array("i", self._rendering.after(heard, last))
        if left[0] < 1 or (left[1] is not None and len(observed) >= left[1]):
            return replace(turn, end="tokens")
        spoken.messages += heard
        observation = "\n".join(message["content"] for message in heard)
        return replace(turn, observed=observed, observation=observation)

    async def _counted(self, environment: Environment, method: str, *arguments: Any) -> Any:
        """What a method of an environment returns; whether it fails is counted.

        Raises:
            NoReply: it failed.
            RunError: too many calls have failed.
        """
        try:
            deadline = self.settings.deadline
            answer = await asked(environment, method, *arguments, deadline=deadline)
        except NoReply as failed:
            self._failures.add(str(failed), method)
            raise
        self._failures.add("")
        return answer


@contextmanager
def _stopping() -> Iterator[None]:
    """A failure of the user's code inside ends the run."""
    try:
        yield
    except NoReply as failed:
        raise RunError(str(failed)) from failed


@dataclass(frozen=True)
class _Call:
    """One call of `Conversations.sample`."""

    feed: Feed[Request]
    settings: SamplingSettings
    seeds: Sequence[int]

    def seed(self, place: _Place, purpose: str, turn: int) -> int:
        """The seed for something in a turn of a conversation."""
        problem, number = place
        return derive_seed(self.seeds[problem], number, purpose, turn)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
