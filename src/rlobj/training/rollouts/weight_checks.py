"""Two promises of a sampler: it has the weights that were sent, and it samples from the policy."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal

import torch
from torch import Tensor

from rlobj.base.errors import RunError, Setting
from rlobj.objectives.statistics import Comm
from rlobj.runs.sampler_metrics import sampler_gap
from rlobj.samplers import Digest, Live, Received, Sampler, Sent
from rlobj.settings.sampling import SamplingConfig
from rlobj.training.rollouts.sharding import Sequences

# The weights that were sent have arrived.

_SHOWN = 5
"""Names of tensors in a message."""
_LARGE = 1 << 24
"""Values of a model whose live weights are checked in parts: a smaller one is quick to read."""


class Synchronizer:
    """Pushes weights and checks what the sampler holds, at any learning rate.

    Digests compare every tensor that was sent with the tensor that arrived, and with the tensor
    that the engine computes with. The first sync compares all. Then the matrices of a large model
    are compared in parts: a sync reads the part that was read before the rollout, and the next
    rollout's check reads the next one, so that all is read again in `PARTS` syncs. If an engine
    orders or splits tensors in its own way, or gets a version again, all is read. A tensor that
    leaves the process is compared whole when it arrives.

    Args:
        sampler: receives the weights. If it has a method `live`, the weights that it computes with
            are checked, too; its argument is a part, or None.
        weights: returns the policy's weights of this moment; every rank iterates over all of them.
        exact: the sampler computes with exactly the weights that it received.
    """

    def __init__(
        self,
        sampler: Sampler,
        weights: Callable[[], Iterable[tuple[str, Tensor]]],
        *,
        exact: bool = True,
    ) -> None:
        self._sampler = sampler
        self._weights = weights
        self._exact = exact
        self._sent = Sent(())
        self._version = -1
        self._held: Held | None = None
        self._pushes = 0
        self._in_parts = exact

    def push(self, version: int) -> None:
        """Give the sampler the policy's weights.

        Raises:
            RunError: it does not hold them afterwards.
        """
        self._pushes += 1
        before = self._held
        comparable = before and before.part == self._pushes and before.version != version
        part = self._pushes if comparable else None
        arrives = part if getattr(self._sampler, "same_tensors", False) else None
        next_parts = (self._pushes, self._pushes + 1) if self._in_parts else ()
        sent = Sent(self._weights(), self._sampler.dtype, (arrives, *next_parts))
        try:
            self._sampler.sync(sent, version)
        finally:
            sent.drain()
        self._sent, self._version = sent, version
        self._check(part)

    def check(self) -> None:
        """Does the sampler still hold, and compute with, what was sent last?

        Raises:
            RunError: it does not.
        """
        self._check(self._pushes + 1 if self._in_parts else None)

    def _check(self, part: int | None) -> None:
        """Check what arrived, and a part of what the engine computes with; None = all of it."""
        compare(self._sent.digests, self._version, self._sampler.received())
        live: Callable[[int | None], Live] | None = getattr(self._sampler, "live", None)
        if live is None:
            return

        def held(part: int | None) -> Held:
            return Held(self._version, self._sent.parts[part], live(part), part)

        now = held(part)
        before = self._held if self._held and self._held.part == part else None
        compare_live(now, before, exact=self._exact)
        self._held = now
        if part is None and self._in_parts:
            large = sum(digest.length for digest in self._sent.digests.values()) >= _LARGE
            self._in_parts = large and now.equal and held(self._pushes).equal


def compare(sent: Mapping[str, Digest], version: int, received: Received) -> None:
    """Check that a sampler has the weights that were sent to it.

    Raises:
        RunError: the version differs, or tensors are missing, unknown or different (by name).
    """
    if received.version != version:
        weights = "no weights" if received.version < 0 else f"version {received.version}"
        raise RunError(
            f"the sampler has {weights}, the trainer has version {version}: a weight sync was "
            "skipped or lost, or the sampling server was restarted.",
            finding="sampler-drift",
        )
    if received.digests is None:
        return
    arrived = received.digests
    both = sent.keys() & arrived.keys()
    problems = {
        "did not arrive": sent.keys() - arrived.keys(),
        "was never sent": arrived.keys() - sent.keys(),
        "arrived with other values": {name for name in both if sent[name] != arrived[name]},
    }
    _refuse_weights(
        f"the sampler does not have the trainer's weights of version {version}:", problems
    )


@dataclass(frozen=True)
class Held:
    """What the trainer sent in a sync, and what the engine computes with.

    Attributes:
        version: the version of the weights.
        sent: digest of each tensor that was sent.
        live: those of the engine.
        part: of the matrices' columns that the digests are of; None = all.
    """

    version: int
    sent: Mapping[str, Digest]
    live: Live
    part: int | None = None

    @property
    def equal(self) -> bool:
        """Whether every tensor of the engine has the values that were sent, in their order."""
        return self.live.whole and all(theirs == mine for _, theirs, mine, _ in self.pairs())

    def pairs(self) -> Iterator[tuple[str, Digest, Digest, bool]]:
        """Yield (name, engine's digest, trainer's digest, fused) of what can be compared.

        Tensors of the engine whose parts were not sent under these names are added up by layer,
        "layer N", and so are the sent tensors that are left over.
        """
        left, others = dict(self.sent), dict[str, Digest]()
        for name, (source, digest) in self.live.tensors.items():
            parts = self.live.parts(source)
            if self.sent.keys() >= set(parts):
                yield name, digest, reduce(add, [self.sent[part] for part in parts]), len(parts) > 1
                for part in parts:  # a packed copy has the same parts
                    left.pop(part, None)
            else:
                place = _layer(name)
                others[place] = others[place] + digest if place in others else digest
        for place, digest in others.items():
            mine = [sent for name, sent in left.items() if _layer(name) == place]
            if mine:
                yield place, digest, reduce(add, mine), False


def compare_live(held: Held, before: Held | None, *, exact: bool = True) -> None:
    """Check that an engine computes with the weights that it received.

    - A tensor whose parts are known has the digest of what was sent. An engine may transpose a
      tensor that is not fused; if it kept the order before, it keeps it now.
    - Anything else must change where the trainer's weights of the same layer have changed, and only
      there: tensors in shards, with padding or under other names.

    Args:
        held: what was sent last, and the engine's weights now.
        before: the same when this was checked last; None = never.
        exact: False = all tensors are held to the second rule.

    Raises:
        RunError: it computes with others (by name).
    """
    past = {name: (theirs, mine) for name, theirs, mine, _ in before.pairs()} if before else {}
    homes = {mine.unordered: name for name, _, mine, _ in held.pairs()}
    problems: dict[str, set[str]] = {}
    for name, theirs, mine, fused in held.pairs():
        exactly = exact and held.live.whole and name in held.live.tensors
        old_theirs, old_mine = past.get(name, (None, mine))
        what = ""
        if not exactly or theirs.length != mine.length:
            if before is not None and (mine == old_mine) != (theirs == old_theirs):
                what = "did not change" if theirs == old_theirs else "changed without a reason"
        elif theirs.unordered != mine.unordered:
            home = homes.get(theirs.unordered)
            if before is not None and theirs.unordered == old_mine.unordered:
                what = f"still has the values of version {before.version}"
            else:
                what = f"has the values of {home}" if home else "has other values"
        elif theirs != mine and (fused or (before is not None and old_theirs == old_mine)):
            what = "has its values in another order"
        if what:
            problems.setdefault(what, set()).add(name)
    _refuse_weights(
        f"the engine received the weights of version {held.version} and computes with others:",
        problems,
        "\nSo its samples do not come from the policy. Restart the engine, then resume the run. An "
        "engine that transforms weights as it loads them is no fault: then use ",
        Setting("sampling.max_logprob_gap", "NUMBER"),
        ".",
    )


def _layer(name: str) -> str:
    """Return the layer of a tensor: the first number in its name."""
    match = re.search(r"\.(\d+)\.", name)
    return f"layer {match[1]}" if match else "outside the layers"


def _refuse_weights(head: str, problems: Mapping[str, set[str]], *advice: str | Setting) -> None:
    """Raise an error with a line for each problem that some tensors have, and advice behind it."""
    lines = [_line(sorted(names), what) for what, names in problems.items() if names]
    if lines:
        raise RunError("\n".join([head, *lines]), *advice, finding="sampler-drift")


def _line(names: list[str], what: str) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"  {', '.join(names[:_SHOWN])}{more}: {what}"


# The samples come from the policy: by the log-probs of fresh samples.


class SamplerGap(RunError):
    """The samples do not come from the policy, so they must not be trained on."""


LIMITS = {
    "float32": {"bias": 1e-4, "slope": 3e-3, "excess": 0.1, "gap": 1e-3},
    "bfloat16": {"bias": 3e-3, "slope": 0.03, "excess": 0.1, "gap": 0.1},
}
"""The largest accepted numbers, |slope| for the slope. Bias, slope and gap of correct engines stay
ten times below. Temperature 0.9 has an excess of about 0.3, and top-p 0.95 one of about 0.8."""
_NOISE = {"float32": 1e-5, "bfloat16": 0.03}
"""Gaps up to this one are rounding, however small the run's first gap was, nats."""
_DRIFT = 10
"""Largest accepted multiple of the run's first gap."""
_MEMORY = 0.5
"""Weight of the evidence of the steps before, per step."""
ERRORS = 5
"""Standard errors at which a bias, a slope or an excess is significant."""
_ONE_SIDED, _TRUNCATION = 0.8, 3.0
"""Smallest share of the gap, and limit in nats, of a bias that comes from top-p, top-k or min-p."""


