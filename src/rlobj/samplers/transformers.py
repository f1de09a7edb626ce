"""Sampling with transformers: a plain decode loop over a causal LM.

    prefill distinct prompts -> one row per sample -> draw, drop finished rows, forward -> ...

By default the sampler uses the trainer's module, and no weights are copied. A sampler with its own
copy of the module receives weights through `sync`. Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rlobj.base.batches import by_length
from rlobj.base.errors import RunError
from rlobj.objectives.statistics import hash_keys
from rlobj.samplers.attention import give_room, shared_heads
from rlobj.samplers.response import Response, packed
from rlobj.samplers.types import NOT_FINITE, Done, Feed, Request, SamplingSettings, check_prompts
from rlobj.samplers.weights import Digest, Received, digest
from rlobj.scoring.policy_scorer import depends_on_row, evaluating, tolerance

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

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
        own_copy: the module is a copy, and `sync` copies the trainer's weights into it.
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
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_tokens = batch_tokens
        self.autocast = autocast
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
        limits, rows = [settings.max_tokens] * len(packs), torch.arange(len(packs))
        keys = hash_keys((torch.tensor(seeds, dtype=torch.long)[rows // count], rows % count))
        responses: dict[int, Response] = {}
        missing = [count] * len(prompts)

        def group(owner: int) -> list[Response]:
            return [responses[owner * count + i] for i in range(count)]

        with self._sampling():
            for row, responses[row] in self._drawn(packs, settings, keys, limits):
                missing[row // count] -= 1
                if done is not None and not missing[row // count]:
                    done(row // count, group(row // count))
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

        They are drawn together, so that the same log-probs come in every run, to the bit.
        """
        while (taken := feed.take(whole=True)) is not None:
            requests = sorted(taken, key=lambda request: request.place)
            prompts = [request.prompt for request in requests]
            limits = [request.max_tokens for request in requests]
            keys = hash_keys((torch.tensor([request.seed for request in requests]), 0))
            with self._sampling():
                for row, response in self._drawn(prompts, settings, keys, limits):
                    done(requests[row], response)

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
        if self._received.digests is not None:
            digests = {}
            targets = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
            for name, tensor in weights:
                if name not in targets:
                    raise RunError(f"the sampler's {type(self.model).__name__} has no '{name}'")
                targets[name].copy_(tensor)
                digests[name] = digest(targets[name])
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

    def _drawn(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings,
        keys: Tensor,
        limits: Sequence[int],
    ) -> Iterator[tuple[int, Response]]:
        """Draw a response for each prompt; yield (row, response) as they end.

        Prompts of about the same length are drawn together. Each has the key of its random numbers
        and its largest number of tokens of a response.
        """
        longest = max(limits, default=0)
        lengths = [len(prompt) + longest for prompt in prompts]
        if self._usable is None and prompts:
            self._usable = usable(self.model, max(prompts, key=len))
        padded, cached, shared = self._usable or Usable()
        with shared_heads(self.model) if shared else contextlib.nullcontext():
            for batch in by_length(lengths, self.batch_tokens):
                for _, group in groupby(batch, key=lambda row: padded or lengths[row]):
                    yield from self._batch(prompts, settings, keys, limits, list(group), cached)

    def _batch(
        self,
        prompts: Sequence[Sequence[int]],
        settings: SamplingSettings,
        keys: Tensor,
        limits: Sequence[int],
        rows: list[int],
        cached: bool,
    ) -> Iterator[tuple[int, Response]]:
        """`_drawn` for some rows. Equal prompts are computed once."""
        distinct = dict.fromkeys(tuple(prompts[row]) for row in sorted(rows))
        position = {prompt: index for index, prompt in enumerate(distinct)}
        most = torch.tensor([limits[row] for row in rows])
        context = _Context(self.model, list(position), int(most.max()), cached)
        context.select([position[tuple(prompts[row])] for row in rows])
        for places, tokens, logprobs, stopped in self._decode(context, keys[rows], settings, most):
            if not torch.isfinite(logprobs).all():
                raise RunError(NOT_FINITE, finding="update-too-large")
            texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
            columns = (column.tolist() for column in (places, tokens, logprobs, stopped))
            for place, ids, values, ended, text in zip(*columns, texts, strict=True):
                row, finish = rows[place], "stop" if ended else "length"
                version = self._received.version
                yield row, Response(prompts[row], ids, values, text, finish, version)

    def _decode(
        self,
        context: _Context,
        keys: Tensor,
        settings: SamplingSettings,
        limits: Tensor,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Draw until every row has stopped or has its limit of tokens; such rows leave the batch.

        A row's key is a hash of its prompt's seed and its index within the prompt. A token's
        uniform number is a hash of the key and the token's position: the same in any batch and on
        any rank.

        Yields:
            Rows that end together, in the order of their lengths: indices [E], token ids and
            log-probabilities [E, T], and whether they stopped by themselves [E].
        """
        device = context.logits.device
        eos = torch.tensor(self._eos, dtype=torch.long, device=device)
        limits, longest = limits.to(device), int(limits.max())
        shape = len(keys), longest
        drawn = torch.zeros(shape, dtype=torch.long, device=device)
        values = torch.zeros(shape, device=device)
        alive = torch.arange(len(keys), device=device)
        for position in range(longest):
            bits = (hash_keys((position,), keys) >> 11) & (2**53 - 1)
            uniform = (bits + 1).double() / 2**53
            tokens, logprobs = draw(context.logits, uniform.to(device), settings)
            drawn[alive, position], values[alive, position] = tokens, logprobs
            ended = torch.isin(tokens, eos)
            if settings.stop:
                # A text of n characters spans at most 4n tokens (UTF-8 bytes).
                window = 4 * max(map(len, settings.stop)) + 4
                recent = self.tokenizer.batch_decode(drawn[alive, : position + 1][:, -window:])
                found = [any(stop in text for stop in settings.stop) for text in recent]
                ended |= torch.tensor(found, device=device)
            leaving = ended | (position + 1 >= limits[alive])
            remaining = (~leaving).nonzero()[:, 0]
            if len(remaining) < len(alive):
                gone, order = alive[leaving].sort()
                size = position + 1
                yield gone, drawn[gone, :size], values[gone, :size], ended[leaving][order]
                if not len(remaining):
                    return
                remaining = _close_gaps(leaving, remaining)
                alive, tokens = alive[remaining], tokens[remaining]
                keys = keys[remaining.cpu()]
                context.select(remaining)
            context.append(tokens)


def _close_gaps(leaving: Tensor, remaining: Tensor) -> Tensor:
    """Return the remaining rows in an order that moves few: the last ones fill the gaps."""
    count = len(remaining)
    rows = torch.arange(count, device=leaving.device)
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

    Three sequences get two tokens in a batch whose rows move, come twice and leave. Each has to
    have the logits that it has alone. The sequences are three ends of the prompt, which need
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
        batch = _Context(model, prompts, len(rest), cached)
        for rows, token in zip(([2, 0, 1, 0], [3, 2, 0]), rest, strict=True):
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

    def select(self, rows: Tensor | list[int]) -> None:
        """Keep these rows, in this order; a row may appear several times."""
        index = torch.as_tensor(rows, device=self.logits.device)
        self.logits, self._ids = self.logits[index], self._ids[index]
        self._mask = self._mask[index]
        if self._cache is not None:
            if "batch_select_indices" in vars(type(self._cache)):  # MiniMax has its states there
                self._cache.batch_select_indices(index)
            else:
                self._cache.reorder_cache(index)

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
