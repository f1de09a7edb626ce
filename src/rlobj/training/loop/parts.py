"""Parts: everything that a training step works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rlobj.config.run_config import RunConfig
from rlobj.config.run_folder import RunFolder
from rlobj.data import Problem, ProblemStream
from rlobj.insight.diagnosis import Finding, Watch
from rlobj.models.policy import Policy
from rlobj.ranks import ProcessGroup
from rlobj.records.recorder import Recorder
from rlobj.rewards import Grader
from rlobj.samplers import Sampler, TransformersSampler
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.learner import Learner
from rlobj.training.loop.skips import Skips
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.environment import TIMEOUT
from rlobj.training.rollouts.collector import Collector
from rlobj.training.rollouts.journal import Journal
from rlobj.training.rollouts.pipeline import Pipeline
from rlobj.training.rollouts.probes import Probes
from rlobj.training.rollouts.synchronizer import Synchronizer
from rlobj.training.storage.trackers import Trackers


@dataclass
class Parts:
    """The parts of a run. `open_parts` opens them from a configuration.

    Code that works with other parts passes or sets them before the first step: rollouts of several
    turns, say, come from another `pipeline.collector`.

    Attributes:
        config: the run.
        callbacks: receive the events.
        parallel: the processes that share the run.
        policy: the model in training, and how problems become prompts.
        learner: trains the policy; counts the steps done.
        stream: the training problems in their endless order.
        test_problems: the held-out problems; none = no evaluation.
        sampler: draws responses.
        grader: grades them; open.
        run: the run directory.
        trackers: where metrics go beside metrics.jsonl.
        metrics: of the step in progress.
        saved: the step of the newest checkpoint; -1 = none.
        journal: the rollouts on disk.
        pipeline: the rollouts in the order of their steps; a context manager, to be entered.
        synchronizer: gives the sampler the policy's weights.
        probes: sequences that show whether the sampler follows the policy.
        skips: counts updates and steps that changed nothing.
        recorder: what updates did to tokens, in records/ and tables/.
        watch: checks the metrics of each step; on the first rank.
        begun: findings of the last step that the step before did not have; on the first rank.
    """

    config: RunConfig
    callbacks: Sequence[Callback]
    parallel: Parallel
    policy: Policy
    learner: Learner
    stream: ProblemStream
    test_problems: Sequence[Problem]
    sampler: Sampler
    grader: Grader
    run: RunFolder
    trackers: Trackers = field(default_factory=Trackers)
    metrics: dict[str, Any] = field(default_factory=dict)
    saved: int = -1
    begun: list[Finding] = field(default_factory=list)
    journal: Journal = field(init=False)
    pipeline: Pipeline = field(init=False)
    synchronizer: Synchronizer = field(init=False)
    probes: Probes = field(init=False)
    skips: Skips = field(init=False)
    recorder: Recorder = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        config, depth = self.config, self.config.sampling.async_depth
        # Rollouts ahead are sampled in a thread; its exchanges need a process group of their own.
        comm = _second_group(self.comm) if depth else self.comm
        collector = Collector(config, self.policy, self.sampler, self.grader, self.stream, comm)
        self.journal = Journal(self.run, comm)
        self.pipeline = Pipeline(collector, self.journal, depth, config.training.steps)
        own_names = isinstance(self.sampler, TransformersSampler)
        self.synchronizer = Synchronizer(
            self.sampler,
            lambda: self.policy.weights(self.parallel.full, as_stored=not own_names),
            exact=config.sampling.max_logprob_gap == "auto",
        )
        self.probes = Probes(self.comm)
        self.watch = Watch(config)
        self.skips = Skips(self.run, self.comm, config.training.max_skipped)
        self.recorder = Recorder(self.run.path, config, self.policy.tokenizer, self.comm)

    @property
    def comm(self) -> ProcessGroup:
        """The process group."""
        return self.parallel.comm


def _second_group(comm: ProcessGroup) -> ProcessGroup:
    """The same ranks in a second process group, on the CPU."""
    if comm.size == 1:
        return comm
    group = torch.distributed.new_group(backend="gloo", timeout=TIMEOUT)
    return ProcessGroup(torch.device("cpu"), group)
