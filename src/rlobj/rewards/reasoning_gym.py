"""The reward of a problem of reasoning-gym: the score of its dataset, in [0, 1]."""

import re
from collections.abc import Sequence

from pydantic import Field

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.rewards.kinds import FunctionGrader, Graded, Grader, Reward
from rlobj.workers.pool import Pool

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Reward):
    """The score of the dataset's own scorer; a response is correct if its score is 1.

    The answer is the content of the last `<answer>...</answer>`.
    """

    deadline: float = Field(default=10.0, gt=0)
    """time limit for one answer, in seconds of processor time; then its score is 0"""

    def open(self) -> Grader:
        """Return a grader with one process, which starts when it is needed."""
        return _GymGrader(self.deadline)


class _GymGrader(FunctionGrader):
    def __init__(self, deadline: float) -> None:
        super().__init__(self._score)
        target, memory = "rlobj.data.gym_worker:Scorer", 4 * 2**30
        self._pool = Pool(1, target, memory=memory, processor_seconds=deadline)

    def check(self, problems: Sequence[Problem]) -> None:
        if not all("reasoning_gym" in problem.extra for problem in problems):
            raise ConfigError("the reward reasoning_gym grades problems of reasoning-gym alone")

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def _score(self, response: str, problem: Problem) -> Graded:
        self.check([problem])
        dataset, gold = problem.extra["reasoning_gym"], problem.answer or None
        answers = _ANSWER.findall(response)
        answer = answers[-1].strip() if answers else None
        entry = {"question": problem.prompt, "answer": gold, "metadata": dataset["metadata"]}
        about = dataset["name"], dataset["settings"], entry
        with self._pool.worker() as worker:
            score, reason = worker.judge((*about, answer), (*about, gold))
        if score is None:
            return Graded(float("nan"), None, reason, answer)
        return Graded(float(score), score >= 1, reason, answer)
