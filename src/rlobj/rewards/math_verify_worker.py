"""math-verify as its authors recommend it, in a process that can be killed. It is started by its
path:

math_verify_worker.py DESCRIPTOR DEADLINE MEMORY     the messages are those of `answers.worker`

in   [gold, response]                       the whole response
out  [[true | false, answer], reason]       the verdict, and the text of the answer or null
     [null, reason]                         the gold answer cannot be read, or memory is short
in   [[gold, ...], null]
out  [[gold, ...], ""]                      those that cannot be read
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj

from rlobj.answers.worker import main, peak_memory


class Comparer:
    """Reads the last box of a response, else formulas and numbers; compares it with the gold.

    The gold is read in a box, and is the first argument of `verify`, which is not symmetric. The
    time limits of math-verify are off: they are alarms, which end at different places on a busy
    machine. This process ends after its processor time.

    Args:
        memory: limit on the address space of the process, in bytes.
    """

    def __init__(self, memory: int) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

        self._parse, self._verify, self._memory = parse, verify, memory
        self._gold = [LatexExtractionConfig(boxed_match_priority=0)]
        self._response = [*self._gold, ExprExtractionConfig()]

    def decide(self, gold: Any, response: str | None) -> tuple[Any, str]:
        """Return the verdict with the answer, or None; and the reason."""
        if response is None:
            return [each for each in gold if not self._read(each)], ""
        golds, answers = self._read(gold), self._parse(response, self._response, parsing_timeout=0)
        correct = self._verify(golds, answers, timeout_seconds=0)
        # math-verify takes what it has no memory for as not equal.
        if not correct and peak_memory() > self._memory // 2:
            return None, "memory"
        if not golds:
            return None, "gold not readable"
        text = next((each for each in answers if isinstance(each, str)), None)
        return (correct, text), "math-verify" if answers else "no answer"

    def _read(self, gold: str) -> list[Any]:
        return self._parse(f"\\boxed{{{gold}}}", self._gold, parsing_timeout=0)


if __name__ == "__main__":
    main(Comparer)