class SampleChecks:
    """The checks of a run's samples, step by step.

        d = sampler's log-prob − trainer's    u = trainer's log-prob + entropy

    gap: mean |d|. It shows weights or arithmetic that are not the trainer's.
    bias: mean d. With top-k, top-p or min-p, d = −log(probability that is kept) ≥ 0 at every token,
        so that the bias is near the gap.
    excess: Σ (p − C) / Σ (C^1.5 − C²), where p is the policy's probability of the token. C = Σ p²
        is the mean of p if the token comes from the policy; the variance of p is at most C^1.5 −
        C². The choice of tokens shows a colder or truncated distribution, whatever log-probs are
        reported.
    slope: of d in u. A sampler at temperature T' instead of T has d ≈ (T/T' − 1) u.

    Args:
        settings: of the run.
        arithmetic: of the policy; None = float32.
        comm: the process group.
    """

    def __init__(
        self, settings: SamplingConfig, arithmetic: torch.dtype | None, comm: Comm
    ) -> None:
        self._settings, self._arithmetic, self._comm = settings, arithmetic, comm

    def compare(
        self,
        columns: Mapping[str, Any],
        sampler: Any,
        state: dict[str, Any],
        *,
        drawn: bool = False,
        whole: bool = True,
    ) -> dict[str, float]:
        """The numbers of `sampler_gap`; if the samples are fresh, they are checked.

        Args:
            columns: the policy's logprobs, entropy and collision of the samples' tokens [N].
            sampler: log-probs by the sampler [N].
            state: of the run; keeps the first gap, and the evidence of an excess.
            drawn: the samples were just drawn from the policy's present weights. A rollout was,
                too, unless rollouts are sampled ahead.
            whole: they were not selected by what was drawn, so that the excess has a meaning.

        Raises:
            SamplerGap: fresh samples do not come from the policy.
        """
        gap = sampler_gap(columns["logprobs"], sampler, self._comm, columns["entropy"])
        if self._settings.async_depth and not drawn:
            return gap
        if whole and columns["collision"] is not None:
            gap |= self._excess(columns["logprobs"], columns["collision"], state)
        settings, first = self._settings, state.get("sampler_gap") or math.inf
        check_gap(gap, settings.max_logprob_gap, self._arithmetic, first, settings.temperature)
        state["sampler_gap"] = state.get("sampler_gap") or gap["sampler/logprob_gap"]
        return gap

    def _excess(
        self, logprobs: Tensor, collision: Tensor, state: dict[str, Any]
    ) -> dict[str, float]:
        """The excess over the last steps; its standard error is at most 1 / √Σ (C^1.5 − C²)."""
        p, c = logprobs.detach().double().exp(), collision.double()
        sums = torch.stack([(p - c).sum(), (c**1.5 - c**2).clamp(min=0).sum()])
        now, before = self._comm.sum(sums.cpu()).tolist(), state.get("sampler_excess", (0.0, 0.0))
        excess, variance = (new + _MEMORY * old for new, old in zip(now, before, strict=True))
        state["sampler_excess"] = [excess, variance]
        if not variance > 0:
            return {}
        return {"sampler/excess": excess / variance, "sampler/excess_error": variance**-0.5}


