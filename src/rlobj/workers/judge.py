"""Ask a worker under a limit of processor time; tell a bad answer from a busy machine."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.workers.worker import Worker

_START_SECONDS = 120.0
_START_ATTEMPTS = 3
_LOAD_SECONDS = 30.0
"""Limit by the clock on what a process does before the time of a question begins."""
_FAULTS = ("timeout", "crash", "memory")
"""Reasons after which the process is replaced: the answer may be at fault, or the machine."""


def patience(deadline: float) -> float:
    """Return the seconds by the clock in which a worker must get `deadline` of processor time.

    A busy machine shares its processors, so a verdict does not depend on what else runs.
    """
    return 4 * deadline + 10


class Judge(Worker):
    """A process that is replaced if it dies or has answered many questions.

    Its replies are pairs: a value, None = undecided; and the reason.

    Args:
        target: as of `Worker`.
        deadline: seconds of processor time for one question; then the process ends. It is killed if
            it does not get this time within `patience`.
        memory: limit on the address space of the process, in bytes.
        recycle_after: number of questions after which the process is replaced.
        arguments: as of `Worker`.
    """

    def __init__(
        self,
        target: str,
        deadline: float,
        memory: int,
        recycle_after: int,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(target, arguments, memory=memory, processor_seconds=deadline)
        self._deadline, self._memory = deadline, memory
        self._recycle_after = recycle_after
        self._spent, self._questions = False, 0
        self._sound: set[str] = set()

    def start(self) -> None:
        """Start a new process, without waiting for its imports."""
        super().start()
        self._questions = 0
        self._sound.clear()

    def judge(self, question: Sequence[Any], control: Sequence[Any]) -> tuple[Any, str]:
        """Return the reply to a question, or False if its answer is why there is none; the reason.

        None means that the gold answer or the machine is why there is none. The answer is at fault
        if this process decides the control question, and a second try ends in a timeout, crash or
        memory error like the first. There is no second try if the first one failed without such a
        fault, or if it used up its processor time, which no other process can take from it.

        Args:
            question: about the answer.
            control: the same about the gold answer.
        """
        reason, key = "", json.dumps(control)
        for _ in range(2):
            reply, reason = self.reply(*question)
            if reply is not None or reason.startswith("gold "):
                return reply, reason
            final = self._spent or reason not in _FAULTS
            if key not in self._sound:
                control_reply, why = self.reply(*control)
                if control_reply is None or control_reply is False:
                    return None, f"gold {why}"
                self._sound.add(key)
            if final:
                break
        return False, reason

    def reply(self, *question: Any) -> tuple[Any, str]:
        """Return the reply to a question, and the reason.

        The reason is `timeout` after too much time and `crash` if the process died.

        Raises:
            RunError: a package cannot be loaded, or the process does not start.
        """
        self._spent = False
        try:
            self._wait_until_ready()
            self.send(*question)
            kind, reply = self.hear(_LOAD_SECONDS)
            if kind == "begun":
                kind, reply = self.hear(patience(self._deadline))
            value, reason = reply if kind == "reply" else (None, reply)
        except TimeoutError:
            value, reason = None, "timeout"
        except EOFError:
            self._spent = self.code == -signal.SIGPROF
            value, reason = None, "timeout" if self._spent else "crash"
        except ConfigError as error:
            raise RunError(f"The worker process of a reward could not load: {error}") from error
        except BaseException:  # after an interrupt, the late reply must not answer the next pair
            self.kill()
            raise
        self._questions += 1
        if self._questions >= self._recycle_after or reason in _FAULTS:
            self.start()
        return value, reason

    def _wait_until_ready(self) -> None:
        for _ in range(_START_ATTEMPTS):
            with contextlib.suppress(EOFError, TimeoutError):
                return self.ready(_START_SECONDS)
            self.kill()
        raise RunError(
            f"The worker process of a reward did not start in {_START_ATTEMPTS} attempts, with a "
            f"memory limit of {self._memory} bytes; MathVerifier(memory_gib=...) raises it."
        )
