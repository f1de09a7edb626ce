"""The scores of a run: policies that score the tokens of a rollout before a step trains on it.

Score     a model of its own, such as the reference or a teacher, spread over ranks; a vLLM server;
          or the policy itself, under another prompt or without its adapters
Lagged    a moving average or an older copy of the policy
"""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jinja2 import StrictUndefined, Template, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment
from torch import Tensor

from rlobj.base.errors import ConfigError, RunError, Setting, reported
from rlobj.data import Problem
from rlobj.models.hollow import reading
from rlobj.models.policy import Policy, prompt_limit
from rlobj.models.scores import frozen, with_end
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import exact_mean
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import any_rank, together
from rlobj.samplers import Response
from rlobj.samplers.vllm.scoring import ServerScore, ServerScorer
from rlobj.scoring import PolicyScorer
from rlobj.scoring.divergences import Comparison, States, TopTokens
from rlobj.scoring.token_scores import head_of
from rlobj.settings.run_config import RunConfig
from rlobj.settings.scores import RoutedConfig, ScoreConfig, single_scores
from rlobj.training.loop.forward import ForwardPasses
from rlobj.training.parallel import Parallel
from rlobj.training.parallel.strategies import Scorer, whole
from rlobj.training.rollouts.collector import Hints
from rlobj.training.rollouts.sharding import StepBatch

_SANDBOX = ImmutableSandboxedEnvironment(undefined=StrictUndefined)


def fill_template(setting: str, template: str, problem: Problem, feedback: str = "") -> str:
    """The text of a template for a problem.

    A template reads the columns as plain data, and no attribute that leads out of them. Nothing
    limits its time and memory.

    Args:
        setting: that has the template, for the message.
        template: its text.
        problem: has the columns.
        feedback: of the reward.

    Raises:
        ConfigError: it is no template, reads a column that the problem lacks, or fails.
    """
    with reported(ConfigError, f"{setting} is no template", Exception):  # also RecursionError
        compiled, read = _compiled(template)
    answer = {"answer": problem.answer} if problem.answer else {}
    columns = {**problem.extra, "prompt": problem.prompt, **answer, "feedback": feedback}
    plain = json.dumps({name: columns[name] for name in read if name in columns}, default=str)
    what = f"{setting} cannot be filled in for problem {problem.id}"
    advice = f". Its columns are {', '.join(columns)}"
    with reported(ConfigError, what, Exception, advice=advice):  # a template fails in many ways
        return compiled.render(json.loads(plain))


@functools.lru_cache
def _compiled(template: str) -> tuple[Template, list[str]]:
    tree = _SANDBOX.parse(template)
    return _SANDBOX.from_string(template), sorted(meta.find_undeclared_variables(tree))


@dataclass(eq=False)
class Score:
    """A policy that scores tokens. Without a model and a server it is the policy in training.

    Attributes:
        settings: `scores.NAME` of the configuration.
        end: the policy's end token, of another model; None = it is the policy.
        model: the model of this score before it was prepared; None = the policy.
        scorer: the same model, spread over the ranks as the policy is; None = the policy.
        shareable: whether a prompt is computed once for several responses; None = as the policy.
        server: scores instead of a model here.
        weights: the context in which the policy has the weights of this score.
    """

    settings: ScoreConfig
    end: int | None = None
    model: PolicyScorer | None = None
    scorer: Scorer | None = None
    shareable: bool | None = None
    server: ServerScorer | None = None
    weights: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    @property
    def exchange(self) -> dict[int, int]:
        """Token ids that have changed places in the vocabulary: the two end tokens."""
        ours, theirs = self.end, self.settings.end
        return {} if ours is None or theirs is None else {ours: theirs, theirs: ours}


