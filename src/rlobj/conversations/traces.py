"""Traces of verifiers as tables: a trace is a rollout, and each of its branches is a row.

nodes: messages with the tokens that they add  ->  branches  ->  rows  ->  TokenBatch
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rlobj.base.errors import DataError
from rlobj.base.files import parse_json
from rlobj.base.interleaved import Interleaved
from rlobj.objectives.tokens import TokenBatch
from rlobj.samplers.response import packed

DAMAGED = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError)
"""The errors of reading traces that are no traces."""
_VALUES = {
    "sampler_logprobs": "logprobs",
    "old_logprobs": "trainer_logprobs",
    "ref_logprobs": "reference_logprobs",
    "entropy": "entropies",
    "advantages": "advantages",
}
"""The column of a table for what a node has of each of its sampled tokens."""
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
        data = data if isinstance(data, Mapping) else data.model_dump()
        for trace in data.get("traces", [data]):
            if (trace.get("agent") or {}).get("trainable", True):
                yield {**trace, "group": data.get("group")}


def read_traces(given: Iterable[Any]) -> tuple[TokenBatch, list[tuple[Sequence[int], Any]]]:
    """The table of traces, and the prompt ids and response ids of each of its rows.

    Raises:
        DataError: no trace has a sampled token with its log-prob.
        DAMAGED: a trace is damaged.
    """
    groups: dict[Any, int] = {}
    names = ("lengths", "groups", "rollouts", "rewards", "turn", *_VALUES)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    known, absent = set[str](), set[str]()
    sequences = list[tuple[Sequence[int], Any]]()
    for rollout, trace in enumerate(plain_traces(given)):
        task, nodes = trace.get("task") or {}, trace["nodes"]
        group = (trace["group"] or {}).get("id") or task.get("key") or task.get("hash")
        group = (group or task["data"]["idx"], (trace.get("agent") or {}).get("name"))
        scores = [score for score in trace["rewards"].values() if score is not None]
        reward = sum(score["score"] * score.get("weight", 1.0) for score in scores)
        rows = trace_rows(nodes) or [TraceRow((), Interleaved((), ()), [])]
        numbers = turn_numbers(rows)
        for row in rows:
            columns["lengths"].append(len(row.places))
            columns["groups"].append(groups.setdefault(group, len(groups)))
            columns["rollouts"].append(rollout)
            columns["rewards"].append(reward if trace.get("ok") else math.nan)
            columns["turn"] += [numbers[node] for node, _ in row.places]
            sequences.append((row.prompt, row.response))
            for name, key in _VALUES.items():
                missing = [0.0 if name == "advantages" else math.nan] * len(row.places)
                columns[name] += [(nodes[n].get(key) or missing)[place] for n, place in row.places]
        for node, (name, key) in itertools.product(numbers, _VALUES.items()):
            values, sampled = nodes[node].get(key), sum(map(bool, nodes[node]["mask"]))
            if values and len(values) != sampled:
                raise ValueError(f"a node has {len(values)} {key} of {sampled} sampled tokens")
            known |= {name} if values else set()
            absent |= set() if values or not trace.get("ok") else {name}
    absent |= _VALUES.keys() - known
    if {"sampler_logprobs", "old_logprobs"} <= absent:
        raise DataError(
            "no trace has token ids and log-probs; verifiers' train client records them"
        )
    kinds = {"rewards": torch.float64}
    present = {*names} - absent
    table: dict[str, Any] = {n: torch.tensor(columns[n], dtype=kinds.get(n)) for n in present}
    old = "sampler_logprobs" if "old_logprobs" in absent else "old_logprobs"
    if "old_logprobs" in table:
        table["old_entropy"] = table.get("entropy")
    return TokenBatch(logprobs=table[old], ids=torch.arange(len(sequences)), **table), sequences
