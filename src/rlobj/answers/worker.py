"""What the worker process of the verifier decides: answers beyond exact arithmetic.

Few pairs need math-verify, and loading it takes ten times as long as everything else. It is loaded
on another thread while other pairs are compared. Its own time limits are off, because they turn a
timeout into "not equal"; the process ends after its processor time.
"""

import threading
from typing import Any

from rlobj.answers.equivalence import check_equivalence, may_take_long
from rlobj.answers.numeric import NumericComparer
from rlobj.base.memory import memory_is_short


class Comparer:
    """Compares answers under a memory limit; math-verify is the last resort."""

    def __init__(self) -> None:
        self._values = NumericComparer(self._compare_symbolically)
        self._math_verify: Any = None
        self._loading = threading.Lock()
        threading.Thread(target=self.load, daemon=True).start()

    def prepare(self, gold: str, answer: str | None) -> None:
        """Load what a question needs, before its time begins."""
        if may_take_long(f"{gold} {answer}"):
            self.load()

    def answer(self, gold: str, answer: str | None) -> tuple[bool | None, str]:
        """Return whether both are the same answer (None = undecided), and the reason.

        Without an answer, the gold answer is compared with itself, by value even if it is large.
        """
        self._values.reason, self._values.of_gold = "numeric", answer is None
        correct, reason = check_equivalence(gold if answer is None else answer, gold, self._values)
        if correct or self._values.reason != "math-verify":
            return correct, reason
        if self._math_verify.exhaustion.exhausted or memory_is_short():
            return None, "memory"
        return correct, reason

    def load(self) -> None:
        """Import math-verify if it is not loaded yet."""
        with self._loading:
            if self._math_verify is None:
                from rlobj.answers.symbolic import MathVerifyComparer

                self._math_verify = MathVerifyComparer()

    def _compare_symbolically(self, answer: Any, gold: Any) -> bool | None:
        self.load()
        self._values.reason = "math-verify"
        return self._math_verify.equal(answer, gold)
