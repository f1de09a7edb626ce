"""The scores of a run: policies that score the tokens of a rollout before a step trains on it.

reference, a model of the hub, a run    frozen weights, spread over ranks as the policy is
model: policy                           the policy's own weights, under another prompt
model: policy with ema or every         a `Lagged` copy of what is trained
server                                  log-probs of a vLLM server
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError, RunError, Setting, reported
from rlobj.data import Problem
from rlobj.data.templates import fill_template
from rlobj.models.hollow import reading
from rlobj.models.policy import Policy, prompt_limit
from rlobj.models.scores import frozen, load_score, score_dtype, with_end
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import exact_mean
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import together
from rlobj.samplers import Response
from rlobj.samplers.vllm.scoring import ServerScorer
from rlobj.scoring import PolicyScorer
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import ScoreConfig
from rlobj.training.loop.forward import ForwardPasses
from rlobj.training.loop.teachers import Teachers
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.strategies import Scorer
from rlobj.training.rollouts.sharding import Hints, Sequences, StepBatch


class Lagged:
    """A moving average, or a copy from some steps ago, of the weights that are trained, in float32.

    Each rank keeps it for the part of the weights that it stores.

        W' ← ema·W' + (1 − ema)·W      at the end of each step; or W' ← W every `every` steps

    Args:
        settings: the score's.
        parallel: the processes; it has prepared the policy.
        model: the policy.
    """

    def __init__(self, settings: ScoreConfig, parallel: Parallel, model: nn.Module) -> None:
        self._settings, self._parallel = settings, parallel
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._kept = {n: parallel.stored(p).clone() for n, p in self._trained.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Follow the policy at the end of a step (from 1)."""
        every, ema = self._settings.every, self._settings.ema
        if every is not None and step % every:
            return
        for name, kept in self._kept.items():
            kept.lerp_(self._parallel.stored(self._trained[name]), 1.0 - (ema or 0.0))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context, the policy has these weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, kept in self._kept.items():
            stored = self._parallel.stored(self._trained[name])
            before = stored.clone()
            stored.copy_(kept)
            kept.copy_(before)

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of each weight, one at a time; all ranks call this together."""
        with self.in_place():
            for name, parameter in self._trained.items():
                yield name, self._parallel.full(parameter)

    @torch.no_grad()
    def restore(self, read: Callable[[str], Tensor]) -> None:
        """Take whole tensors by name, as `whole` gave them."""
        for name, kept in self._kept.items():
            kept.copy_(self._parallel.share(self._trained[name], read(name)))


@dataclass(frozen=True)
class Score:
    """What a score needs to score tokens; one of `frozen`, `lagged` and `server`, or the policy.

    Attributes:
        settings: of the configuration.
        frozen: the scorer of a model of its own.
        lagged: weights that take the policy's place while it scores.
        server: scores instead of a model here.
        bare: the policy without its adapters is the model.
        shareable: whether a frozen model can compute a prompt once for several responses.
        own_end: the policy's end token.
        model: the frozen model of `frozen`.
    """

    settings: ScoreConfig
    frozen: Scorer | None = None
    model: PolicyScorer | None = None
    lagged: Lagged | None = None
    server: ServerScorer | None = None
    bare: bool = False
    shareable: bool | None = None
    own_end: int | None = None

    @property
    def described(self) -> str:
        """Where its weights come from, in words."""
        settings = self.settings
        lag = f", average {settings.ema:g}" if settings.ema else ""
        lag += f", every {settings.every} steps" if settings.every else ""
        source = settings.server or settings.run or settings.model
        return (source or ("without adapters" if self.bare else "the model before training")) + lag


class Scores:
    """Gives a rollout's table the columns of all scores that the objective reads.

    Args:
        scores: by name.
        objective: of the run.
        parallel: the processes.
        policy: the policy, and what it was prepared to.
        forward: makes the forward passes.

    Attributes:
        all: the scores by name.
        teachers: what divergences read of the scores, kept for a step.
    """

    def __init__(
        self,
        scores: Mapping[str, Score],
        objective: Objective,
        parallel: Parallel,
        policy: tuple[PolicyScorer, Scorer],
        forward: ForwardPasses,
    ) -> None:
        self.all, self._parallel, self._forward = scores, parallel, forward
        self._policy, self._scorer = policy
        self.teachers = Teachers(objective.divergences, parallel, self._policy, forward)
        self._entropies = {name for name in scores if f"{name}_entropy" in objective.needs.ever}

    @property
    def lagged(self) -> dict[str, Lagged]:
        """The scores whose weights follow the policy."""
        return {name: score.lagged for name, score in self.all.items() if score.lagged is not None}

    def described(self) -> str:
        """The scores in words."""
        return ", ".join(f"{name} ({score.described})" for name, score in self.all.items())

    def score(self, whole: StepBatch, table: TokenBatch, step: int) -> TokenBatch:
        """The table with the columns of all scores; called by all ranks together.

        What divergences read of the scores is kept in `teachers` until the next step.

        Raises:
            RunError: a log-prob is not finite, or a server is lost.
        """
        for name, score in self.all.items():
            sequences = [
                (
                    response.score_prompts.get(name, response.prompt),
                    with_end(tokens, score.own_end, score.settings.end),
                )
                for response, (_, tokens) in zip(whole.responses, whole.sequences, strict=True)
            ]
            columns = self._columns(name, score, sequences, table)
            if score.frozen is not None or score.server is not None:
                self._require_finite(name, columns, table, step)
            table = table.with_columns(columns)
        return table

    def finite(self, table: TokenBatch) -> bool:
        """Whether the columns that the policy's own weights gave are finite on this rank."""
        names = [n for n, s in self.all.items() if s.frozen is None and s.server is None]
        columns = [table.column(score_column(name), "the step") for name in names]
        return all(bool(column.isfinite().all()) for column in columns)

    def follow(self, step: int) -> None:
        """Move the scores that follow the policy, at the end of a step (from 1)."""
        for lagged in self.lagged.values():
            lagged.follow(step)

    def metrics(
        self, table: TokenBatch, logprobs: Tensor, sequences: Sequences
    ) -> dict[str, float]:
        """The mean of l_NAME − l of each score over all tokens, in nats; and of teachers, which are
        other models, what the checks of a diagnosis read.

        Args:
            table: of the step.
            logprobs: l at the start of the step, [N]; NaN = not scored.
            sequences: of the table.
        """
        metrics: dict[str, float] = {}
        scored = ~logprobs.isnan()
        for name, score in self.all.items():
            gap = (table.column(score_column(name), "the metrics") - logprobs).detach()
            gap = gap.masked_fill(~scored, 0.0)
            metrics[f"score/{name}/gap"] = self._mean(gap, scored)
            if score.own_end is not None and not score.settings.required:
                ends = [bool(len(t)) and t[-1] == score.own_end for _, t in sequences]
                last = table.positions == table.spread(table.lengths) - 1
                ended = (
                    scored
                    & last
                    & table.spread(torch.tensor(ends, dtype=torch.bool, device=gap.device))
                )
                metrics[f"score/{name}/end_gap"] = self._mean(gap, ended)
        return metrics

    def _mean(self, values: Tensor, where: Tensor) -> float:
        return exact_mean(values, where, self._parallel.comm)

    def _columns(
        self, name: str, score: Score, sequences: Sequences, table: TokenBatch
    ) -> dict[str, Tensor]:
        ends = score.own_end, score.settings.end
        if score.server is not None:
            values: list[float] = []
            with together(self._parallel.comm, f"scoring by scores.{name}", survive=True):
                scored = score.server.score(sequences, self.teachers.top(name))
                values = [token.logprob for token in scored]
                self.teachers.keep_answers(name, scored, table.logprobs, ends)
            return {score_column(name): torch.tensor(values).to(table.logprobs)}
        weights: Any = contextlib.nullcontext()
        if score.bare:
            weights = self._policy.model.disable_adapter()
        elif score.lagged is not None:
            weights = score.lagged.in_place()
        settings = {"entropy": name in self._entropies, **self.teachers.settings(name)}
        with weights, torch.no_grad():
            scorer = score.frozen or self._scorer
            columns = self._forward.columns(scorer, sequences, score.shareable, **settings)
            self.teachers.keep(name, columns, score.model, ends)
        entropy = {f"{name}_entropy": columns["entropy"]} if settings["entropy"] else {}
        return {score_column(name): columns["logprobs"], **entropy}

    def _require_finite(
        self, name: str, columns: Mapping[str, Tensor], table: TokenBatch, step: int
    ) -> None:
        wrong = torch.stack([~values.isfinite() for values in columns.values()]).any(0)
        count = int(self._parallel.comm.sum(wrong.sum()))
        if count:
            row = f", the first at {table.row(int(wrong.nonzero()[0]))}" if wrong.any() else ""
            raise RunError(
                f"scores.{name}: {count} of its values are not finite in step {step + 1}{row}. Its "
                "weights are damaged, or its dtype overflows: use ",
                Setting(f"scores.{name}.dtype", "float32"),
                ", or another model",
            )


