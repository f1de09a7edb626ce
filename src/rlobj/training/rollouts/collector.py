"""Collector: from problems to a rollout, which is groups of graded responses with their columns.

A thread grades finished responses while others are sampled.
"""

from __future__ import annotations

import functools
import math
import queue
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rlobj.base.errors import DataError, RunError, counted
from rlobj.base.progress import beat
from rlobj.base.targets import import_target, place_of, shown
from rlobj.config.run_config import DynamicSampling, RunConfig
from rlobj.conversations.driving import Conversations
from rlobj.conversations.grading import described, limited, turn_rewards, with_turns
from rlobj.data import Problem, ProblemStream
from rlobj.models.policy import Policy
from rlobj.objectives.joining import differ
from rlobj.objectives.statistics import Comm
from rlobj.ranks import together
from rlobj.records.rows import TokenTexts
from rlobj.rewards import Graded, Grader, Reward, Several
from rlobj.rewards.function_worker import ColumnValue, column_value
from rlobj.samplers import Sample, Sampler, derive_seed


class Grading:
    """The grades of one call of a sampler. A context manager; an error in its block ends grading.

    A thread grades all responses that wait, in one call of the grader. A grade depends on its
    response alone, so the grades equal those of one call for all.

    Args:
        grader: an open grader.
        problems: one problem for each prompt.

    Attributes:
        seconds: time spent on grading after sampling had ended.
        hidden: seconds spent on grading during sampling.
    """

    def __init__(self, grader: Grader, problems: Sequence[Problem]) -> None:
        self.seconds = self.hidden = 0.0
        self._grader = grader
        self._problems = problems
        self._waiting: queue.SimpleQueue[tuple[int, list[Sample]] | None] = queue.SimpleQueue()
        self._grades: dict[int, list[Graded]] = {}
        self._error: BaseException | None = None
        self._ended = False
        self._busy = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True)  # a reward may hang

    def __enter__(self) -> Grading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._waiting.put(None)

    def done(self, index: int, samples: list[Sample]) -> None:
        """Take the finished samples of a prompt; pass this method to `Sampler.sample`.

        They wait for the others if the grader is batched.

        Raises:
            Exception: grading failed, so sampling should stop.
        """
        if self._error is not None:
            raise self._error
        if not self._grader.batched:
            self._waiting.put((index, samples))

    def finish(self, groups: Sequence[list[Sample]]) -> list[list[Graded]]:
        """Return the grades of all samples, in their order.

        Raises:
            Exception: grading failed.
        """
        start = time.perf_counter()
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(1.0)  # a signal that comes just before a wait is handled after it
        if self._error is not None:
            raise self._error
        self.hidden = max(self._busy - (time.perf_counter() - start), 0.0)
        self._grade([each for each in enumerate(groups) if each[0] not in self._grades])
        self.seconds = time.perf_counter() - start
        return [self._grades[index] for index in range(len(groups))]

    def _work(self) -> None:
        """Grade what waits, in the thread, until None comes."""
        try:
            more = True
            while more:
                taken = [self._waiting.get()]
                while not self._waiting.empty():
                    taken.append(self._waiting.get())
                more = None not in taken
                if not self._ended:
                    self._grade([each for each in taken if each is not None])
        except BaseException as error:
            self._error = error

    def _grade(self, groups: Sequence[tuple[int, list[Sample]]]) -> None:
        """Grade some groups in one call."""
        start = time.perf_counter()
        texts = [sample.text for _, group in groups for sample in group]
        asked = [
            with_turns(self._problems[index], [*map(described, sample.turns)])
            for index, group in groups
            for sample in group
        ]
        grades = iter(self._grader.score(texts, asked) if texts else ())
        self._grades |= {index: [next(grades) for _ in group] for index, group in groups}
        self._busy += time.perf_counter() - start
        beat()


