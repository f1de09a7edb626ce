"""Responses that are drawn all the time: a step takes the first groups that are complete."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import torch

from rlobj.base.errors import ConfigError, RunError, Setting
from rlobj.base.threads import DaemonThreads
from rlobj.conversations.driving import Talk
from rlobj.data import Problem
from rlobj.ranks import together
from rlobj.samplers import Feed, Request, Response, derive_seed
from rlobj.samplers.response import packed
from rlobj.samplers.types import check_prompts
from rlobj.settings.sampling import DynamicSampling
from rlobj.training.rollouts.collector import Collector, Grading, Rollout, Seconds

_END_SECONDS = 30.0
"""Seconds that the end of a run waits for the sampler to stop."""


@dataclass
class Group:
    """A prompt whose responses are drawn.

    Attributes:
        problem: of the prompt.
        seed: of its responses.
        begun: the version of the oldest weights that may draw it.
        rollouts: the rows of those that are complete, by their numbers.
    """

    problem: Problem
    seed: int
    begun: int
    rollouts: dict[int, list[Response]] = field(default_factory=dict)

    @property
    def rows(self) -> list[Response]:
        """The rows of its rollouts, in their order."""
        return [row for number in sorted(self.rollouts) for row in self.rollouts[number]]


class Continuous:
    """Takes the groups of each step from those that a thread draws all the time.

    The prompts that are drawn, or wait for a step, are `sampling.in_flight` at most. Each rank
    draws every size-th problem of the stream, and takes its share of a step in the order in which
    groups are complete. A group with a token older than `sampling.max_staleness` steps is drawn
    again, behind those that are being drawn. No new weights come while a step waits for groups, so
    that those which begin then are young enough.

    Args:
        collector: has the sampler, and makes groups of what was drawn.

    Raises:
        ConfigError: the sampler, or verifiers, cannot go on with new weights.
    """

    def __init__(self, collector: Collector) -> None:
        self.collector, self._config, self._comm = collector, collector.config, collector.comm
        drawing = [collector.sampler, *filter(None, [collector.conversations])]
        if unable := [each for each in drawing if not getattr(each, "syncs_in_flight", False)]:
            name = getattr(unable[0], "engine", type(unable[0]).__name__)
            raise ConfigError(
                f"sampling.schedule=continuous: {name} has no syncs_in_flight=True, so it takes no "
                "new weights while it draws. Use ",
                Setting("sampling.schedule", "steps"),
            )
        sampling, mine = self._config.sampling, slice(self._comm.rank, None, self._comm.size)
        self._share = len(range(sampling.prompts_per_step)[mine])
        self._most = len(range(sampling.prompts_in_flight)[mine])
        self._mine, self._changed = mine, threading.Condition()
        self._groups: dict[int, Group] = {}
        self._complete: list[int] = []
        self._looked_at: list[Problem] = []  # of the step in progress, as the next two
        self._kept, self._dead = list[list[Response]](), list[list[Response]]()
        self._due: deque[Problem] = deque()  # before those of the stream
        self._numbers, self._passed, self._stale = count(), 0, 0
        self._feed: Feed[Any] = Feed()
        self._work: Future[None] | None = None
        self._taken, self._arrival = math.inf, 0.0
        at_limit = self._config.environment.at_limit
        self._grading = Grading(collector.grader, lambda n: self._groups[n].problem, at_limit)
        self._grading.__enter__()

    def take(self, step: int) -> Rollout:
        """The step's groups; the others in flight go on. After an error, it can be called again.

        Raises:
            WeightsLost: the sampler needs its weights again; what is not complete is drawn again.
            RunError: the sampler gives versions of weights that it did not have.
            Exception: sampling or grading failed, here or on another rank.
        """
        start, seconds = time.perf_counter(), defaultdict[str, float](float)
        begun, drawn = min(start, self._taken), len(self._complete) == len(self._groups)
        idle = start - max(begun, self._arrival) if drawn else 0.0
        dynamic = self._config.sampling.dynamic or DynamicSampling(max_batches=1)
        most = self._share * dynamic.max_batches
        with together(self._comm, "collecting responses", survive=True):
            self._refill(step)
            while missing := min(self._share - len(self._kept), most - len(self._looked_at)):
                self._look_at(self._next(missing), step, seconds)
                self._refill(step)
        self._taken = now = time.perf_counter()
        seconds["sample"] = start - begun - idle
        stale = self._comm.sum(torch.tensor(self._stale))
        rollout = Rollout(
            responses=[*chain(*self._kept)],
            dead=[*chain(*self._dead)],
            batches=math.ceil(len(self._looked_at) / max(self._share, 1)),
            seconds=seconds,
            stream=self.collector.stream.state(),
            metrics={
                "sampling/stale_groups": float(stale),
                "sampling/drawing_share": 1.0 - idle / (now - begun),
            },
        )
        self._looked_at, self._kept, self._dead, self._stale = [], [], [], 0
        self._refill(step + 1)
        return rollout

    def _refill(self, step: int) -> None:
        """Put in prompts for this step and later ones. If nothing draws, a thread begins to."""
        most = min(self._most, self._share * (self._config.training.steps - step))
        new: dict[int, Group] = {}
        while len(self._groups) + len(self._kept) + len(new) < most:
            number = self._comm.rank + next(self._numbers) * self._comm.size
            problem = self._due.popleft() if self._due else self._following()
            seed = derive_seed(self._config.seed, "rollout", step, number)
            new[number] = Group(problem, seed, begun=step - 1)
        self._groups |= new
        if self._work is None:
            new, self._feed = self._groups, Feed(together=False)
            self._work = DaemonThreads().submit(self._draw, self._feed)
        for item in chain(*(self._items(*pair) for pair in new.items())):
            self._feed.put(item)

    def _following(self) -> Problem:
        """This rank's next problem of the stream."""
        self._passed += 1
        return self.collector.stream.next(self._comm.size)[self._comm.rank]

    def _items(self, number: int, group: Group) -> Iterator[Request | Talk]:
        """What is to be drawn for a group."""
        collector, sampling = self.collector, self._config.sampling
        places = [(number, i) for i in range(sampling.group_size) if i not in group.rollouts]
        if collector.conversations is not None:
            yield from (Talk(place, group.problem, group.seed) for place in places)
            return
        prompt, longest = packed("i", collector.policy.encode(group.problem)), sampling.max_tokens
        check_prompts([prompt], longest, collector.sampler.context, "model")
        for place in places:
            yield Request(place, None, prompt, derive_seed(group.seed, place[1]), longest)

    def _draw(self, feed: Feed[Any]) -> None:
        """Draw what is in flight, in the thread, until the feed is abandoned."""
        settings, conversations = self._config.sampling.settings(), self.collector.conversations
        if conversations is not None:
            return conversations.stream(feed, settings, self._arrived)
        arrived: Any = lambda request, response: self._arrived(request, [response])  # noqa: E731
        return self.collector.sampler.stream(feed, settings, arrived)

    def _arrived(self, item: Request | Talk, rows: list[Response]) -> None:
        """Take the rows of a rollout, in the thread that draws or in that of environments."""
        number, index = item.place
        group = self._groups.get(number)
        if group is None or index in group.rollouts:
            return  # what a thread had drawn that has ended was drawn again
        group.rollouts[index], self._arrival = rows, time.perf_counter()
        if len(group.rollouts) == self._config.sampling.group_size:
            self._grading.done(number, group.rows)
            with self._changed:
                self._complete.append(number)
                self._changed.notify_all()

    def _next(self, most: int) -> list[int]:
        """Groups that are complete, at most so many; all of these if they are graded together."""
        least = most if self.collector.grader.batched else 1
        with self._changed:
            while len(self._complete) < least:
                self.settle()
                self._changed.wait(1.0)  # a signal that comes just before is handled after it
            taken, self._complete = self._complete[:most], self._complete[most:]
        return taken

    def _look_at(self, numbers: Sequence[int], step: int, seconds: Seconds) -> None:
        """Grade complete groups; those that are too old are drawn again."""
        grading, collector = self._grading, self.collector
        graded = grading.finish({number: self._groups[number].rows for number in numbers})
        seconds["grade"] += grading.seconds
        seconds["hidden"] += grading.hidden
        for number, grades in zip(numbers, graded, strict=True):
            group = self._groups[number]
            versions = [version for row in group.rows for version, _ in row.versions]
            if not group.begun <= min(versions) <= max(versions) <= step:
                raise RunError(
                    f"the sampler gives Response.versions from {min(versions)} to {max(versions)}; "
                    f"expected {max(group.begun, 0)} to {step}, those of the weights that it had"
                )
            if min(versions) < step - self._config.sampling.max_staleness:
                self._stale += 1
                self._due.appendleft(group.problem)
            else:
                own = self._comm.rank + len(self._looked_at) * self._comm.size
                [rows] = collector.finished([(own, group.problem)], [group.rows], [grades])
                (self._kept if collector.live(rows) else self._dead).append(rows)
                self._looked_at.append(group.problem)
            del self._groups[number]

    def settle(self) -> None:
        """See whether drawing has failed; it need not end before the weights change.

        Raises:
            Exception: the error that stopped it.
            RunError: the sampler ended without one.
        """
        if self._work is not None and self._work.done():
            work, self._work = self._work, None
            work.result()
            name = type(self.collector.sampler).__name__
            raise RunError(f"{name}.stream returned before its feed was closed")

    def position(self) -> dict[str, Any]:
        """The stream's position, and the problems before it that no step has trained on.

        All ranks call this together; their streams are at one position afterwards.
        """
        most = max(self._comm.gather(self._passed))
        while self._passed < most:
            self._due.append(self._following())
        drawn = (group.problem for group in self._groups.values())
        problems = [*self._looked_at, *drawn, *self._due]
        ranks = self._comm.gather([(problem.source, problem.id) for problem in problems])
        return {**self.collector.stream.state(), "in_flight": [*chain(*ranks)]}

    def restore(self, stream: Mapping[str, Any]) -> None:
        """Draw first what was in flight at a position of the stream."""
        every = self.collector.stream.first(len(self.collector.stream))
        problems = {(problem.source, problem.id): problem for problem in every}
        waiting = [problems[source, name] for source, name in stream.get("in_flight", ())]
        self._due.extend(waiting[self._mine])

    def end(self, *_: object) -> None:
        """Leave what is in flight."""
        self._grading.__exit__()
        self._feed.abandon()
        if self._work is not None:
            wait([self._work], _END_SECONDS)