def check_gap(
    gap: Mapping[str, float],
    limit: float | Literal["auto"],
    arithmetic: torch.dtype | None,
    first: float = math.inf,
    temperature: float = 1.0,
) -> None:
    """Stop where fresh samples do not come from the policy.

    Args:
        gap: from `sampler_gap`.
        limit: of the gap, nats. With a number, it is the only check.
        arithmetic: of the policy; None = float32.
        first: the run's first gap, nats.
        temperature: of the samples that were asked for.

    Raises:
        SamplerGap: they do not, or the gap is not a number.
    """
    name = "float32" if arithmetic is None else str(arithmetic).removeprefix("torch.")
    difference, limits = gap["sampler/logprob_gap"], LIMITS[name]

    def significant(number: str) -> float:
        """The number if it is far from 0 for its standard error; else 0."""
        value, error = (gap.get(f"sampler/{number}{end}", 0.0) for end in ("", "_error"))
        return value if abs(value) > ERRORS * error else 0.0

    if limit == "auto":
        bias, slope, excess = map(significant, ("bias", "slope", "excess"))
        if not bias <= (most := max(limits["bias"], difference / 2)):
            _refuse_samples(
                f"log-probs of fresh samples are {bias:.3g} nats higher there on average; expected "
                f"at most {most:.2g} in {name}. {_cause(bias, difference)}"
            )
        if not abs(slope) <= limits["slope"]:
            _refuse_samples(
                f"log-probs of fresh samples change by {1 + slope:.3f} nats there for each nat of "
                f"the trainer's; expected 1 ± {limits['slope']:.2g} in {name}. Its temperature is "
                f"about {temperature / (1 + slope):.2g}; expected {temperature:g}."
            )
        if not excess <= limits["excess"]:
            _refuse_samples(
                f"it chooses tokens that are too likely, with an excess of {excess:.2g}; expected "
                f"at most {limits['excess']:.2g}. The log-probs that it reports are not those that "
                "it draws from. Its temperature is lower, or top_p, top_k or min_p is set."
            )
        limit = min(limits["gap"], max(_NOISE[name], _DRIFT * first))
    if not difference <= limit:
        _refuse_samples(
            f"log-probs of fresh samples differ by {difference:.3g} nats a token on average, and "
            f"by {difference if math.isinf(first) else first:.2g} in the first step; expected at "
            f"most {limit:.2g} in {name}. The largest ratio is {gap['sampler/ratio_max']:.3g}. The "
            "weights of the last sync are not all in use there, or its settings are others."
        )


