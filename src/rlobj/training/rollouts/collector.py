"""Collector: from problems to a rollout, which is groups of graded responses with their columns."""

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import torch

from rlobj.base.errors import RunError, Setting
from rlobj.conversations.driving import Conversations
from rlobj.conversations.grading import turn_rewards
from rlobj.data import Problem, ProblemStream
from rlobj.models.policy import Policy
from rlobj.objectives.statistics import Comm
from rlobj.ranks import together
from rlobj.rewards import Graded, Grader, Reward
from rlobj.runs.rows import TokenTexts
from rlobj.samplers import Response, Sampler, derive_seed
from rlobj.settings.run_config import RunConfig
from rlobj.settings.sampling import DynamicSampling
from rlobj.training.rollouts.grading import Grading
from rlobj.training.rollouts.own_columns import OwnColumns
from rlobj.training.rollouts.rollout import Rollout, Seconds, has_signal


@dataclass
class Collector:
    """Samples groups of responses and grades them; dynamic sampling replaces groups without signal.

    The ranks wait for each other after each batch of prompts, for the slowest sampler or reward.

    Attributes:
        config: the run.
        policy: encodes problems.
        sampler: draws responses.
        grader: grades them.
        stream: the endless order of training problems, the same on all ranks.
        comm: the process group.
        conversations: draws responses of several turns; None = a response is one turn.
    """

    config: RunConfig
    policy: Policy
    sampler: Sampler
    grader: Grader
    stream: ProblemStream
    comm: Comm
    conversations: Conversations | None = None

    def collect(self, step: int) -> Rollout:
        """The step's groups with rewards; with dynamic sampling only groups with a signal.

        Which groups these are does not depend on the number of ranks.

        Raises:
            RunError: whole batches of dynamic sampling have too few groups with a signal.
            Exception: sampling or grading failed, here or on another rank. All ranks raise, and the
                stream is at its old position.
        """
        before = self.stream.state()
        try:
            return self._collect(step)
        except Exception:
            self.stream.restore(before)  # the problems are drawn again
            raise

    def _collect(self, step: int) -> Rollout:
        sampling, wanted = self.config.sampling, self.config.sampling.prompts_per_step
        dynamic = sampling.dynamic or DynamicSampling(max_batches=1)
        whole, batch = dynamic.whole_batches, max(round(wanted * dynamic.oversampling), 1)
        seconds: Seconds = defaultdict(float)
        responses: list[Response] = []
        live: list[int] = []  # ids of all ranks' groups with a signal, in the order of the stream
        drawn = used = 0
        while len(live) < wanted and used < dynamic.max_batches:
            problems = self.stream.next(batch if whole else wanted - len(live))
            numbered = list(enumerate(problems, drawn))[self.comm.rank :: self.comm.size]
            marks = torch.zeros(drawn + len(problems))
            with together(self.comm, "collecting responses", survive=True):
                for group in self._groups(step, numbered, seconds):
                    marks[group[0].group] = sampling.dynamic is None or self._live(group)
                    responses += group
            live += self.comm.sum(marks).nonzero().flatten().tolist()
            drawn, used = len(marks), used + 1
        if whole and len(live) < wanted and not dynamic.allow_fewer:
            enough = 2 * used * wanted // (len(live) or wanted)  # if prompts stay as they were
            raise RunError(
                f"step {step + 1} needs {wanted:,} groups with a signal, and {used} × {batch:,} "
                f"prompts gave {len(live):,}. To draw more batches: ",
                Setting("sampling.dynamic.max_batches", enough),
                ". To draw only the missing prompts, and to train on the groups that there are: ",
                Setting("sampling.dynamic.whole_batches", False),
            )
        chosen = set(live[:wanted])
        kept = [response for response in responses if response.group in chosen]
        dead = [response for response in responses if response.group not in chosen]
        state = self.stream.state()
        return Rollout(kept, dead, used, seconds, state, surplus=len(live) - len(chosen))

    def _groups(
        self, step: int, problems: Sequence[tuple[int, Problem]], seconds: Seconds
    ) -> list[list[Response]]:
        """One group of graded responses for each (group id, problem)."""
        size, seed = self.config.sampling.group_size, self.config.seed
        start, prompted = time.perf_counter(), [problem for _, problem in problems]
        with Grading(self.grader, prompted, self.config.environment.at_limit) as grading:
            settings: Any = {
                "count": size,
                "settings": self.config.sampling.settings(),
                "seeds": [derive_seed(seed, "rollout", step, group) for group, _ in problems],
                "done": grading.done,
            }
            if self.conversations is None:
                drawn = self.sampler.sample([*map(self.policy.encode, prompted)], **settings)
            else:
                drawn = self.conversations.sample(prompted, **settings)
            samples = list(chain(*drawn))
            grades = self._shaped(list(chain(*grading.finish(drawn))), samples)
        weight = environment_weight(self.config.rewards)
        responses: list[Response] = []
        for i, (sample, grade) in enumerate(zip(samples, grades, strict=True)):
            group, problem = problems[i // size]
            responses.append(
                replace(
                    sample,
                    id=group * size + i % size,
                    group=group,
                    problem=problem,
                    grade=grade,
                    turn_rewards=turn_rewards(sample.turns, grade.reward, weight),
                )
            )
        if self.config.columns:
            responses = [replace(r, columns=self._columns.of(r)) for r in responses]
        seconds["sample"] += time.perf_counter() - start - grading.seconds
        seconds["grade"] += grading.seconds
        seconds["hidden"] += grading.hidden
        return [responses[i : i + size] for i in range(0, len(responses), size)]

    @functools.cached_property
    def _columns(self) -> OwnColumns:
        return OwnColumns(self.config, TokenTexts(self.policy.tokenizer).text)

    def _shaped(self, grades: list[Graded], samples: Sequence[Response]) -> list[Graded]:
        """The grades of samples with the penalty on overlong ones in their rewards."""
        overlong, longest = self.config.rewards.overlong, self.config.sampling.max_tokens
        if overlong is None:
            return grades
        lengths = torch.tensor([sample.length for sample in samples])
        none = torch.zeros(len(samples), dtype=torch.float64)
        penalties = overlong.shape(none, lengths, longest).tolist()
        several = bool(self.config.rewards.names)
        return [
            replace(
                grade,
                reward=grade.reward + penalty,
                rewards=(*grade.rewards, penalty) if several else (),
            )
            for grade, penalty in zip(grades, penalties, strict=True)
        ]

    def _live(self, group: Sequence[Response]) -> bool:
        """Whether the decided responses of a group differ, in accuracy or in reward."""
        assert self.config.sampling.dynamic is not None
        if self.config.objective.scores_alone:
            return True
        if self.config.sampling.dynamic.by == "accuracy":
            verdicts = {r.grade.correct for r in group if r.grade.correct is not None}
            return len(verdicts) == 2
        several = self.config.rewards.names is not None
        return has_signal(group, several and self.config.objective.advantage.decoupled)


class Pipeline:
    """Collects rollouts ahead of the steps that train on them.

    With depth 0 a step samples, then trains. With depth k the rollout of step t is sampled while
    the k steps before it are trained, from the weights of version max(0, t - k): it is exactly k
    steps old. A run that is resumed has nothing ahead: its first k rollouts are of the weights that
    it began with.

    One thread samples; `take` starts it, and it ends with its rollout or an error. `settle` waits
    for it, before the weights change.

    A context manager: it waits for the rollout that is being sampled, unless an error ends it.

    Args:
        collector: samples and grades a step's rollout with the sampler's present weights.
        depth: steps ahead; 0 = none.
        steps: of the whole run; no rollout is sampled for later steps.
    """

    def __init__(self, collector: Collector, depth: int, steps: int) -> None:
        self.collector = collector
        self._depth = depth
        self._steps = steps
        self._ready: dict[int, Rollout] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None and kind is None:
            self._thread.join()

    def take(self, step: int) -> Rollout:
        """The step's rollout. Sampling of the one `depth` steps later starts in a thread."""
        for ahead in range(step, min(step + max(self._depth, 1), self._steps)):
            if ahead not in self._ready:
                self._ready[ahead] = self.collector.collect(ahead)
        following = step + self._depth
        if self._depth and following < self._steps:
            self._thread = threading.Thread(
                target=self._collect_apart, args=(following,), name="sampling", daemon=True
            )
            self._thread.start()
        return self._ready.pop(step)

    def settle(self) -> None:
        """Wait until nothing is being sampled, so that the sampler's weights may change.

        Raises:
            Exception: the error that stopped the sampling.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _collect_apart(self, step: int) -> None:
        try:
            self._ready[step] = self.collector.collect(step)
        except BaseException as error:
            self._error = error


def environment_weight(rewards: Reward) -> float:
    """The weight of the environment's rewards in the reward of a response."""
    return sum(part.weight for part in rewards.parts if part.kind == "environment")