def open_scores(
    config: RunConfig,
    objective: Objective,
    policy: Policy,
    parallel: Parallel,
    initial: Callable[..., Any],
) -> dict[str, Score]:
    """Load the models of the scores that the objective reads, and connect to their servers.

    The scores whose weights follow the policy get them after `Parallel.prepare`, see `with_lagged`.

    Args:
        config: the run.
        objective: of the run.
        policy: the policy.
        parallel: the processes.
        initial: makes a copy of the model before training, the default reference.

    Raises:
        ConfigError: a model cannot be loaded, or reads other tokens than the policy.
        RunError: a server does not answer.
    """
    scores: dict[str, Score] = {}
    end = policy.tokenizer.eos_token_id
    for name in sorted(objective.read_scores):
        settings = config.scores.get(name, ScoreConfig())
        if settings.server is not None:
            _require_server(name, objective)
            waits = config.sampling.server
            server = ServerScorer(
                settings.server,
                name=name,
                temperature=config.sampling.temperature,
                timeout=waits.timeout,
                patience=waits.patience,
            )
            if parallel.rank == 0:
                server.check(policy.tokenizer, end=settings.end)
            scores[name] = Score(settings, server=server, own_end=end)
        elif settings.is_policy:
            scores[name] = Score(settings)
        elif settings.required and config.model.lora is not None:  # the reference
            scores[name] = Score(settings, bare=True)
        else:
            if settings.required:
                model = initial(dtype=score_dtype(settings), hollow=parallel.shards)
            else:
                model = load_score(
                    name,
                    settings,
                    config.model,
                    policy.tokenizer,
                    device=parallel.device,
                    hollow=parallel.shards,
                )
            with reported(ConfigError, f"scores.{name}", ConfigError):
                _require_context(config, policy.model, model)
                model = frozen(model, settings, parallel.device)
                with reading(model):
                    scorer = PolicyScorer(model, config.training.packed)
            # Keys of all layers take more memory than a run that recomputes has planned.
            recomputed = config.training.gradient_checkpointing is True
            shareable = scorer.unshareable is None and not recomputed
            scores[name] = Score(
                settings, parallel.frozen(scorer), scorer, shareable=shareable, own_end=end
            )
    return scores


