"""Traces as verifiers itself makes them, with tokens that a test chooses."""

from __future__ import annotations

import random
from typing import Any

import verifiers.v1 as vf
from verifiers.v1 import graph
from verifiers.v1.trace import TraceTask
from verifiers.v1.types import Response, TurnTokens

COLUMNS = ("advantages", "reference_logprobs", "trainer_logprobs", "entropies")


class Talk:
    """A trace in the making.

    Args:
        task: the key of its task.
        seed: of the numbers.
    """

    def __init__(self, task: str, seed: int) -> None:
        data = vf.TaskData(prompt=task)
        agent = vf.AgentInfo(config=vf.AgentConfig())
        of = TraceTask(type="Task", data=data, key=task)
        self.trace: vf.Trace = vf.Trace(task=of, agent=agent)
        self.random = random.Random(seed)

    def turn(self, *messages: str, size: int = 3) -> list[str]:
        """A turn after messages, which the user and the policy said one after another."""
        said: list[Any] = [
            vf.AssistantMessage(content=text) if place % 2 else vf.UserMessage(content=text)
            for place, text in enumerate(messages)
        ]
        ids, spans = list[int](), list[tuple[int, int] | None]()
        for message in said:
            start = len(ids)
            ids += [1, *map(ord, message.content), 2]
            spans.append((start, len(ids)))
        ids.append(1)  # which begins the turn
        answer = "".join(self.random.choice("abcdef") for _ in range(size - 1))
        written = [*map(ord, answer), 2][:size]
        tokens = TurnTokens(
            prompt_ids=ids,
            completion_ids=written,
            completion_logprobs=[-self.random.random() * 3 for _ in written],
            message_spans=spans,
        )
        response = Response(
            id="", created=0, model="m", message=vf.AssistantMessage(content=answer),
            finish_reason="stop", tokens=tokens,
        )  # fmt: skip
        graph.prepare_turn(self.trace, said).commit(response)
        return [*messages, answer]

    def end(self, reward: float | None, *names: str) -> vf.Trace:
        """The trace with a reward, or a failure, and columns that a trainer adds."""
        if reward is None:
            self.trace.record_error(ValueError("the program ended"))
        else:
            self.trace.ok = True
            self.trace.record_reward("right", reward, 2.0)
            self.trace.record_reward("short", 0.25)
        for node in self.trace.nodes:
            for name in names:
                values = [self.random.random() for _ in range(sum(node.mask))]
                sign = -1 if name.endswith("logprobs") else 1
                if values:
                    setattr(node, name, [sign * value for value in values])
        return self.trace


def branching(task: str, seed: int, reward: float | None, *names: str) -> vf.Trace:
    """Two turns, a branch of the first one, and a new context."""
    talk = Talk(task, seed)
    first = talk.turn("what?", size=2 + seed % 3)
    second = talk.turn(*first, "more")
    talk.turn(*second, "again", size=4)
    talk.turn(*first, "less", size=5)
    talk.turn(f"so far {task}", size=1 + seed % 4)
    return talk.end(reward, *names)