class OwnColumns:
    """Finds the values of `RunConfig.columns`.

    Args:
        config: of the run.
        text: token id -> its text, for functions of one's own.

    Raises:
        ConfigError: a function that cannot be imported.
    """

    def __init__(self, config: RunConfig, text: Callable[[int], str] = str) -> None:
        self._sources, self._rewards, self._text = config.columns, config.rewards, text
        self._functions = {x: import_target(y) for x, y in config.columns.items() if ":" in y}

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that the rows of all problems have the numbers that are read from them.

        Raises:
            DataError: a row without a number.
        """
        for name, source in self._sources.items():
            for problem in problems if source == "data" else ():
                value = problem.extra.get(name)
                if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                    raise DataError(
                        f"columns.{name}=data: expected a number {name!r} in each row, got "
                        f"{shown(value)} for problem {problem.id!r}, {shown(problem.prompt)}; its "
                        f"row also has {', '.join(problem.extra) or 'no other columns'}"
                    )

    def of(self, problem: Problem, sample: Sample, grade: Graded) -> dict[str, ColumnValue]:
        """The value of each column: one for the response, or one for each of its tokens.

        Raises:
            RunError: a function failed; or a value is missing or not finite although the response
                is decided; or there are not as many values as tokens.
        """
        found: dict[str, ColumnValue] = {}
        for name, source in self._sources.items():
            value: Any = grade.columns.get(name)
            if source == "data":
                value = float(problem.extra[name])
            elif source != "reward":
                value = self._called(name, problem, sample)
            many = isinstance(value, Sequence)
            values = value if many else [math.nan if value is None else value]
            finite = grade.undecided or all(map(math.isfinite, values))
            if not finite or (many and len(values) != len(sample.tokens)):
                rewards = f"Reward {' or '.join(self._rewards.targets)}"
                raise RunError(
                    f"{rewards if source == 'reward' else source} returned as the column {name!r} "
                    f"{counted(len(values), 'value')}, {shown(value)}, on problem {problem.id!r}, "
                    f"whose response has {counted(len(sample.tokens), 'token')}. Expected a finite "
                    f"number, or one per token; as {{'reward': 1, 'columns': {{{name!r}: 1}}}},"
                    f" or from a function that gets the tokens: columns.{name}=FILE.py:FUNCTION"
                )
            found[name] = values if many else values[0]
        return found

    def _called(self, name: str, problem: Problem, sample: Sample) -> ColumnValue:
        function, texts, value = self._functions[name], [*map(self._text, sample.tokens)], None
        try:
            value = function(texts, problem.answer, **problem.extra)
            return column_value(value)
        except Exception as error:
            place = place_of(function, traceback.walk_tb(error.__traceback__))
            raise RunError(
                f"{self._sources[name]} failed on problem {problem.id!r}: {type(error).__name__}: "
                f"{shown(error, str)}; it returned {shown(value)}. Expected f(tokens, answer, "
                f"**columns) -> a number, or a list with one number for each token.{place}"
            ) from error


Seconds = defaultdict[str, float]
"""Seconds by purpose: `sample`; `grade` after sampling had ended; `hidden`, grading while sampling
went on."""


@dataclass(frozen=True)
class Response:
    """One graded response.

    Attributes:
        id: unique in the step over all ranks.
        group: id of its prompt's group, unique in the step over all ranks.
        problem: the problem that it answers.
        sample: its tokens.
        grade: the grade before shaping; of several rewards, `grade.rewards` ends with the length
            penalty if there is one.
        reward: the reward after shaping; NaN = undecided.
        columns: the run's own columns, each with one value or one for each token.
        turn_rewards: of the turns of a conversation; they add up to the reward.
    """

    id: int
    group: int
    problem: Problem
    sample: Sample
    grade: Graded
    reward: float
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()


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
    """

    responses: list[Response]
    dead: list[Response]
    batches: int
    seconds: Seconds
    stream: dict[str, Any]
    surplus: int = 0

    @property
    def undecided(self) -> Counter[str]:
        """The reasons of responses without a verdict, with their numbers."""
        grades = [each.grade for each in (*self.responses, *self.dead)]
        return Counter(grade.reason for grade in grades if grade.undecided)


