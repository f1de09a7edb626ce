"""Traces of verifiers as tables: a trace is a rollout, and each of its branches is a row.

nodes: messages with the tokens that they add  ->  branches  ->  rows  ->  TokenBatch
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rlobj.base.errors import DataError
from rlobj.base.files import parse_json
from rlobj.base.interleaved import Interleaved
from rlobj.objectives.tokens import TokenBatch
from rlobj.samplers.response import packed

_VALUES = ("logprobs", "advantages", "reference_logprobs", "trainer_logprobs", "entropies")
"""What a node has for each of its sampled tokens."""
_TRACE: Any = {
    "nodes": {"__all__": {"parent", "semantic_parents", "token_ids", "mask", *_VALUES}},
    "rewards": True,
    "ok": True,
    "agent": {"name", "trainable"},
    "task": {"key": True, "hash": True, "data": {"idx"}},
    "group": True,
}
"""What is read of a trace."""
_MOST = 1 << 28
"""Tokens of all branches of a trace, each with the whole of its context."""


class TraceRow(NamedTuple):
    """A branch of a trace. A token that several branches share is trained in the first of them.

    Attributes:
        prompt: token ids before the first trained one.
        response: the trained token ids, and what is read between them.
        places: of each trained token: its node, and its place among the node's sampled tokens.
    """

    prompt: Sequence[int]
    response: Interleaved
    places: list[tuple[int, int]]


def trace_rows(nodes: Sequence[Mapping[str, Any]]) -> list[TraceRow]:
    """The branches with a trained token, in the order of verifiers.

    An attempt to compact a context from which the agent did not go on is no row.

    Raises:
        ValueError, LookupError, TypeError: the nodes are damaged.
    """
    parents = {node.get("parent") for node in nodes}
    links = [node.get("semantic_parents") or () for node in nodes]
    size = sum(len(node["token_ids"]) + 1 for node in nodes)
    if size * (1 + len(nodes) - len(parents)) > _MOST:
        raise ValueError(f"the branches of a trace have more than {_MOST:,} tokens")
    accepted = {link["node"] for of in links for link in of if link["type"] == "compaction"}
    trained, rows = set[int](), list[TraceRow]()
    for leaf, of in enumerate(links):
        attempt = any(link["type"] == "compaction_attempt" for link in of)
        if leaf not in parents and (leaf in accepted or not attempt):
            row = _row(nodes, leaf, trained)
            rows += [row] if row.places else []
    return rows


def _row(nodes: Sequence[Mapping[str, Any]], leaf: int, trained: set[int]) -> TraceRow:
    """The row of the branch that ends at a node; its nodes are added to those that are trained."""
    path = [leaf]
    while (parent := nodes[path[-1]].get("parent")) is not None:
        if not 0 <= parent < path[-1]:
            raise ValueError(f"node {path[-1]} has the parent {parent}")
        path.append(parent)
    prompt, tokens, heard = list[int](), list[int](), list[int]()
    gaps, places = list[tuple[int, Sequence[int]]](), list[tuple[int, int]]()
    for number in reversed(path):
        node, place = nodes[number], 0
        for token, sampled in zip(node["token_ids"], node["mask"], strict=True):
            if not sampled or number in trained:
                heard.append(token)
            else:
                if not tokens:
                    prompt = heard
                elif heard:
                    gaps.append((len(tokens), packed("i", heard)))
                heard = []
                tokens.append(token)
                places.append((number, place))
            place += bool(sampled)
        trained.add(number)
    return TraceRow(packed("i", prompt), Interleaved(packed("i", tokens), gaps), places)


def turn_numbers(rows: Sequence[TraceRow]) -> dict[int, int]:
    """Node -> the number of the turn that it is, over all rows, in the order of time."""
    return {node: turn for turn, node in enumerate(sorted({n for r in rows for n, _ in r.places}))}


def plain_traces(given: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """The traces that train the policy, as data; those of an episode have its group."""
    for each in given:
        data = parse_json(each) if isinstance(each, str | bytes) else each
        if not isinstance(data, Mapping):
            data = data.model_dump(include={**_TRACE, "traces": {"__all__": _TRACE}})
        for trace in data.get("traces", [data]):
            if (trace.get("agent") or {}).get("trainable", True):
                yield {**trace, "group": data.get("group")}


def read_traces(given: Iterable[Any]) -> tuple[TokenBatch, list[tuple[Sequence[int], Any]]]:
    """The table of traces, and the prompt ids and response ids of each of its rows.

    Raises:
        DataError: no trace has a sampled token with its log-prob.
        ValueError, LookupError, TypeError, AttributeError: a trace is damaged.
    """
    groups: dict[Any, int] = {}
    of_rows, turns = list[tuple[int, int, int, float]](), list[int]()
    values: dict[str, list[float]] = {name: [] for name in _VALUES}
    known = set[str]()
    sequences: list[tuple[Sequence[int], Any]] = []
    for rollout, trace in enumerate(plain_traces(given)):
        task, nodes = trace.get("task") or {}, trace["nodes"]
        named = (trace["group"] or {}).get("id") or task.get("key") or task.get("hash")
        named = (named or task["data"]["idx"], (trace.get("agent") or {}).get("name"))
        rewards = [reward for reward in trace["rewards"].values() if reward is not None]
        reward = sum(reward["score"] * reward.get("weight", 1.0) for reward in rewards)
        rows = trace_rows(nodes) or [TraceRow((), Interleaved((), ()), [])]
        numbers, group = turn_numbers(rows), groups.setdefault(named, len(groups))
        for row in rows:
            length, decided = len(row.places), trace.get("ok")
            of_rows.append((length, group, rollout, reward if decided else math.nan))
            turns += [numbers[node] for node, _ in row.places]
            sequences.append((row.prompt, row.response))
            for name, column in values.items():
                missing = [0.0 if name == "advantages" else math.nan] * length
                column += [(nodes[n].get(name) or missing)[place] for n, place in row.places]
        known |= {name for name in _VALUES for n in numbers if nodes[n].get(name)}
    present = {name: torch.tensor(values[name], dtype=torch.float32) for name in known}
    present = {name: present.get(name) for name in _VALUES}
    sampler, advantages, reference, trainer, entropy = present.values()
    logprobs = sampler if trainer is None else trainer
    if logprobs is None:
        raise DataError(
            "no trace has token ids and log-probs; verifiers' train client records them"
        )
    lengths, group_ids, rollouts, reward_values = zip(*of_rows, strict=True)
    table = TokenBatch(
        lengths=torch.tensor(lengths),
        groups=torch.tensor(group_ids),
        ids=torch.arange(len(lengths)),
        rollouts=torch.tensor(rollouts),
        rewards=torch.tensor(reward_values, dtype=torch.float64),
        logprobs=logprobs,
        old_logprobs=trainer,
        sampler_logprobs=sampler,
        ref_logprobs=reference,
        entropy=entropy,
        old_entropy=None if trainer is None else entropy,
        advantages=advantages,
        turn=torch.tensor(turns),
    )
    return table, sequences
