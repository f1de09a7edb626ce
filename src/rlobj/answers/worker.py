"""What the worker process of the verifier decides: answers beyond exact arithmetic.

Integrals, limits and infinite sums are compared with math-verify. Few answers need it, and loading
it takes longer than all other answers together: it is loaded when the first one comes. Its own time
limits are off, because they turn a timeout into "not equal"; the process ends
after its processor time. math-verify drops letters that look like units and ignores case, so every
letter is first replaced by one that it keeps. A match counts only if both sides also evaluate to
the same number.
"""

import logging
import re
import signal
from functools import cached_property
from typing import Any

from rlobj.answers.equivalence import check_equivalence
from rlobj.answers.numeric import NumericComparer
from rlobj.answers.structures import Scalar
from rlobj.base.memory import memory_is_short

_LETTERS = "xyzwuvpqrt"
_KEPT = frozenset("dei")
_COMMAND = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_SYMBOLIC_DIGITS = 15


class Comparer:
    """Compares answers under a memory limit; math-verify is the last resort."""

    def __init__(self) -> None:
        self._values = NumericComparer(self._compare_symbolically)

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

    @cached_property
    def _math_verify(self) -> "MathVerifyComparer":
        left = signal.setitimer(signal.ITIMER_PROF, 0)  # loading it is no time of the question
        comparer = MathVerifyComparer()
        signal.setitimer(signal.ITIMER_PROF, *left)
        return comparer

    def _compare_symbolically(self, answer: Scalar, gold: Scalar) -> bool | None:
        self._values.reason = "math-verify"
        return self._math_verify.equal(answer, gold)


class ExhaustionHandler(logging.Handler):
    """Records whether math-verify ran out of memory or stack.

    math-verify then returns "not equal" and only logs the exception.
    """

    exhausted = False

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, (MemoryError, RecursionError)):
            self.exhausted = True


class MathVerifyComparer:
    """Compares the LaTeX of two values with math-verify."""

    def __init__(self) -> None:
        from math_verify import LatexExtractionConfig, parse, verify

        self._parse, self._verify = parse, verify
        self._config = [LatexExtractionConfig(boxed_match_priority=0)]
        self.exhaustion = ExhaustionHandler()
        logger = logging.getLogger("math_verify")
        logger.handlers, logger.propagate = [self.exhaustion], False
        logger.setLevel(logging.DEBUG)

    def equal(self, answer: Scalar, gold: Scalar) -> bool | None:
        """Return whether both have the same value.

        "Not equal" of math-verify is no proof: without different numbers, the result is None.
        """
        from sympy import Expr

        self.exhaustion.exhausted = False
        safe = _renamed(gold.latex, answer.latex)
        if safe is None:
            return None
        golds, answers = map(self._read, safe)
        if not golds:
            return None
        # The comparison is not symmetric: the gold comes first.
        equal = self._verify(golds, answers, timeout_seconds=0)
        truths = {  # whether they are the same number at a few points
            _agree(gold, answer)
            for gold in golds
            for answer in answers
            if isinstance(gold, Expr) and isinstance(answer, Expr)
        }
        if True in truths:
            return True if equal else None
        return None if None in truths or not truths else False

    def _read(self, text: str) -> list[Any]:
        return self._parse(f"\\boxed{{{text}}}", self._config, parsing_timeout=0)


def _renamed(*texts: str) -> list[str] | None:
    """Map every letter to a safe one, the same in all texts; None if there are too many."""
    commands = {letter for text in texts for letter in _COMMAND.findall(text)}
    letters = sorted(letter for letter in commands if len(letter) == 1 and letter not in _KEPT)
    if len(letters) > len(_LETTERS):
        return None
    safe = dict(zip(letters, _LETTERS, strict=False))
    return [_COMMAND.sub(lambda letter: safe.get(letter[0], letter[0]), text) for text in texts]


def _agree(gold: Any, answer: Any) -> bool | None:
    from sympy import Rational

    if answer.free_symbols - gold.free_symbols:
        return False
    symbols = sorted(gold.free_symbols, key=str)
    for shift in (3, 5, 8):
        point = {symbol: Rational(shift + 2 * n, 7) for n, symbol in enumerate(symbols)}
        g, a = (side.subs(point).doit().evalf(_SYMBOLIC_DIGITS) for side in (gold, answer))
        if not (a.is_number and g.is_number):
            return None
        if abs(a - g) > abs(g) * 10 ** (3 - _SYMBOLIC_DIGITS):
            return False
    return True
