"""Sampling with transformers: a plain decode loop over a causal LM.

    prefill distinct prompts -> one row per sample -> draw, drop finished rows, forward -> ...

By default the sampler uses the trainer's module, and no weights are copied. A sampler with its own
copy of the module receives weights through `sync`, also between two tokens of a response. Shapes: B
rows, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlobj.base.batches import by_length
from rlobj.base.errors import RunError
from rlobj.objectives.statistics import hash_keys
from rlobj.samplers.attention import give_room, joined, shared_heads
from rlobj.samplers.response import Response, packed
from rlobj.samplers.types import NOT_FINITE, Between, Feed, Request, check_prompts
from rlobj.samplers.weights import Digest, Received, digest
from rlobj.scoring.policy_scorer import depends_on_row, evaluating, tolerance

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rlobj.samplers.types import Done, SamplingSettings

log = logging.getLogger(__name__)

_Answer = tuple[Request, Response]

_BLOCK, _CPU_BLOCK = 2**25, 2**19
"""Logits processed at a time. This limits the float64 working memory to a few hundred MB; on a CPU
it stays small enough that torch does not take it from the system again for each token."""


def truncate(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Divide logits [B, V] by the temperature, and set tokens outside top-k, top-p, min-p to -inf.

    The order is top-k, top-p, min-p, as in transformers: top-p applies to the renormalised
    distribution that top-k leaves. Tokens that tie with the k-th are kept.
    """
    scores = logits.float() / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        smallest = scores.topk(settings.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -math.inf)
    if settings.top_p < 1:
        probs, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(-1) - probs
        beyond = (before >= settings.top_p).scatter(-1, order, before >= settings.top_p)
        scores = scores.masked_fill(beyond, -math.inf)
    if settings.min_p > 0:
        floor = scores.max(-1, keepdim=True).values + math.log(settings.min_p)
        scores = scores.masked_fill(scores < floor, -math.inf)
    return scores


