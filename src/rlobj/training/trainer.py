"""The training loop.

collect a rollout -> score it -> advantages -> observe -> for each phase and mini-batch: update
-> sync the sampler -> evaluate, write, checkpoint
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlobj.config import RunConfig
from rlobj.data import ProblemStream, load_problems
from rlobj.errors import ConfigError
from rlobj.evaluation import Evaluation, evaluate
from rlobj.samplers import TransformersSampler
from rlobj.scoring import PolicyScorer
from rlobj.tokens import TokenBatch
from rlobj.training.comm import ProcessGroup
from rlobj.training.learner import Learner
from rlobj.training.metrics import rollout_metrics
from rlobj.training.observer import Observer
from rlobj.training.policy import load_model, load_policy
from rlobj.training.records import write_samples, write_tokens
from rlobj.training.rollout import Collector, Rollout, derive_seed
from rlobj.training.run_directory import RunDirectory, load_state

__all__ = ["Summary", "Trainer", "train"]


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes:
        path: the run directory.
        steps: steps done in all.
        seconds: wall time of this process's part.
        history: the lines of metrics.jsonl.
    """

    path: Path
    steps: int
    seconds: float
    history: list[dict[str, Any]]


def train(
    config: RunConfig, out: Path, *, resume: bool = False, observer: Observer | None = None
) -> Summary:
    """Run the configuration to its last step.

    Args:
        config: the run.
        out: the run directory; new, or with `resume` the run to continue.
        resume: continue from the newest checkpoint (or the start, before the first).
        observer: told of everything.

    Raises:
        ConfigError: the input was wrong; nothing was done.
        RunError: the work failed; `resume` continues from the last checkpoint.
    """
    start = time.perf_counter()
    observer = observer or Observer()
    with Trainer(config, out, resume, observer) as trainer:
        for step in range(trainer.step, config.training.steps):
            trainer.run_step(step)
        run = trainer.run
    return Summary(run.path, config.training.steps, time.perf_counter() - start, run.lines())