def _require_server(name: str, objective: Objective) -> None:
    """Check that a server gives what the objective reads of a score."""
    local = f"use a local model (scores.{name}.model or scores.{name}.run)"
    if f"{name}_entropy" in objective.needs.ever:
        raise ConfigError(
            f"the objective reads {name}_entropy, and a server gives no entropies: {local}"
        )
    for column, (score, divergence) in objective.divergences.items():
        if score == name and divergence.top is None:
            top = ", or give the divergence `top`, such as top: 20"
            raise ConfigError(
                f"the objective reads {column} over the whole vocabulary, and a server gives the "
                f"log-probs of some tokens: {local}{'' if column.endswith('_kl') else top}"
            )


def _require_context(config: RunConfig, policy: Any, model: Any) -> None:
    """Check that a model reads sequences as long as the policy's."""
    limit, other = (prompt_limit(config, loaded.config) for loaded in (policy, model))
    if other is not None and (limit is None or other < limit):
        raise ConfigError(
            f"its context leaves {other} tokens for a prompt, and the policy's more. Use ",
            Setting("data.max_prompt_tokens", other),
        )


def with_lagged(scores: Mapping[str, Score], parallel: Parallel, model: Any) -> dict[str, Score]:
    """The scores, with the weights of those that follow the policy, which has been prepared."""
    return {
        name: replace(score, lagged=Lagged(score.settings, parallel, model))
        if score.settings.ema or score.settings.every
        else score
        for name, score in scores.items()
    }


def hints_of(
    config: RunConfig,
    policy: Policy,
    read: frozenset[str],
    problems: Sequence[Problem],
) -> Hints | None:
    """What encodes the prompts of scores that have one of their own; None if no score has.

    Args:
        config: the run.
        policy: encodes prompts.
        read: the scores that the objective reads.
        problems: to train on; each is filled in once, to find one that lacks a column.

    Raises:
        ConfigError: a template is wrong, or reads a column that a problem lacks.
    """
    prompts = {
        name: score.prompt
        for name, score in config.scores.items()
        if score.prompt is not None and name in read
    }
    context = prompt_limit(config, policy.model.config, configured=False)
    unknown = policy.tokenizer.unk_token_id

    def fill(name: str, problem: Problem, feedback: str = "") -> list[int]:
        text = fill_template(f"scores.{name}.prompt", prompts[name], problem, feedback)
        ids = policy.encode(replace(problem, prompt=text))
        if unknown is not None and unknown in ids:
            raise ConfigError(
                f"scores.{name}.prompt has characters that the policy's tokenizer does not know: "
                f"{text[:80]!r}"
            )
        return ids

    def hint(name: str, problem: Problem, feedback: str) -> list[int]:
        ids = fill(name, problem, feedback)
        if context is None or len(ids) <= context:
            return ids
        return fill(name, problem)  # a feedback that is too long is left out

    def hints(response: Response) -> dict[str, Sequence[int]]:
        feedback = response.grade.feedback
        return {name: hint(name, response.problem, feedback) for name in prompts}

    for name in prompts:
        for problem in problems:
            size = len(fill(name, problem))
            if context is not None and size > context:
                raise ConfigError(
                    f"scores.{name}.prompt has {size} tokens for problem {problem.id}; the model's "
                    f"context leaves {context}. Shorten it, or lower sampling.max_tokens"
                )
    return hints if prompts else None