def _refuse_samples(what: str) -> None:
    raise SamplerGap(
        f"the sampler does not sample from the policy: {what} Arithmetic that is coarser on "
        "purpose: sampling.max_logprob_gap=NUMBER.",
        finding="sampler-drift",
    )


def _cause(bias: float, gap: float) -> str:
    """What a bias comes from: top-p and the like raise every log-prob, by a few nats at most."""
    if _ONE_SIDED * gap <= bias < _TRUNCATION:
        return (
            "It draws from a part of the policy's tokens only. Remove top_p, top_k, min_p and "
            "other limits from its sampling settings."
        )
    seen = "Some are lower" if bias < _ONE_SIDED * gap else "No top_p or top_k does so much"
    return f"{seen}. The model's settings are others there, or its weights are not all in use."


# The samples come from the policy: by sequences that trainer and engine score after each sync.

_MOST = 0.05
"""Largest accepted lag."""
_ROUNDING = 10
"""How far Δ must exceed the rounding e₀ − t₀ and e' − t', which is in r and in Δ: alone, λ = 1."""
_PROBE_DRIFT = 5
"""How much larger than before rounding may be: without a lag, λ is about as large as |r| / |Δ|."""
_SYNCS = 40
"""Syncs that are taken together: those with Σ Δ² above Σ (e₀ − t₀)²."""


