"""Collector: from problems to a rollout, which is groups of graded responses with their columns."""

import functools
import math
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, Self

import torch

from rlobj.base.errors import RunError, Setting
from rlobj.base.threads import DaemonThreads
from rlobj.conversations.driving import Conversations
from rlobj.conversations.grading import grades_of, turn_rewards
from rlobj.data import Problem, ProblemStream
from rlobj.models.policy import Policy
from rlobj.objectives.rewards import differ
from rlobj.ranks import ProcessGroup, together
from rlobj.rewards import Graded, Grader, Reward
from rlobj.runs.rows import TokenTexts
from rlobj.samplers import Response, Sampler, derive_seed
from rlobj.samplers.response import ROWS, rollouts_of, whole
from rlobj.settings.run_config import RunConfig
from rlobj.settings.sampling import DynamicSampling
from rlobj.training.rollouts.own_columns import OwnColumns

Judge = Callable[[Response], Sequence[float]]
"""A response -> 1 for each spurious token and 0 for each other one, NaN = not judged."""

Hints = Callable[[Response], Mapping[str, Sequence[int]]]
"""A response -> the prompt ids of each score that has a prompt of its own."""

Seconds = defaultdict[str, float]
"""Seconds by purpose: `sample`; `grade` after sampling had ended; `hidden`, grading while sampling
went on."""


@dataclass(frozen=True)
class Rollout:
    """This rank's responses of one step.

    Attributes:
        responses: whole groups, one after another.
        dead: responses of the groups that dynamic sampling left out.
        batches: batches of prompts that dynamic sampling took (1 without it).
        seconds: time of this process by purpose.
        stream: the position of the problem stream after it.
        surplus: groups of all ranks with a signal that were left out: the step had enough.
        metrics: further ones of its schedule.
    """

    responses: list[Response]
    dead: list[Response]
    batches: int
    seconds: Seconds
    stream: dict[str, Any]
    surplus: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


def decouples(config: RunConfig) -> bool:
    """Whether each of several rewards has an advantage of its own."""
    return bool(config.rewards.names) and config.objective.advantage.decoupled


def has_signal(group: Sequence[Response], decoupled: bool) -> bool:
    """Whether the rewards of a group's decided responses differ.

    Args:
        group: its responses.
        decoupled: each of several rewards has an advantage of its own, and one that differs is
            enough.
    """
    decided = [r for r in group if not math.isnan(r.reward)]
    columns = [r.grade.rewards if decoupled else (r.reward,) for r in decided]
    return any(rewards_differ(frozenset(column)) for column in zip(*columns, strict=True))