class Lagged(Score):
    """A moving average, or a copy from some steps ago, of the weights that are trained, in float32.

    Each rank keeps it for the part of the weights that it stores.

        W' ← ema·W' + (1 − ema)·W      at the end of each step; or W' ← W every `every` steps
    """

    def __init__(self, settings: ScoreConfig) -> None:
        super().__init__(settings, weights=self._within)

    def begin(self, parallel: Parallel, model: Any) -> None:
        """Copy the weights of the policy, which has been prepared."""
        self._parallel = parallel
        self._trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._kept = {n: parallel.stored(p).clone() for n, p in self._trained.items()}

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Follow the policy at the end of a step (from 1)."""
        every, ema = self.settings.every, self.settings.ema
        if every is not None and step % every:
            return
        for name, kept in self._kept.items():
            kept.lerp_(self._parallel.stored(self._trained[name]), 1.0 - (ema or 0.0))

    @contextlib.contextmanager
    def _within(self) -> Iterator[None]:
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
        with self.weights():
            for name, parameter in self._trained.items():
                yield name, self._parallel.full(parameter)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take whole tensors by name, as `whole` gave them."""
        for name, kept in self._kept.items():
            kept.copy_(self._parallel.share(self._trained[name], tensors[name]))


class Scores:
    """Gives a rollout's table the columns of all scores that the objective reads.

    It keeps what divergences read of the scores, hidden states or the most likely tokens, until the
    next step. `policy` is the policy, and what it was prepared to.

    Attributes:
        all: the scores by name; `teacher.models.math` is one of several models of a score.
        lagged: those whose weights follow the policy.
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
        self._parts: dict[str, dict[str, Score]] = {}
        for part, score in scores.items():
            self._parts.setdefault(part.partition(".")[0], {})[part] = score
        self._policy, self._scorer = policy
        self.lagged = {n: score for n, score in scores.items() if isinstance(score, Lagged)}
        for lagged in self.lagged.values():
            lagged.begin(parallel, self._policy.model)
        self._divergences, self._read = objective.divergences, objective.needs.ever
        self._kept: dict[str, TopTokens | States] = {}

    def score(self, whole: StepBatch, table: TokenBatch, step: int) -> TokenBatch:
        """The table with the columns of all scores; called by all ranks together.

        Raises:
            RunError: a log-prob of another model is not finite, or a server is lost.
        """
        for name, parts in self._parts.items():
            columns: dict[str, Tensor] = {}
            for part, score in parts.items():
                chosen = _scored_by(part, whole.responses)
                if columns and not any_rank(bool(chosen), self._parallel.comm):
                    continue  # no problem of this step names it
                of_part = self._columns(part, score, whole, chosen)
                self._require_finite(part, score, of_part, step)
                rows = _tokens_of(chosen, table)
                for kind, values in of_part.items():
                    joined = values.new_zeros(len(table), *values.shape[1:])
                    columns.setdefault(kind, joined)[rows] = values
            if "top_ids" in columns:
                tops = columns["top_ids"], columns["top_logprobs"]
                self._keep(name, TopTokens(*tops, self._vocabulary(name)))
            names = {"logprobs": score_column(name), "entropy": f"{name}_entropy"}
            table = table.with_columns({names[k]: columns[k] for k in names if k in columns})
        return table

    def _require_finite(
        self, part: str, score: Score, columns: Mapping[str, Tensor], step: int
    ) -> None:
        if score.server is None and score.scorer is None:
            return
        read = [columns[kind] for kind in ("logprobs", "entropy") if kind in columns]
        wrong = torch.stack([~values.isfinite() for values in read]).any(0)
        if count := int(self._parallel.comm.sum(wrong.sum())):
            raise RunError(
                f"scores.{part}: {count} of its values are not finite in step {step + 1}. "
                "Use another model, or ",
                Setting(f"scores.{part}.dtype", "float32"),
            )

    def finite(self, table: TokenBatch) -> bool:
        """Whether the columns of all scores are finite on this rank."""
        columns = [table.column(score_column(name), "the step") for name in self._parts]
        return all(bool(column.isfinite().all()) for column in columns)

    def teachers(self, rows: Tensor) -> dict[str, Comparison]:
        """The divergences at some rows of the step's table, each with its teacher.

        Args:
            rows: int [M].
        """
        return {
            column: (divergence, self._kept[column].rows(rows))
            for column, (_, divergence) in self._divergences.items()
        }

    def follow(self, step: int) -> None:
        """Move the scores that follow the policy, at the end of a step (from 1)."""
        for lagged in self.lagged.values():
            lagged.follow(step)

    def metrics(
        self, table: TokenBatch, logprobs: Tensor, responses: Sequence[Response]
    ) -> dict[str, float]:
        """The mean of l_NAME − l of each score over all tokens, in nats; and of teachers, which are
        other models, what the checks of a diagnosis read. `logprobs` are l at the start of the
        step, [N]; NaN = not scored.
        """
        metrics: dict[str, float] = {}
        comm, scored = self._parallel.comm, ~logprobs.isnan()
        last = table.positions == table.spread(table.lengths) - 1
        for name, parts in self._parts.items():
            gap = (table.column(score_column(name), "the metrics") - logprobs).detach()
            gap = gap.masked_fill(~scored, 0.0)
            first, *_ = parts.values()
            for part, score in {name: first, **parts}.items():
                chosen = _scored_by(part, responses)
                where = scored & _tokens_of(chosen, table)
                metrics[f"score/{part}/gap"] = exact_mean(gap, where, comm)
                if score.end is not None and not score.settings.required:
                    ended = [i for i in chosen if [*responses[i].tokens[-1:]] == [score.end]]
                    where = where & last & _tokens_of(ended, table)
                    metrics[f"score/{part}/end_gap"] = exact_mean(gap, where, comm)
        return metrics

    def _columns(
        self, part: str, score: Score, whole: StepBatch, chosen: Sequence[int]
    ) -> dict[str, Tensor]:
        """What a model gives for the tokens of some responses."""
        name = part.partition(".")[0]
        sequences = [
            (r.score_prompts.get(part, r.prompt), with_end(tokens, score.end, score.settings.end))
            for r, (_, tokens) in ((whole.responses[i], whole.sequences[i]) for i in chosen)
        ]
        tops = [d.top for read, d in self._divergences.values() if read == name]
        vocabulary = self._vocabulary(name)
        top = min(max((of or 0 for of in tops), default=0), vocabulary)
        if score.server is not None:
            with together(self._parallel.comm, f"scoring by scores.{part}", survive=True):
                answers = score.server.score(sequences, top)
                columns = _answered(part, answers, (top, vocabulary), whole.table.logprobs)
        else:
            with score.weights(), torch.no_grad():
                columns = self._forward.columns(
                    score.scorer or self._scorer,
                    sequences,
                    score.shareable,
                    entropy=f"{name}_entropy" in self._read,
                    hidden_states=None in tops,
                    top=(top, vocabulary) if top else None,
                )
                if "hidden" in columns:
                    self._keep(name, self._states(score, columns.pop("hidden")))
        if "top_ids" in columns:
            columns["top_ids"] = exchanged(columns["top_ids"], score.exchange)
        return columns

    def _vocabulary(self, name: str) -> int:
        """The tokens that the heads of the policy and of a score have; later ones are padding."""
        models = [score.model or self._policy for score in self._parts[name].values()]
        heads = [scorer.model.get_output_embeddings() for scorer in (self._policy, *models)]
        return min(head.out_features for head in heads)

    def _keep(self, name: str, kept: TopTokens | States) -> None:
        """Keep what divergences read of a score; of the policy itself, with its present head."""
        for column, (read, divergence) in self._divergences.items():
            if read == name and isinstance(kept, States) and divergence.top is None:
                self._kept[column] = kept
            elif read == name and isinstance(kept, TopTokens) and divergence.top is not None:
                ids, logprobs = (x[:, : divergence.top] for x in (kept.ids, kept.logprobs))
                self._kept[column] = TopTokens(ids, logprobs, kept.vocabulary)

    @torch.no_grad()
    def _states(self, score: Score, hidden: Tensor) -> States:
        scorer = score.model or self._policy
        layer = scorer.model.get_output_embeddings()
        parameters = [layer.weight, *([] if layer.bias is None else [layer.bias])]
        if score.model is not None:
            parameters = [whole(p.detach()) for p in parameters]
        else:
            parameters = [self._parallel.full(p) for p in parameters]
            if layer.weight.requires_grad:  # the next update moves the policy
                parameters = [p.clone() for p in parameters]
        if score.exchange:
            ids = torch.arange(len(parameters[0]), device=hidden.device)
            parameters = [p[exchanged(ids, score.exchange)] for p in parameters]
        weight, bias = (*parameters, None)[:2]
        assert weight is not None
        with self._forward.arithmetic():  # as the policy's head multiplies
            head = head_of(hidden, weight, self._forward.temperature, **vars(scorer.shape))
        return States(hidden, head(weight, bias))


def _scored_by(part: str, responses: Sequence[Response]) -> list[int]:
    """The responses that a model scores: all, or those whose problems name it."""
    return [i for i, r in enumerate(responses) if "." not in part or part in r.score_prompts]


def _tokens_of(responses: Sequence[int], table: TokenBatch) -> Tensor:
    """The tokens of some responses, bool [N]."""
    chosen = torch.zeros_like(table.lengths, dtype=torch.bool)
    chosen[[*responses]] = True
    return table.spread(chosen)


def exchanged(ids: Tensor, exchange: Mapping[int, int]) -> Tensor:
    """Token ids after some of them have changed places; see `Score.exchange`."""
    changed = ids.clone()
    for one, other in exchange.items():
        changed[ids == one] = other
    return changed


def _answered(
    name: str, answers: Sequence[ServerScore], top: tuple[int, int], like: Tensor
) -> dict[str, Tensor]:
    """The columns that a server gave, with the k most likely of the first V tokens.

    Raises:
        RunError: one of these is no token of the policy, or there are too few.
    """
    columns = {"logprobs": torch.tensor([answer.logprob for answer in answers]).to(like)}
    count, vocabulary = top
    if not count:
        return columns
    if any(len(s.ids) < count or max(s.ids) >= vocabulary for s in answers):
        raise RunError(
            f"scores.{name}: the server gave fewer than {count} tokens of the policy's at a "
            "position. Use a smaller `top`, or a teacher with the policy's vocabulary"
        )
    ids = torch.tensor([answer.ids for answer in answers], device=like.device).long()
    logprobs = torch.tensor([answer.logprobs for answer in answers]).to(like)
    size = len(answers), count
    return {**columns, "top_ids": ids.view(size), "top_logprobs": logprobs.view(size)}


def open_scores(
    config: RunConfig,
    objective: Objective,
    policy: Policy,
    parallel: Parallel,
    initial: Callable[..., Any],
) -> dict[str, Score]:
    """Load the models of the scores that the objective reads, and connect to their servers.

    `initial` is `InitialPolicy.of_score`.

    Raises:
        ConfigError: a model cannot be loaded, or reads other tokens than the policy.
        RunError: a server does not answer.
    """
    scores: dict[str, Score] = {}
    end, sampling = policy.tokenizer.eos_token_id, config.sampling
    read = {n: config.scores.get(n, ScoreConfig()) for n in sorted(objective.read_scores)}
    for name, score in read.items():
        _require_read(name, single_scores({name: score}), objective)
    for name, settings in single_scores(read).items():
        if settings.server is not None:
            server = ServerScorer(
                settings.server,
                name=name,
                temperature=sampling.temperature,
                timeout=sampling.server.timeout,
                patience=sampling.server.patience,
            )
            if parallel.rank == 0:
                server.check(policy.tokenizer, settings.end)
            scores[name] = Score(settings, end, server=server)
        elif settings.ema or settings.every:
            scores[name] = Lagged(settings)
        elif settings.is_policy:
            scores[name] = Score(settings)
        elif settings.required and config.model.lora is not None:  # the reference
            scores[name] = Score(settings, weights=policy.model.disable_adapter)
        else:
            model = frozen(initial(name, settings, policy), settings, parallel.device)
            with reported(ConfigError, f"scores.{name}", ConfigError), reading(model):
                scorer = PolicyScorer(model, config.training.packed)
            # Keys of all layers take more memory than a run that recomputes has planned.
            recomputed = config.training.gradient_checkpointing is True
            shareable = scorer.unshareable is None and not recomputed
            scores[name] = Score(settings, end, scorer, parallel.frozen(scorer), shareable)
    return scores


def _require_read(name: str, parts: Mapping[str, ScoreConfig], objective: Objective) -> None:
    """Check that the models of a score give what the objective reads of it."""
    read = {c for c, (score, of) in objective.divergences.items() if score == name and not of.top}
    served = any(part.server is not None for part in parts.values())
    who = "a server gives" if served else "several models of one score give"
    read = read | ({f"{name}_entropy"} & objective.needs.ever if served else set())
    if (served or name not in parts) and read:
        raise ConfigError(
            f"the objective reads {min(read)} over the whole vocabulary, and {who} some "
            f"tokens. Use scores.{name}.model, scores.{name}.run, or a divergence with top: 20"
        )


def hints_of(
    config: RunConfig, policy: Policy, read: frozenset[str], problems: Sequence[Problem]
) -> Hints | None:
    """What encodes the prompts of scores that have one of their own, and of the model among several
    that scores a response; None if no score has either. Each problem is filled in once, to find one
    that lacks a column.

    Raises:
        ConfigError: a template is wrong, or reads a column that a problem lacks; or a problem names
            no model of a score.
    """
    scores = {name: score for name, score in config.scores.items() if name in read}
    prompts = {name: x.prompt for name, x in single_scores(scores).items() if x.prompt}
    context = prompt_limit(config, policy.model.config, configured=False) or math.inf

    def names_of(problem: Problem) -> list[str]:
        routed = [s.chosen(n, problem) for n, s in scores.items() if isinstance(s, RoutedConfig)]
        return [*routed, *(name for name in scores if name in prompts)]

    def encoded(name: str, problem: Problem, feedback: str = "") -> list[int]:
        text = fill_template(f"scores.{name}.prompt", prompts[name], problem, feedback)
        ids = policy.encode(replace(problem, prompt=text))
        unknown = policy.tokenizer.unk_token_id
        if unknown in ids and unknown != policy.tokenizer.eos_token_id:
            what = f"scores.{name}.prompt has characters that the policy's tokenizer does not know"
            raise ConfigError(f"{what}: {text[:80]!r}")
        return ids

    def hint(name: str, response: Response) -> Sequence[int]:
        if name not in prompts:
            return response.prompt
        if response.began:
            raise RunError(
                f"scores.{name}.prompt is about the problem, and the environment began a row with "
                "a context of its own. Leave the prompt out, or restart and calls"
            )
        ids = encoded(name, response.problem, response.grade.feedback)
        # a feedback that is too long is left out
        return ids if len(ids) <= context else encoded(name, response.problem)

    pairs = [(name, problem) for problem in problems for name in names_of(problem)]
    for name, problem in pairs:
        if name in prompts and (size := len(encoded(name, problem))) > context:
            raise ConfigError(
                f"scores.{name}.prompt has {size} tokens for problem {problem.id}; the model's "
                f"context leaves {context}. Shorten it, or lower sampling.max_tokens"
            )

    def hints(response: Response) -> dict[str, Sequence[int]]:
        return {name: hint(name, response) for name in names_of(response.problem)}

    return hints if pairs else None