def draw(logits: Tensor, uniform: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Draw one token for each row of logits [B, V]: ids [B] and log-probabilities [B], float32.

    Inverse transform sampling: the token is the first whose cumulative probability (summed in
    float64) reaches the row's uniform number u in (0, 1]. A token of probability 0 is never drawn.
    Temperature 0 takes the most likely token with log-probability 0 (NaN if logits are not finite).
    """
    if settings.temperature == 0:
        best, tokens = logits.float().max(-1)
        return tokens, best - best
    block = _CPU_BLOCK if logits.device.type == "cpu" else _BLOCK
    size = max(1, block // logits.shape[-1])
    if len(logits) > size:
        blocks = zip(logits.split(size), uniform.split(size), strict=True)
        drawn = [draw(block, numbers, settings) for block, numbers in blocks]
        tokens, logprobs = zip(*drawn, strict=True)
        return torch.cat(tokens), torch.cat(logprobs)
    logprobs = truncate(logits, settings).log_softmax(-1)
    cumulative = logprobs.exp().double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]


@dataclass(slots=True, eq=False)
class _Row:
    """A response that is being drawn.

    Attributes:
        request: what is drawn.
        tokens: ids that were drawn.
        logprobs: of these tokens.
        starts: the first of the tokens that weights of a version drew, by version.
        stopped: by an EOS token or a stop string.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    stopped: bool = False

    @property
    def versions(self) -> list[tuple[int, int]]:
        """The number of tokens of each version."""
        ends = [*self.starts.values(), len(self.tokens)][1:]
        return [(v, end - start) for (v, start), end in zip(self.starts.items(), ends, strict=True)]


class TransformersSampler:
    """Samples from any transformers causal LM, in the process that trains it.

    Only the settings of a call determine the distribution. Of the model's generation_config.json,
    only the EOS tokens are used: those that are special tokens end a response, as the tokenizer's
    EOS does. The global random state is neither read nor changed. The module is in eval mode while
    sampling; afterwards each submodule returns to its previous mode. Before the first batch,
    `usable` tries the model: where padding changes its logits, prompts of one length are drawn
    together, and where its cache does, each token takes a pass over the whole sequence.

    Args:
        model: the policy, a causal LM.
        tokenizer: its tokenizer.
        batch_tokens: largest rows x (prompt + max_tokens) of one batch, in tokens. The key-value
            cache has this size. A single response may exceed it.
        autocast: dtype of the forward pass, the same as for the trainer's scoring; None = the
            dtype of the weights.
        own_copy: the module is a copy, and `sync` copies the trainer's weights into it. All methods
            may then be called while `stream` draws in another thread. It goes on after the call:
            `sync` waits for one token at most, `sample` makes it wait.
        recompute_cache: after a `sync`, responses that are being drawn get the keys and values of
            the new weights, so that the log-probs of their next tokens are those of a forward pass
            over the whole sequence. False: they keep those of the old weights, and the next token
            is still drawn from the old weights.
    """

    dtype: torch.dtype | None = None
    same_tensors = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_tokens: int = 65536,
        autocast: torch.dtype | None = None,
        own_copy: bool = False,
        recompute_cache: bool = True,
    ) -> None:
        self.model = model.eval() if own_copy else model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self.autocast = autocast
        self.syncs_in_flight, self._recompute_cache = own_copy, recompute_cache
        self._between = Between()
        self._received = Received(-1 if own_copy else 0, {} if own_copy else None)
        self._eos = eos_ids(model, tokenizer)
        self._usable: Usable | None = None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Response]]:
        """Draw `count` responses for each prompt, in the order of the prompts; one seed per prompt.

        `done` is called when the last response to a prompt ends.

        Raises:
            ConfigError: a prompt has no tokens, or is too long for the model with `max_tokens`.
            RunError: the model returned logits that are not finite.
        """
        check_prompts(prompts, settings.max_tokens, self.context, "model")
        packs = [pack for prompt in prompts for pack in [packed("i", prompt)] * count]
        requests = [
            Request((i,), i, pack, seeds[i // count], settings.max_tokens, i % count)
            for i, pack in enumerate(packs)
        ]
        responses: dict[int, Response] = {}
        missing = [count] * len(prompts)

        def group(owner: int) -> list[Response]:
            return [responses[owner * count + i] for i in range(count)]

        with self._between.steps(), self._sampling():
            for request, responses[request.key] in self._drawn(requests, settings):
                owner = request.key // count
                missing[owner] -= 1
                if done is not None and not missing[owner]:
                    done(owner, group(owner))
        return [group(owner) for owner in range(len(prompts))]

    @property
    def context(self) -> int | None:
        """The largest number of tokens in prompt and response together; None = no limit."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def stream(
        self,
        feed: Feed[Request],
        settings: SamplingSettings,
        done: Callable[[Request, Response], None],
    ) -> None:
        """Draw a response to each request of a feed, as soon as each of its sources has one.

        They are drawn together, so that the same log-probs come in every run, to the bit. The
        requests of a feed that is not `together` join those that are being drawn.
        """
        if not feed.together:
            with self._sampling():
                for request, response in self._decode(feed, settings):
                    done(request, response)
            return
        while (taken := feed.take(whole=True)) is not None:
            requests = sorted(taken, key=lambda request: request.place)
            with self._sampling():
                for request, response in self._drawn(requests, settings):
                    done(request, response)

    @contextlib.contextmanager
    def _sampling(self) -> Iterator[None]:
        """Inside, the module is in eval mode, without gradient, in the sampler's arithmetic."""
        device = next(self.model.parameters()).device.type
        half = torch.autocast(device, self.autocast, enabled=self.autocast is not None)
        with evaluating(self.model), torch.no_grad(), half:
            yield

    @torch.no_grad()
    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights if the module is a copy; the trainer's own module already has them.

        Raises:
            RunError: the module has no tensor of a given name.
        """
        digests: dict[str, Digest] | None = None
        with self._between.steps():
            if self._received.digests is not None:
                digests, model = {}, self.model
                targets = {**dict(model.named_parameters()), **dict(model.named_buffers())}
                for name, tensor in weights:
                    if name not in targets:
                        raise RunError(f"the sampler's {type(model).__name__} has no '{name}'")
                    targets[name].copy_(tensor)
                    digests[name] = digest(targets[name])
                torch.clear_autocast_cache()  # `stream` has the old weights in it
            self._received = Received(version, digests)

    def received(self) -> Received:
        """Return the version and, if the module is a copy, the digests of the copied tensors."""
        return self._received

    def live(self, part: int | None = None) -> None:
        """Nothing: the module computes with the tensors that `received` tells of."""

    def sleep(self) -> None:
        """Do nothing: between calls the sampler holds no memory besides the module."""

    def close(self) -> None:
        """Do nothing: the module belongs to the trainer."""

    def _tried(self, requests: Sequence[Request]) -> Usable:
        """What of the model can be used: it is tried with the longest of the first prompts."""
        if self._usable is None and requests:
            longest = max((request.prompt for request in requests), key=len)
            with self._between.step():
                self._usable = usable(self.model, longest)
        return self._usable or Usable()

    def _drawn(self, requests: list[Request], settings: SamplingSettings) -> Iterator[_Answer]:
        """Draw a response to each request in batches of prompts of about the same length."""
        self._tried(requests)
        longest = max((request.max_tokens for request in requests), default=0)
        lengths = [len(request.prompt) + longest for request in requests]
        for batch in by_length(lengths, self.batch_tokens):
            yield from self._decode(Feed.whole([requests[i] for i in batch]), settings)

    def _decode(self, feed: Feed[Request], settings: SamplingSettings) -> Iterator[_Answer]:
        """Draw a response to each request of a feed; yield them as they end.

        Rows leave the batch when they have stopped or have their limit of tokens, and new ones
        join it. To join takes about as long as a token of all rows: so they wait until the tokens
        that they could have drawn are as many as the rows that are being drawn. If the model
        cannot pad, rows have one length, and new ones wait for the last one to leave.
        """
        rows: list[_Row] = []
        waiting: list[Request] = []
        keys = torch.zeros(0, dtype=torch.int64)
        batch, missed, received = None, 0, self._received
        while (taken := feed.take(wait=not rows and not waiting)) is not None or rows or waiting:
            padded, cached, shared = self._tried(taken or ())
            waiting += taken or ()
            new = waiting and self._fitting(waiting, rows)
            if not padded:
                new = [each for each in new if not rows and len(each.prompt) == len(new[0].prompt)]
            missed += len(new)
            if missed < len(rows):
                new = []
            ended: list[_Row] = []
            heads = shared_heads(self.model) if shared else contextlib.nullcontext()
            with self._between.step(), heads:
                if batch is not None:
                    if self._recompute_cache and received is not self._received:
                        batch.refresh()
                        received = self._received
                    tokens = self._draw(rows, keys, batch.logits, settings, received.version)
                    over = [r.stopped or len(r.tokens) >= r.request.max_tokens for r in rows]
                    if any(over):
                        ended = [*compress(rows, over)]
                        remaining = _close_gaps(torch.tensor(over))
                        rows = [rows[index] for index in remaining.tolist()]
                        keys, tokens = keys[remaining], tokens[remaining]
                        batch = batch.select(remaining) if rows else None
                    if batch is not None:
                        batch.append(tokens)
                if new:
                    others = _Context.of(self.model, new, cached)
                    batch = others if batch is None else batch.join(others)
                    rows += map(_Row, new)
                    seeds = torch.tensor([(each.seed, each.index) for each in new])
                    keys = torch.cat([keys, hash_keys(tuple(seeds.T))])
                    joined = {*map(id, new)}
                    waiting, missed = [each for each in waiting if id(each) not in joined], 0
                received = self._received
            if ended:
                yield from self._responses(ended)

    def _fitting(self, waiting: list[Request], rows: list[_Row]) -> list[Request]:
        """The first of the waiting requests that have room beside the rows."""
        both = [*waiting, *(row.request for row in rows)]
        longest = max(len(each.prompt) + each.max_tokens for each in both)
        return waiting[: max(self.batch_tokens // longest - len(rows), 0 if rows else 1)]

    def _draw(
        self,
        rows: list[_Row],
        keys: Tensor,
        logits: Tensor,
        settings: SamplingSettings,
        version: int,
    ) -> Tensor:
        """Draw a token for each row from logits [B, V] of this version; the tokens [B].

        A row's key [B] is a hash of its seed and its index within the prompt. A token's uniform
        number is a hash of the key and the token's position: the same in any batch and on any rank.
        """
        positions = torch.tensor([len(row.tokens) for row in rows])
        bits = (hash_keys((positions,), keys) >> 11) & (2**53 - 1)
        uniform = (bits + 1).double() / 2**53
        tokens, logprobs = draw(logits, uniform.to(logits.device), settings)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            row.starts.setdefault(version, len(row.tokens))
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.stopped = token in self._eos
        if settings.stop:
            # A text of n characters spans at most 4n tokens (UTF-8 bytes).
            window = 4 * max(map(len, settings.stop)) + 4
            recent = [row.tokens[-window:] for row in rows]
            for row, text in zip(rows, self.tokenizer.batch_decode(recent), strict=True):
                row.stopped |= any(stop in text for stop in settings.stop)
        return tokens

    def _responses(self, ended: list[_Row]) -> Iterator[_Answer]:
        """Those of rows that end together, in the order of their places."""
        ended.sort(key=lambda row: row.request.place)
        ids = [row.tokens for row in ended]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        for row, text in zip(ended, texts, strict=True):
            if not math.isfinite(sum(row.logprobs)):
                raise RunError(NOT_FINITE, finding="update-too-large")
            yield (
                row.request,
                Response(
                    prompt=row.request.prompt,
                    tokens=row.tokens,
                    logprobs=row.logprobs,
                    text=text,
                    finish="stop" if row.stopped else "length",
                    weight_version=row.versions[-1][0],
                    versions=row.versions,
                ),
            )


def _close_gaps(leaving: Tensor) -> Tensor:
    """Return the remaining rows in an order that moves few: the last ones fill the gaps."""
    remaining = (~leaving).nonzero()[:, 0]
    count = len(remaining)
    rows = torch.arange(count)
    rows[leaving[:count]] = remaining[remaining >= count]
    return rows


class Usable(NamedTuple):
    """What leaves a model's logits as they are.

    Attributes:
        padded: prompts are padded on the left.
        cached: rows use the model's cache.
        shared: a new token's attention is `attention.attention`.
    """

    padded: bool = True
    cached: bool = True
    shared: bool = True


def usable(model: Any, prompt: Sequence[int]) -> Usable:
    """What of padding, the model's cache and our attention can be used.

    Three sequences get two tokens in a batch whose rows join, move, come twice and leave. Each has
    to have the logits that it has alone. The sequences are three ends of the prompt, which need
    padding, or three orders of its tokens, which do not.

    Args:
        model: a causal LM, in eval mode.
        prompt: token ids, such as the longest prompt of a batch.
    """
    ids = [*prompt] if len(prompt) > 1 else [*prompt, *prompt]
    ends = [ids, ids[1:], ids[len(ids) // 2 :]]
    orders = [ids, ids[::-1], [*ids[1:], ids[0]]]

    def alone(padded: bool, cached: bool) -> bool:
        return _as_alone(model, ends if padded else orders, cached)

    with shared_heads(model):
        shared = alone(True, True)
    padded, cached = next(
        (padded, cached)
        for padded, cached in ((True, True), (False, True), (True, False), (False, False))
        if shared or not (padded or cached) or alone(padded, cached)
    )
    padded = padded and not depends_on_row(model.config)
    name = type(model).__name__
    for fits, what in ((padded, "padding"), (cached, "its cache")):
        if not fits:
            log.warning("%s: %s changes its logits, so that sampling is slower", name, what)
    return Usable(padded, cached, shared)


def _as_alone(model: Any, prompts: list[list[int]], cached: bool) -> bool:
    """Whether three sequences have the logits in a batch that they have alone, after two tokens."""
    pad = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
    rest = [max(pad, 0), prompts[0][0]]  # RoBERTa gives a drawn padding token no position
    expected = torch.cat([_Context(model, [prompt + rest], 0, False).logits for prompt in prompts])
    if not expected.isfinite().all():
        return True  # drawing refuses such a model
    try:
        batch = _Context(model, prompts[1:], len(rest), cached)
        batch.join(_Context(model, prompts[:1], len(rest), cached))
        for rows, token in zip(([1, 2, 0, 2], [3, 2, 0]), rest, strict=True):
            batch.select(rows)
            batch.append(torch.tensor([token] * len(rows), device=batch.logits.device))
    except (RuntimeError, TypeError, ValueError, IndexError):  # of the model's cache
        return False
    error = (batch.logits - expected).abs().max()
    # A recurrent layer rounds otherwise in single steps.
    return bool(error <= max(tolerance(expected), 1e-3) * expected.abs().max())


class _Context:
    """A batch of token sequences with its key-value cache and the logits of the next tokens.

    Prompts are padded on the left and masked; positions count real tokens only. If the model has
    no cache that can be indexed by row, or `cached` is False, each step computes the whole
    sequences again, which takes longer.
    """

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], longest: int, cached: bool
    ) -> None:
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._accepted = inspect.signature(inner.forward).parameters.keys()
        self._model = model
        device = next(model.parameters()).device
        width = max(map(len, prompts))
        padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        self._ids = torch.tensor(padded, device=device)  # [B, T]
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._mask = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
        self._padded = any(len(prompt) < width for prompt in prompts)
        self._cached, self._cache = cached, None
        self._longest = width + longest
        self.logits = self._forward(self._ids)  # [B, V]

    @classmethod
    def of(cls, model: Any, requests: Sequence[Request], cached: bool) -> _Context:
        """The prompts of requests. Equal ones are computed once."""
        prompts = [tuple(request.prompt) for request in requests]
        places = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
        batch = cls(model, [*places], max(each.max_tokens for each in requests), cached)
        return batch.select([places[prompt] for prompt in prompts])

    def select(self, rows: Tensor | list[int]) -> _Context:
        """Keep these rows, in this order; a row may appear several times."""
        index = torch.as_tensor(rows, device=self.logits.device)
        self.logits, self._ids = self.logits[index], self._ids[index]
        self._mask = self._mask[index]
        if self._cache is not None:
            if "batch_select_indices" in vars(type(self._cache)):  # MiniMax has its states there
                self._cache.batch_select_indices(index)
            else:
                self._cache.reorder_cache(index)
        return self

    def join(self, other: _Context) -> _Context:
        """Add the rows of another batch; what no row needs any more is cut off on the left."""
        both, cached = (self, other), self._cache is not None
        width = int(max(each._mask.sum(1).max() for each in both))
        self._longest = width + max(each._longest - each._ids.shape[1] for each in both)
        self._cache = joined(self._cache, other._cache, width, self._longest)
        self._ids, self._mask = (
            torch.cat([pad(each, (width - each.shape[1], 0)) for each in pair])
            for pair in ((self._ids, other._ids), (self._mask, other._mask))
        )
        self._padded = not self._mask.all()
        self.logits = torch.cat([self.logits, other.logits])
        if cached and self._cache is None:
            self.refresh()
        return self

    def refresh(self) -> None:
        """Compute all sequences again, for new weights or a cache that no row can join."""
        self._cache = None
        self.logits = self._forward(self._ids)

    def append(self, tokens: Tensor) -> None:
        """Add one token to each row: tokens [B]."""
        self._ids = torch.cat([self._ids, tokens[:, None]], dim=1)
        self._mask = torch.cat([self._mask, torch.ones_like(tokens)[:, None]], dim=1)
        self.logits = self._forward(self._ids if self._cache is None else tokens[:, None])

    def _forward(self, ids: Tensor) -> Tensor:
        # Newer versions of transformers have renamed the argument and the output.
        cached = "cache" if "cache" in self._accepted else "past_key_values"
        arguments: dict[str, Any] = {"use_cache": self._cached, cached: self._cache}
        if self._padded:
            arguments["attention_mask"] = self._mask
            positions = (self._mask.cumsum(1) - 1).clamp(min=0)
            arguments["position_ids"] = positions[:, -ids.shape[1] :]
        arguments["logits_to_keep"] = 1
        accepted = {name: value for name, value in arguments.items() if name in self._accepted}
        output = self._model(input_ids=ids, **accepted)
        cache = next((output[name] for name in ("cache", cached) if name in output), None)
        by_row = self._cached and any(
            hasattr(layer, "keys") for layer in getattr(cache, "layers", ())
        )
        if by_row and hasattr(cache, "reorder_cache"):
            give_room(cache, self._longest)
            self._cache = cache
        return output.logits[:, -1]


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokenizer's EOS and the special tokens among the generation config's EOS tokens.

    Other listed tokens are ignored: the default EOS of a configuration class may be a normal token
    of this tokenizer.
    """
    listed = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = listed if isinstance(listed, list) else [listed]
    special = [
        i for i in listed if i is not None and not tokenizer.decode([i], skip_special_tokens=True)
    ]
    end = tokenizer.eos_token_id
    return sorted({*special, *([] if end is None else [end])})