@dataclass
class Collector:
    """Samples groups of responses and grades them; dynamic sampling replaces groups without signal.

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
        own: list[Response] = []
        live: list[int] = []  # ids of all ranks' groups with a signal, in the order of the stream
        drawn = used = 0
        while len(live) < wanted and used < dynamic.max_batches:
            problems = self.stream.next(batch if whole else wanted - len(live))
            numbered = list(enumerate(problems, drawn))[self.comm.rank :: self.comm.size]
            marks = torch.zeros(drawn + len(problems))
            with together(self.comm, "collecting responses", survive=True):
                for group in self._groups(step, numbered, seconds):
                    marks[group[0].group] = sampling.dynamic is None or self._live(group)
                    own += group
            live += self.comm.sum(marks).nonzero().flatten().tolist()
            drawn, used = len(marks), used + 1
        if whole and len(live) < wanted and not dynamic.allow_fewer:
            enough = 2 * used * wanted // (len(live) or wanted)  # if prompts stay as they were
            raise RunError(
                f"step {step + 1} needs {wanted:,} groups with a signal, and {used} × {batch:,} "
                f"prompts gave {len(live):,}. To draw more batches: set sampling.dynamic."
                f"max_batches={enough}. To draw only the missing prompts, and to train on the "
                "groups that there are: set sampling.dynamic.whole_batches=false"
            )
        chosen = set(live[:wanted])
        kept = [response for response in own if response.group in chosen]
        dead = [response for response in own if response.group not in chosen]
        state = self.stream.state()
        return Rollout(kept, dead, used, seconds, state, surplus=len(live) - len(chosen))

    def _groups(
        self, step: int, problems: Sequence[tuple[int, Problem]], seconds: Seconds
    ) -> list[list[Response]]:
        """One group of graded responses for each (group id, problem)."""
        size, seed = self.config.sampling.group_size, self.config.seed
        start, asked = time.perf_counter(), [problem for _, problem in problems]
        with Grading(self.grader, asked) as grading:
            given: Any = {
                "count": size,
                "settings": self.config.sampling.settings(),
                "seeds": [derive_seed(seed, "rollout", step, group) for group, _ in problems],
                "done": grading.done,
            }
            if self.conversations is None:
                samples = self.sampler.sample([*map(self.policy.encode, asked)], **given)
            else:
                samples = self.conversations.sample(asked, **given)
            grades = [grade for group in grading.finish(samples) for grade in group]
        flat = [sample for group in samples for sample in group]
        at_limit = self.config.environment.at_limit
        ends = [sample.turns[-1].end if sample.turns else "done" for sample in flat]
        grades = [limited(*pair, at_limit) for pair in zip(grades, ends, strict=True)]
        own = [*map(self._columns.of, (p for p in asked for _ in range(size)), flat, grades)]
        grades, rewards = self._shaped(grades, flat)
        weight = environment_weight(self.config.rewards)
        by_turn = [turn_rewards(*pair, weight) for pair in zip(flat, rewards, strict=True)]
        seconds["sample"] += time.perf_counter() - start - grading.seconds
        seconds["grade"] += grading.seconds
        seconds["hidden"] += grading.hidden
        graded = zip(flat, grades, rewards, own, by_turn, strict=True)
        return [
            [Response(group * size + j, group, problem, *next(graded)) for j in range(size)]
            for group, problem in problems
        ]

    @functools.cached_property
    def _columns(self) -> OwnColumns:
        return OwnColumns(self.config, TokenTexts(self.policy.tokenizer).text)

    def _shaped(
        self, grades: Sequence[Graded], samples: Sequence[Sample]
    ) -> tuple[Sequence[Graded], list[float]]:
        """The grades, and the rewards plus the penalty on overlong responses."""
        rewards = torch.tensor([grade.reward for grade in grades], dtype=torch.float64)
        overlong = self.config.rewards.overlong
        if overlong is None:
            return grades, rewards.tolist()
        lengths = torch.tensor([len(sample.tokens) for sample in samples])
        longest = self.config.sampling.max_tokens
        if self.config.rewards.names is not None:
            penalties = overlong.shape(torch.zeros_like(rewards), lengths, longest).tolist()
            pairs = zip(grades, penalties, strict=True)
            grades = [replace(grade, rewards=(*grade.rewards, penalty)) for grade, penalty in pairs]
        return grades, overlong.shape(rewards, lengths, longest).tolist()

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


def environment_weight(rewards: Reward) -> float:
    """The weight of the environment's rewards in the reward of a response."""
    parts = rewards.of if isinstance(rewards, Several) else [rewards]
    return sum(each.weight for each in parts if each.kind == "environment")


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