@functools.lru_cache(1 << 12)
def rewards_differ(rewards: frozenset[float]) -> bool:
    """Whether decided rewards differ by more than rounding."""
    return differ(torch.tensor(list(rewards), dtype=torch.float64))


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
        judge: finds spurious tokens, for the column `spurious`; None = the task cannot say.
        hints: gives `score_prompts` of a response; None = there are none.
        columns: finds the values of the run's own columns; None = it has none.
    """

    config: RunConfig
    policy: Policy
    sampler: Sampler
    grader: Grader
    stream: ProblemStream
    comm: ProcessGroup
    conversations: Conversations | None = None
    judge: Judge | None = None
    hints: Hints | None = None
    columns: OwnColumns | None = None

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
                    marks[group[0].group] = self.live(group)
                    responses += group
            live += self.comm.sum(marks).nonzero().flatten().tolist()
            drawn, used = len(marks), used + 1
        if whole and len(live) < wanted and not dynamic.allow_fewer:
            raise RunError(
                f"step {step + 1} needs {wanted:,} groups with a signal, and {used} × {batch:,} "
                f"prompts gave {len(live):,}. Use ",
                Setting("sampling.dynamic.max_batches", 2 * used),
                " or ",
                Setting("sampling.dynamic.whole_batches", False),
            )
        chosen = set(live[:wanted])
        kept = [response for response in responses if response.group in chosen]
        dead = [response for response in responses if response.group not in chosen]
        return Rollout(kept, dead, used, seconds, self.stream.state(), len(live) - len(chosen))

    def _groups(
        self, step: int, problems: Sequence[tuple[int, Problem]], seconds: Seconds
    ) -> list[list[Response]]:
        """One group of graded responses for each (group id, problem)."""
        size, seed = self.config.sampling.group_size, self.config.seed
        start, prompted = time.perf_counter(), [problem for _, problem in problems]
        with Grading(
            self.grader, prompted.__getitem__, self.config.environment.at_limit
        ) as grading:
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
            grades = grading.finish(dict(enumerate(drawn)))
        groups = self.finished(problems, drawn, grades)
        seconds["sample"] += time.perf_counter() - start - grading.seconds
        seconds["grade"] += grading.seconds
        seconds["hidden"] += grading.hidden
        return groups

    def finished(
        self,
        problems: Sequence[tuple[int, Problem]],
        drawn: Sequence[list[Response]],
        graded: Iterable[list[Graded]],
    ) -> list[list[Response]]:
        """Groups as they are trained on.

        Args:
            problems: the id of each group, and its problem.
            drawn: the rows of the group's rollouts, one rollout after another.
            graded: the grades of these rollouts.
        """
        size, weight = self.config.sampling.group_size, environment_weight(self.config.rewards)
        rollouts = rollouts_of(chain(*drawn))
        wholes = [whole(rows) for rows in rollouts]
        grades = self._shaped(list(chain(*graded)), wholes)
        responses: list[Response] = []
        for i, (rollout, grade) in enumerate(zip(wholes, grades, strict=True)):
            group, problem = problems[i // size]
            shares = turn_rewards(rollout.turns, grade.reward, weight)
            rewards = {t.number: share for t, share in zip(rollout.turns, shares, strict=True)}
            for k, row in enumerate(rollouts[i]):
                response = replace(
                    row,
                    id=group * size + i % size + k * ROWS,
                    group=group,
                    problem=problem,
                    grade=grade,
                    turn_rewards=[rewards[turn.number] for turn in row.turns],
                )
                columns = {} if self.columns is None else self.columns.of(response, self._text)
                if self.judge is not None:
                    nothing = [math.nan] * response.length  # another context than the problem's
                    columns["spurious"] = nothing if row.began else self.judge(response)
                hints = {} if self.hints is None else self.hints(response)
                responses.append(replace(response, columns=columns, score_prompts=hints))
        return [list(rows) for _, rows in groupby(responses, lambda response: response.group)]

    @functools.cached_property
    def _text(self) -> Callable[[int], str]:
        return TokenTexts(self.policy.tokenizer).text

    def _shaped(self, grades: list[Graded], samples: Sequence[Response]) -> list[Graded]:
        """The grades of rollouts with the penalty on overlong ones in their rewards."""
        overlong, sampling = self.config.rewards.overlong, self.config.sampling
        if overlong is None:
            return grades
        longest = sampling.max_tokens if self.conversations is None else sampling.longest_rollout
        lengths = torch.tensor([sample.length for sample in samples])
        none = torch.zeros(len(samples), dtype=torch.float64)
        penalties = overlong.shape(none, lengths, longest).tolist()
        shaped = list[Graded]()
        for grade, penalty in zip(grades, penalties, strict=True):
            rewards = (*grade.rewards, penalty) if self.config.rewards.names else ()
            shaped.append(replace(grade, reward=grade.reward + penalty, rewards=rewards))
        return shaped

    def live(self, group: Sequence[Response]) -> bool:
        """Whether a group is trained on: with dynamic sampling, its decided responses differ."""
        dynamic = self.config.sampling.dynamic
        if dynamic is None or self.config.objective.scores_alone:
            return True
        if dynamic.by == "accuracy":
            verdicts = {r.grade.correct for r in group if r.grade.correct is not None}
            return len(verdicts) == 2
        return has_signal(group, decouples(self.config))


class Grading:
    """Grades groups as they are drawn. A context manager; at the end of its block, grading ends.

    A thread grades all responses that wait, in one call of the grader. A grade depends on its
    response alone, so the grades equal those of one call for all.

    Args:
        grader: an open grader.
        problem: a prompt's number -> its problem.
        at_limit: see `EnvironmentSettings.at_limit`.

    Attributes:
        seconds: time that the last `finish` took.
        hidden: seconds spent on grading before it, since the one before.
    """

    def __init__(
        self,
        grader: Grader,
        problem: Callable[[int], Problem],
        at_limit: float | str = "graded",
    ) -> None:
        self.seconds = self.hidden = 0.0
        self._grader, self._problem, self._at_limit = grader, problem, at_limit
        self._waiting: queue.SimpleQueue[tuple[int, list[Response]] | None] = queue.SimpleQueue()
        self._queued: set[int] = set()
        self._grades: dict[int, list[Graded]] = {}
        self._changed = threading.Condition()
        self._ended, self._busy = False, 0.0

    def __enter__(self) -> Self:
        self._work = DaemonThreads().submit(self._grade_waiting)  # a reward may hang
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._waiting.put(None)

    def done(self, index: int, samples: list[Response]) -> None:
        """Take the finished samples of a prompt; pass this method to `Sampler.sample`.

        They wait for `finish` if the grader is batched.

        Raises:
            Exception: grading failed, so sampling should stop.
        """
        if self._work.done():
            self._work.result()
        if not self._grader.batched:
            self._queued.add(index)
            self._waiting.put((index, samples))

    def finish(self, groups: Mapping[int, list[Response]]) -> list[list[Graded]]:
        """Return the grades of all rollouts of some groups, in their order.

        Raises:
            Exception: grading failed.
        """
        start = time.perf_counter()
        with self._changed:
            while not self._work.done() and not self._queued.isdisjoint(groups):
                self._changed.wait(1.0)  # a signal that comes just before is handled after it
        if self._work.done():
            self._work.result()
        self.hidden = max(self._busy - (time.perf_counter() - start), 0.0)
        self._grade([group for group in groups.items() if group[0] not in self._grades])
        self.seconds, self._busy = time.perf_counter() - start, 0.0
        return [self._grades.pop(index) for index in groups]

    def _grade_waiting(self) -> None:
        """Grade what waits, in the thread, until None comes."""
        more = True
        while more:
            taken = [self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get())
            more = None not in taken
            if not self._ended:
                self._grade([group for group in taken if group is not None])

    def _grade(self, groups: Sequence[tuple[int, list[Response]]]) -> None:
        """Grade some groups in one call."""
        start = time.perf_counter()
        responses = [response for _, group in groups for response in group]
        problems = [self._problem(index) for index, group in groups for _ in group]
        graded = grades_of(self._grader, responses, problems, self._at_limit) if responses else []
        grades = iter(graded)
        with self._changed:
            self._grades |= {
                index: [next(grades) for row in group if not row.began] for index, group in groups
            }
            self._queued.difference_update(index for index, _ in groups)
            self._busy += time.perf_counter() - start
            self._changed.notify_all()


class Pipeline:
    """Collects rollouts ahead of the steps that train on them.

    With depth 0 a step samples, then trains. With depth k the rollout of step t is sampled while
    the k steps before it are trained, from the weights of version max(0, t - k): it is exactly k
    steps old. A run that is resumed has nothing ahead: its first k rollouts are of the weights that
    it began with.

    One thread samples; `take` starts it, and it ends with its rollout or an error. `settle` waits
    for it, before the weights change.

    Args:
        collector: samples and grades a step's rollout with the sampler's present weights.
        depth: steps ahead; 0 = none.
        steps: of the whole run; no rollout is sampled for later steps.
    """

    def __init__(self, collector: Collector, depth: int, steps: int) -> None:
        self.collector, self._depth, self._steps = collector, depth, steps
        self._ready: dict[int, Rollout] = {}
        self._ahead: Future[None] | None = None

    def take(self, step: int) -> Rollout:
        """The step's rollout. Sampling of the one `depth` steps later starts in a thread."""
        for ahead in range(step, min(step + max(self._depth, 1), self._steps)):
            if ahead not in self._ready:
                self._collect(ahead)
        following = step + self._depth
        if self._depth and following < self._steps:
            self._ahead = DaemonThreads().submit(self._collect, following)
        return self._ready.pop(step)

    def position(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the position of the stream: nothing."""
        return {}

    def restore(self, stream: Mapping[str, Any]) -> None:
        """Nothing is ahead of a run that is resumed."""

    def _collect(self, step: int) -> None:
        self._ready[step] = self.collector.collect(step)

    def settle(self) -> None:
        """Wait until nothing is being sampled, so that the sampler's weights may change.

        Raises:
            Exception: the error that stopped the sampling.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.result()

    def end(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the rollout that is being sampled, unless an error ends the run."""
        if self._ahead is not None and kind is None:
            wait([self._ahead])


def environment_weight(rewards: Reward) -> float:
    """The weight of the environment's rewards in the reward of a response."""
    return sum(part.weight for part in rewards.parts if part.kind == "environment")