class Probes:
    """Compares the changes of the trainer and the engine from sync to sync.

        t, e: a token's log-prob by the trainer and by the engine after this sync; t', e' after the
        one before it; t₀, e₀ after the first
        Δ = t − t'    r = (e − t) − (e₀ − t₀)
        lag λ = −Σ r sgn(Δ) / Σ |Δ|
        error² = Σ (Σ (r + λ Δ) sgn(Δ) over a sequence)² / (Σ |Δ|)²

    An engine that follows the trainer has λ = 0, and one that stays at the weights before has
    λ = 1. The weights alone do not show this: an engine may compute with copies of them, as in CUDA
    graphs. In bfloat16, much of Δ is rounding. If r = e − t, rounding alone has λ = 1/2: t and t'
    have the same part in (e − t) + Δ/2. So λ is also taken over many syncs, with this r, and
    compared with 1/2.

    Args:
        comm: the process group; each rank has an engine of its own, or asks a server.

    Attributes:
        sequences: (prompt, response) pairs, which do not change after the first sync.
    """

    def __init__(self, comm: Comm) -> None:
        self.sequences: Sequences = []
        self._comm = comm
        self._first: Tensor | None = None  # e₀ − t₀
        self._last: tuple[Tensor, Tensor] | None = None  # t', e'
        self._still = 0  # syncs in a row in which only the trainer changed
        self._window: deque[Tensor] = deque(maxlen=_SYNCS)  # moments of r = e − t

    def check(self, trainer: Tensor, engine: Tensor) -> dict[str, float]:
        """Compare log-probs after a sync, [N] each; all ranks call this together.

        Returns:
            sampler/lag and sampler/lag_error, if the trainer has changed by more than rounding.

        Raises:
            SamplerGap: the engine does not follow the trainer.
        """
        t, e = trainer.double().cpu(), engine.double().cpu()
        if self._first is None or self._last is None:
            self._first, self._last = e - t, (t, e)
            return {}
        before, self._last = self._last, (t, e)
        change, late = t - before[0], before[1] - before[0]
        counts = change != 0, change == 0, e != before[1]
        columns = (*counts, change**2, self._first**2, late**2)
        sums = torch.stack([column.double().nan_to_num().sum() for column in columns])
        moments = [self._moments(r, change) for r in (e - t - self._first, e - t)]
        sums = self._comm.sum(torch.cat([sums, *moments]))
        moved, still, followed, size, first, noise = sums[:6].tolist()
        now, offset_too = sums[6:].view(2, -1)
        self._still = self._still + 1 if moved > still and not followed else 0
        if self._still > 1:
            _refuse_lag("did not change in two syncs, and the trainer's changed in both", 1.0)
        if size > first:
            self._window.append(offset_too)
            lag, error = _lag(torch.stack([*self._window]).sum(0), about=0.5)
            _accept(lag, 0.5 + max(_MOST, ERRORS * error))
        rounding = max(first, noise)
        if size <= _ROUNDING**2 * rounding:
            return {}
        lag, error = _lag(now)
        _accept(lag, max(_MOST, ERRORS * error, _PROBE_DRIFT * math.sqrt(rounding / size)))
        return {"sampler/lag": lag, "sampler/lag_error": error}

    def _moments(self, r: Tensor, change: Tensor) -> Tensor:
        """Σ m, Σ x, Σ m², Σ m x, Σ x² over sequences, m = Σ |Δ| and x = Σ r sgn(Δ) of one."""
        lengths = [len(response) for _, response in self.sequences] or [len(change)]
        parts = torch.stack([change.abs(), r * change.sign()]).nan_to_num().split(lengths, 1)
        m, x = torch.stack([part.sum(1) for part in parts], 1)
        return torch.stack([m.sum(), x.sum(), m @ m, m @ x, x @ x])


def _lag(moments: Tensor, about: float | None = None) -> tuple[float, float]:
    """λ and its error, the spread of sequences about λ or another number."""
    m, x, mm, mx, xx = moments.tolist()
    lag = -x / m
    about = lag if about is None else about
    return lag, math.sqrt(max(xx + 2 * about * mx + about**2 * mm, 0.0)) / m


def _accept(lag: float, most: float) -> None:
    if lag > most:
        _refuse_lag("do not follow the trainer's", lag)


def _refuse_lag(what: str, lag: float) -> None:
    raise SamplerGap(
        f"the engine does not use the weights of the last sync: its log-probs of fixed sequences "
        f"{what}. They lack {lag:.0%} of the change; expected 0%. Old weights may be left in "
        "CUDA graphs or packed copies. Restart the engine, then resume the run.",
        finding="sampler-drift",
    )