class Trainer:
    """Everything that a step needs, opened once and closed at the end."""

    def __init__(self, config: RunConfig, out: Path, resume: bool, observer: Observer) -> None:
        self.config = config
        self.observer = observer
        self.objective = config.resolved_objective()
        _set_threads(config)
        train_problems = load_problems(config.data, "train")
        self.problems = _test_problems(config)
        self.stream = ProblemStream(train_problems, seed=config.seed)
        self.source = _model_source(config, observer)
        self.run = RunDirectory(out) if resume else RunDirectory.create(out, config)
        self._stack = contextlib.ExitStack()
        self._checkpoint = self.run.latest() if resume else None
        self.step = 0

    def __enter__(self) -> Trainer:
        from accelerate import Accelerator

        config = self.config
        torch.manual_seed(config.seed)
        gpu = torch.cuda.is_available()
        half = config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and gpu)
        accelerator = Accelerator(cpu=not gpu, mixed_precision="bf16" if half else "no")
        self.comm = ProcessGroup(accelerator.device)
        weights = str(self._checkpoint / "model") if self._checkpoint else self.source
        self.policy = load_policy(config.model, config.data, weights)
        self.policy.model.to(accelerator.device)
        if config.training.gradient_checkpointing:
            self.policy.model.gradient_checkpointing_enable()
        self.learner = Learner(
            config,
            self.objective,
            accelerator,
            PolicyScorer(self.policy.model),
            self._reference(accelerator.device),
            self.comm,
        )
        self.sampler = TransformersSampler(
            self.policy.model, self.policy.tokenizer, batch_tokens=config.sampling.batch_tokens
        )
        self._stack.callback(self.sampler.close)
        self.grader = self._stack.enter_context(config.rewards.open())
        self.collector = Collector(
            config, self.policy, self.sampler, self.grader, self.stream, self.comm
        )
        self._restore()
        self.observer.started(self._facts(accelerator, half))
        if self.step == 0 and config.evaluation.every:
            self._write({"step": 0, **self._evaluate(0)})
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # One step.

    def run_step(self, step: int) -> None:
        """One rollout with all its updates, then everything that is due."""
        config, learner, clock = self.config, self.learner, _Clock(self.observer)
        rate = learner.set_learning_rate(step)
        clock.start("sampling")
        rollout = self.collector.collect(step)
        metrics: dict[str, Any] = {"step": step + 1, **rollout_metrics(rollout, self.comm)}
        if metrics["reward/groups"] > 0:
            clock.start("scoring")
            table = rollout.table(self.learner.accelerator.device)
            table = learner.score(table, rollout.sequences)
            [table] = self.objective.with_advantages([table], self.comm)
            learner.observe(table)
            if self._due(step, config.output.tokens_every):
                self._write_tokens(step, table, rollout)
            metrics.update(learner.sampler_gap(table))
            clock.start("updating")
            metrics.update(self._updates(table, rollout))
            clock.start("syncing")
            self.sampler.sync(self.policy.model, step + 1)
        metrics["train/learning_rate"] = rate
        if self._due(step, config.output.samples_every):
            write_samples(self.run, step + 1, rollout.responses)
        if self._due(step, config.evaluation.every) or step + 1 == config.training.steps:
            clock.start("evaluating")
            metrics.update(self._evaluate(step + 1))
        metrics.update(clock.stop(rollout, metrics["tokens/step"]))
        self._write(metrics)
        self.observer.stepped(step + 1, metrics)
        if self._due(step, config.checkpoint.every) or step + 1 == config.training.steps:
            self._save(step + 1)

    def _updates(self, table: TokenBatch, rollout: Rollout) -> dict[str, float]:
        """Phases outermost, mini-batches of whole groups inside; metrics averaged over updates."""
        every: list[dict[str, float]] = []
        all_sequences = rollout.sequences
        for phase in self.objective.phases:
            for members in mini_batches(rollout, self.config.training.updates_per_step):
                sequences = [all_sequences[i] for i in members]
                batch = table.select(members) if len(members) < len(table.lengths) else table
                stale = bool(every)
                every.append(self.learner.update(phase, batch, sequences, stale=stale))
        names = dict.fromkeys(name for metrics in every for name in metrics)
        return {name: _average(name, every) for name in names}

    # What is due after a step.

    def _due(self, step: int, every: int) -> bool:
        return every > 0 and (step + 1) % every == 0

    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out accuracy; {} where there are no test problems."""
        evaluation = self.config.evaluation
        if not self.problems or not evaluation.every:
            return {}
        self.observer.phase("evaluating")
        settings = self.config.sampling.settings(
            temperature=evaluation.temperature, top_p=evaluation.top_p, top_k=0, min_p=0.0
        )
        result: Evaluation = evaluate(
            self.sampler,
            self.policy.encode,
            self.problems,
            self.grader,
            settings,
            count=evaluation.samples,
            seed=derive_seed(self.config.seed, "evaluation"),
        )
        self.observer.evaluated(step, result)
        return result.metrics()

    def _write(self, metrics: dict[str, Any]) -> None:
        if self.comm.rank == 0:
            self.run.append(metrics)

    def _write_tokens(self, step: int, table: TokenBatch, rollout: Rollout) -> None:
        """The token table of the first responses, as a plan of the whole rollout treats them."""
        plan = self.objective.plan([table], self.learner.state, self.comm)
        few = range(min(self.config.output.token_responses, len(rollout.responses)))
        shown = table.select(few)
        write_tokens(
            self.run,
            step + 1,
            shown,
            plan.head(len(shown)),
            rollout.responses[: len(few)],
            self.policy.tokenizer,
        )

    def _save(self, step: int) -> None:
        state = {
            "step": step,
            "objective": self.learner.state,
            "stream": self.stream.state(),
            "skipped_in_a_row": self.learner.skipped_in_a_row,
        }
        path = self.run.save(
            step,
            state,
            self.learner.optimizer,
            self.policy.save,
            keep=self.config.checkpoint.keep,
        )
        self.observer.saved(path)

    def _restore(self) -> None:
        if self._checkpoint is None:
            self.run.truncate(-1)
            return
        state = load_state(self._checkpoint, self.learner.optimizer)
        self.step = state["step"]
        self.learner.state = state["objective"]
        self.learner.skipped_in_a_row = state["skipped_in_a_row"]
        self.stream.restore(state["stream"])
        self.sampler.sync(self.policy.model, self.step)
        self.run.truncate(self.step)

    def _reference(self, device: torch.device) -> PolicyScorer | None:
        """The policy as it was before training, only where the objective reads it."""
        needs = self.objective.needs
        if "ref_logprobs" not in needs.plan | needs.loss:
            return None
        model = load_model(self.config.model, self.source).to(device)
        return PolicyScorer(model.eval().requires_grad_(False))

    def _facts(self, accelerator: Any, half: bool) -> dict[str, str]:
        parameters = sum(p.numel() for p in self.policy.model.parameters())
        device = str(accelerator.device)
        threads = f", {torch.get_num_threads()} thread(s)" if device == "cpu" else ""
        return {
            "policy": f"{self.config.model.name or 'embedded'}, {parameters:,} parameters",
            "problems": f"{len(self.stream)} to train on, {len(self.problems)} held out",
            "device": f"{device}, {'bfloat16' if half else 'float32'}{threads}",
            "reference": "loaded" if self.learner.reference else "not needed",
            "run": str(self.run.path),
        }


def mini_batches(rollout: Rollout, updates: int) -> list[list[int]]:
    """The rollout's responses in `updates` parts of whole groups, as equal as they can be."""
    groups: dict[int, list[int]] = {}
    for i, response in enumerate(rollout.responses):
        groups.setdefault(response.group, []).append(i)
    members = list(groups.values())
    size, extra = divmod(len(members), updates)
    parts, start = [], 0
    for u in range(updates):
        stop = start + size + (u < extra)
        parts.append([i for group in members[start:stop] for i in group])
        start = stop
    return [part for part in parts if part]


