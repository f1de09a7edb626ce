"""math-verify as its authors recommend it, in a process that can be killed."""

# pyright: reportMissingImports=false

from typing import Any

from rlobj.base.memory import memory_is_short


class Comparer:
    """Reads the last box of a response, else formulas and numbers; compares it with the gold.

    The gold is read in a box, and is the first argument of `verify`, which is not symmetric. The
    time limits of math-verify are off: they are alarms, which end at different places on a busy
    machine. This process ends after its processor time.
    """

    def __init__(self) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

        self._parse, self._verify = parse, verify
        self._gold = [LatexExtractionConfig(boxed_match_priority=0)]
        self._response = [*self._gold, ExprExtractionConfig()]

    def answer(self, gold: str, response: str) -> tuple[Any, str]:
        """Return the verdict with the text of the answer, or None; and the reason."""
        golds, answers = self._read(gold), self._parse(response, self._response, parsing_timeout=0)
        correct = self._verify(golds, answers, timeout_seconds=0)
        # math-verify takes what it has no memory for as not equal.
        if not correct and memory_is_short():
            return None, "memory"
        if not golds:
            return None, "gold not readable"
        text = next((item for item in answers if isinstance(item, str)), None)
        return (correct, text), "math-verify" if answers else "no answer"

    def _read(self, gold: str) -> list[Any]:
        return self._parse(f"\\boxed{{{gold}}}", self._gold, parsing_timeout=0)
