"""Environments that begin new contexts and ask sub-agents. A worker process imports this file."""

import random
from typing import Any

import rlobj

TURNS = 5
"""Turns of a rollout."""


def prompt(turns: int) -> str:
    """The new context after so many turns."""
    return f"{turns},1="


class Restarts:
    """Draws a reward for each turn, and begins a new context after every second one."""

    conversation_seed = 0

    def reset(self, problem: Any) -> None:
        """Begin with the problem."""
        self.turns = 0

    def step(self, messages: Any) -> rlobj.Turn:
        """Say a number, or begin a new context."""
        self.turns += 1
        reward = random.Random(self.conversation_seed).random()
        if self.turns == TURNS:
            return rlobj.Turn(reward=reward, done=True)
        if self.turns % 2:
            return rlobj.Turn("7,", reward=reward)
        context = [{"role": "user", "content": prompt(self.turns)}]
        return rlobj.Turn(reward=reward, restart=context)


class Delegates(Restarts):
    """Asks two sub-agents after the first turn, and begins a new context after the second one."""

    def step(self, messages: Any) -> rlobj.Turn:
        """Ask sub-agents, say a number, or begin a new context."""
        turn = super().step(messages)
        calls = [rlobj.Call([{"role": "user", "content": prompt(n)}]) for n in range(2)]
        return turn if self.turns > 1 else rlobj.Turn(reward=turn.reward, calls=calls)