def _average(name: str, every: Sequence[dict[str, float]]) -> float:
    values = [metrics[name] for metrics in every if name in metrics]
    if name in ("train/skipped_updates", "objective/dropped_tokens", "time/planning"):
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)


class _Clock:
    """Seconds by phase, telling the observer of each."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._begun = self._phase_begun = time.perf_counter()
        self._phase = ""
        self._seconds: dict[str, float] = {}

    def start(self, phase: str) -> None:
        self._end()
        self._phase = phase
        self._observer.phase(phase)

    def _end(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = now - self._phase_begun
        self._phase_begun = now

    def stop(self, rollout: Rollout, tokens: float) -> dict[str, float]:
        """time/<phase> in seconds, and tokens per second."""
        self._end()
        total = time.perf_counter() - self._begun
        times = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        times["time/grading"] = rollout.seconds["grade"]
        times["time/sampling"] = rollout.seconds["sample"]
        training = total - times.get("time/evaluating", 0.0)
        return {**times, "time/step": total, "tokens/per_second": tokens / max(training, 1e-9)}


def _set_threads(config: RunConfig) -> None:
    """One thread on a CPU by default: two that wait for each other are slower than one."""
    threads = config.training.threads
    if threads == "auto":
        threads = torch.get_num_threads() if torch.cuda.is_available() else 1
    torch.set_num_threads(threads)


def _test_problems(config: RunConfig) -> list[Any]:
    if not config.evaluation.every:
        return []
    problems = load_problems(config.data, "test")
    return problems[: config.evaluation.problems]


def _model_source(config: RunConfig, observer: Observer) -> str:
    """The folder or hub id of the policy before training; the embedded one is made on first use."""
    if config.model.name is not None:
        return config.model.name
    from rlobj.embedded import embedded_policy

    if config.data.source is None:
        raise ConfigError("the embedded policy needs one of the built-in tasks as data.source")
    return str(embedded_policy(config.data.source, progress=observer.warm_starting))
