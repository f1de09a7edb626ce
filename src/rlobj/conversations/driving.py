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
from dataclasses import dataclass, replace
from typing import Any, cast

from rlobj.base.errors import RunError
from rlobj.conversations.calls import CallReader
from rlobj.conversations.environment import (
    LIMITS,
    Adapter,
    Call,
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
from rlobj.conversations.methods import ToolEnvironment
from rlobj.conversations.pool import ToolPool
from rlobj.conversations.rendering import Rendering
from rlobj.conversations.rows import OpenRollout, Place, Row, Sampling
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem
from rlobj.samplers import Done, Feed, Request, Response, Sampler, SamplingSettings
from rlobj.samplers.response import ToolUse
from rlobj.samplers.types import Abandoned
from rlobj.workers.pool import Failures
from rlobj.workers.worker import NoReply

_CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Talk:
    """A conversation that is to be held.

    Attributes:
        place: the number of its problem, and its own among those about the problem.
        problem: what it is about.
        seed: of the problem.
    """

    place: Place
    problem: Problem
    seed: int


class Conversations:
    """Draws conversations with a sampler.

    Args:
        sampler: draws turns.
        opened: makes the environment of one conversation.
        rendering: of messages.
        reader: finds calls of tools; None = there are no tools.
        text: problem -> the text of its prompt.
        settings: limits.
        context: largest number of tokens that the policy reads and writes in a row; None = what the
            sampler allows.
    """

    syncs_in_flight = True

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
        the number of the turn; that of a sub-agent's turn also from the turn that called it.

        Args:
            problems: one for each seed.
            count: conversations about each.
            settings: how turns are drawn; `max_tokens` counts the policy's tokens of a row, and
                `rollout_tokens` those of all rows.
            seeds: one per problem.
            done: called with a problem's number and samples, in the thread of the environments.

        Returns:
            For each problem the rows of its rollouts, one rollout after another. The id of the
            first row is the number of the conversation; see `Response.id`.

        Raises:
            NoRoom: an opening leaves no room for a turn.
            RunError: an environment returned something that is no turn, cannot begin, or has
                failed too often.
            Exception: of the sampler.
        """
        groups: list[dict[int, list[Response]]] = [{} for _ in problems]
        talks = [
            Talk((index, number), problem, seed)
            for index, (problem, seed) in enumerate(zip(problems, seeds, strict=True))
            for number in range(count)
        ]

        def rows(index: int) -> list[Response]:
            return [row for number in range(count) for row in groups[index][number]]

        def ended(talk: Talk, rollout: list[Response]) -> None:
            index, number = talk.place
            groups[index][number] = rollout
            if done is not None and len(groups[index]) == count:
                done(index, rows(index))

        self.stream(Feed.whole(talks), settings, ended)
        return [*map(rows, range(len(problems)))]

    def stream(
        self,
        talks: Feed[Talk],
        settings: SamplingSettings,
        done: Callable[[Talk, list[Response]], None],
    ) -> None:
        """Hold each conversation of a feed until it is closed; the errors are those of `sample`.

        Args:
            talks: the conversations; their turns are drawn together if the feed says so.
            settings: as in `sample`.
            done: called with a conversation and the rows of its rollout when it has ended, in the
                thread of the environments.
        """
        feed: Feed[Request] = Feed(sources=talks.sources, together=talks.together)

        async def hold(talk: Talk) -> None:
            done(talk, await self._converse(Sampling(feed, settings, talk.seed), talk))

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as tasks:
                while (new := await asyncio.to_thread(talks.take, wait=True)) is not None:
                    for talk in new:
                        tasks.create_task(hold(talk))

        work = asyncio.run_coroutine_threadsafe(all_of_them(), self._running())
        work.add_done_callback(lambda work: feed.abandon() if _failed(work) else feed.close())
        try:
            self._sampler.stream(feed, settings, self._arrived)
        except Abandoned:
            pass  # the error is that of the work
        finally:
            work.cancel()
        try:
            work.result()
        except BaseExceptionGroup as failed:
            error: BaseException = failed
            while isinstance(error, BaseExceptionGroup):  # of sub-agents
                error = error.exceptions[0]
            raise error from None

    def _arrived(self, request: Request, sample: Response) -> None:
        self._loop.call_soon_threadsafe(_settle, request.key, sample)

    async def _converse(self, sampling: Sampling, talk: Talk) -> list[Response]:
        """Hold a conversation; the rows of its rollout."""
        async with self._begun(talk.problem) as (environment, row):
            rollout = OpenRollout(
                sampling,
                talk.place,
                self._rendering,
                self._reader,
                turns=self.settings.max_turns,
                tokens=sampling.settings.longest_rollout,
                rows=[row],
            )
            await self._speak(environment, rollout)
        sampling.feed.leave()
        return rollout.responses()

    async def _speak(self, environment: Any, rollout: OpenRollout) -> None:
        """Go on until a conversation ends."""
        while not ((row := rollout.row).turns and row.turns[-1].end):
            sample = await self._drawn(rollout)
            row.add(rollout.count, sample)
            calls = rollout.reader.read(sample.tokens) if rollout.reader is not None else []
            message: Message = {"role": "assistant", "content": sample.text}
            row.messages.append(message | ({"tool_calls": calls} if calls else {}))
            await self._answered(environment, rollout, sample)

    @asynccontextmanager
    async def _begun(self, problem: Problem) -> AsyncIterator[tuple[Any, Row]]:
        """A new environment, which ends afterwards, and the first row.

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

    async def _opening(self, environment: Environment, problem: Problem) -> Row:
        """The row that an environment begins; the errors are those of `_begun`."""
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
        return Row(array("i", ids), messages)

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

    async def _drawn(self, rollout: OpenRollout) -> Response:
        """The next turn."""
        row, sampling = rollout.row, rollout.sampling
        seed = sampling.seed(rollout.place, "turn", rollout.count)
        answer = self._loop.create_future()
        most = rollout.room(row, 0, self._context)
        sampling.feed.put(Request(rollout.place, answer, row.read(), seed, most))
        return await answer

    async def _answered(self, environment: Any, rollout: OpenRollout, sample: Response) -> None:
        """Have the last turn answered.

        Raises:
            RunError: the environment returned something that is no turn, or has failed too often.
        """
        row, name, method = rollout.row, name_of(environment), "step"
        try:
            if sample.finish == "length":
                row.change(end="tokens")
            else:
                if hasattr(environment, "conversation_seed"):
                    seed = rollout.sampling.seed(rollout.place, "tools", rollout.count - 1)
                    environment.conversation_seed = seed
                said = await self._counted(environment, method, copy.deepcopy(row.messages))
                answer = checked_turn(said, f"{name}.step")
                answer = answer if answer.done else self._short(answer)
                await self._hear(rollout, answer, sample.tokens)
            method = "reward_at_limit"
            if row.turns[-1].end in LIMITS and hasattr(environment, method):
                rest = await self._counted(environment, method)
                rest = checked_reward(rest, f"{name}.{method}")
                row.change(reward=row.turns[-1].reward + rest)
        except NoReply as failed:
            uses = (*row.turns[-1].uses, ToolUse(method, failed.reason))
            row.change(uses=uses, end="broken")

    def _short(self, answer: Turn) -> Turn:
        """The answer with at most `max_output` characters in each message."""
        most = self.settings.max_output
        short = [
            {**each, "content": limited_text(each["content"], most)}
            for each in cast("Sequence[Message]", answer.observation)
        ]
        return replace(answer, observation=short)

    async def _hear(self, rollout: OpenRollout, answer: Turn, said: Sequence[int]) -> None:
        """Add an answer to the turn with the token ids `said`: what the policy reads next, or why
        the conversation ends."""
        row, heard = rollout.row, cast("list[Message]", [*answer.observation])
        row.change(reward=answer.reward, correct=answer.correct, uses=answer.uses)
        for use in answer.uses:
            if use.error.startswith("exception"):
                text = f"Tool {use.name!r} failed: {use.error}\nThe policy reads it"
                self._failures.warn(text, "tools")
        if answer.done:
            return row.change(end="done")
        end = self._limit(rollout)
        if answer.calls and not end:
            end = await self._call(rollout, answer.calls, heard) or self._limit(rollout)
        if end:
            return row.change(end=end)
        following, observed = row, array("i")
        if restart := [*answer.restart]:
            following = Row(array("i", rollout.rendering.opening(restart)), restart, "restart")
        else:
            observed = array("i", rollout.rendering.after(heard, said[-1] if len(said) else None))
        if rollout.room(following, len(observed), self._context) < 1:
            return row.change(end="tokens")
        observation = "\n".join(message["content"] for message in restart or heard)
        row.change(observed=observed, observation=observation)
        return rollout.rows.append(following) if restart else row.messages.extend(heard)

    def _limit(self, rollout: OpenRollout) -> str:
        """The limit that a rollout has reached, of failed calls or of turns; "" = none."""
        uses = [use for row in rollout.rows for turn in row.turns for use in turn.uses]
        failed, most = sum(bool(use.error) for use in uses), self.settings.max_errors
        if most is not None and failed > most:
            return "errors"
        return "" if rollout.turns_left > 0 else "turns"

    async def _call(self, rollout: OpenRollout, calls: Sequence[Call], heard: list[Message]) -> str:
        """Have sub-agents answer calls, side by side; the policy will hear what each says last.

        What is left of turns, but for the one that hears them, and of tokens is divided among them,
        so that no answer depends on how long another one takes.

        Returns:
            The limit that leaves no room for them; "" = they have answered.
        """
        share, feed, voice = len(calls), rollout.sampling.feed, self._rendering
        turns, tokens = (rollout.turns_left - 1) // share, rollout.tokens_left // share
        agents: list[tuple[ToolEnvironment, OpenRollout]] = []
        for index, call in enumerate(calls):
            pool = ToolPool(self.settings, call.tools)
            schemas = pool.schemas()
            rendering = Rendering(voice.tokenizer, voice.chat, schemas)
            reader = CallReader(rendering, self.settings.calls) if schemas else None
            row = Row(array("i", rendering.opening(call.messages)), [*call.messages], "call")
            agent = replace(
                rollout,
                place=(*rollout.place, rollout.count - 1, index),
                rendering=rendering,
                reader=reader,
                turns=turns,
                tokens=tokens,
                rows=[row],
            )
            agents.append((ToolEnvironment(pool), agent))
            if turns < 1 or agent.room(row, 0, self._context) < 1:
                return "tokens" if turns else "turns"
        others = [*range(share - 1)]
        feed.leave(-len(others))

        async def one(environment: ToolEnvironment, agent: OpenRollout) -> None:
            await self._speak(environment, agent)
            if others:  # the last one leaves its place to the rollout
                others.pop()
                feed.leave()

        async with asyncio.TaskGroup() as tasks:
            for agent in agents:
                tasks.create_task(one(*agent))
        texts = [rollout.take(agent) for _, agent in agents]
        most = self.settings.max_output
        heard += [{"role": "user", "content": limited_text(text, most)} for text in texts]
        return ""

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


def _failed(work: Any) -> bool:
    return work.cancelled() or work.exception() is not None


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)
