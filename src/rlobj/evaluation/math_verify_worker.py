"""math-verify as a grader, in a process that can be killed. It is started by its path:

math_verify_worker.py DESCRIPTOR DEADLINE MEMORY     the messages are those of `answers.worker`

in   [response, gold]     the whole response
out  [true | false, ""]
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from pathlib import Path


class MathVerify:
    """math-verify as its authors advise for rewards: the gold in a box and as first argument."""

    def __init__(self) -> None:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

        self._parse, self._verify = parse, verify
        self._gold = [LatexExtractionConfig(boxed_match_priority=0)]
        self._response = [*self._gold, ExprExtractionConfig()]

    def decide(self, response: str, gold: str) -> tuple[bool, str]:
        """Return the verdict, and an empty reason."""
        answer = self._parse(response, self._response)
        return bool(self._verify(self._parse(f"\\boxed{{{gold}}}", self._gold), answer)), ""


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj
    from rlobj.answers.worker import main

    main(lambda memory: MathVerify())
