"""Logs that other trainers wrote, as a run that `inspect`, `replay` and `report` read.

    trl        OUTPUT_DIR/completions, of log_completions=True
    verl       the folder of trainer.rollout_data_dir
    prime-rl   OUTPUT_DIR/token_exports, of enable_token_export

An objective is planned on the logged tokens. What a log does not have stays unknown, and
`Converted.missing` says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import torch

from rlobj.base.errors import ConfigError, DataError, RlobjError, nearest
from rlobj.config.layers import layers_of, nested
from rlobj.config.presets import load_preset
from rlobj.config.run_config import ModelConfig, RunConfig, build_config
from rlobj.data.files import read_file
from rlobj.integrations.run_record import RunRecord, observed_update
from rlobj.models.policy import load_tokenizer
from rlobj.objectives.objective import Objective
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.tokens import TokenBatch

Row = Mapping[str, Any]
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Converted:
    """A log as the folder of a run.

    Attributes:
        run: the folder.
        steps: the steps that the log has.
        tokens: number of response tokens.
        missing: what the log does not have, in words.
    """

    run: Path
    steps: tuple[int, ...]
    tokens: int
    missing: tuple[str, ...]


@dataclass
class _Step:
    """What a log has of a step.

    Attributes:
        number: from 1.
        sequences: prompt ids and response ids of each response.
        groups: the group of each response.
        columns: columns of the TokenBatch, per response or per token.
    """

    number: int
    sequences: list[Pair] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=dict)

    def table(self) -> TokenBatch:
        """The responses, with ids; log-probs that are not known are NaN."""
        lengths = torch.tensor([len(response) for _, response in self.sequences])
        first = self.number << 32  # ids are unique over the steps
        unknown = {"logprobs": torch.full((int(lengths.sum()),), torch.nan)}
        own = {"ids": torch.arange(len(lengths)) + first, **unknown, **self.columns}
        return TokenBatch(lengths=lengths, groups=torch.tensor(self.groups) + first, **own)


@dataclass(frozen=True)
class _Log:
    """The log of a trainer.

    Attributes:
        read: (folder, tokenizer, names of the rewards) -> its steps.
        columns: the columns of a TokenBatch that it has.
        missing: what it does not have.
    """

    read: Callable[[Path, Any, Sequence[str]], Iterator[_Step]]
    columns: frozenset[str]
    missing: tuple[str, ...]


def convert_log(
    trainer: str,
    source: Path | str,
    out: Path | str,
    tokenizer: Any,
    *,
    objective: str | Objective = "dapo-loss",
    rewards: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Converted:
    """Write the log of another trainer as the folder of a run.

    Each step of the log is planned as one update. Every token is recorded, and every step has a
    full table.

    Args:
        trainer: "trl", "verl" or "prime-rl".
        source: the folder that the trainer wrote.
        out: the run's folder; it is created.
        tokenizer: of the policy: an object of transformers, a folder or a hub id.
        objective: a preset or an Objective. Effects, clauses and weights of the run are what it
            would do to the tokens, not what the trainer did.
        rewards: the columns of rewards in TRL's log, if several of its columns are numbers.
        settings: of the run, by dotted name, such as {"sampling.max_tokens": 4096}.

    Raises:
        ConfigError: an unknown trainer, an objective that reads what the log does not have, or
            `out` is a run already.
        DataError: the log cannot be read, or has no response.
    """
    if trainer not in _LOGS:
        raise ConfigError(f"no logs of '{trainer}' can be converted.{nearest(trainer, _LOGS)}")
    log = _LOGS[trainer]
    name = tokenizer if isinstance(tokenizer, str) else str(tokenizer.name_or_path)
    if isinstance(tokenizer, str):
        tokenizer, _ = load_tokenizer(ModelConfig(), tokenizer)
    config = _configured(objective, name or trainer, str(source), settings or {})
    planned = config.resolved_objective()
    for column in sorted((planned.needs.plan | planned.needs.observe) - log.columns):
        raise ConfigError(
            f"the log of {trainer} has no column '{column}', which {planned.reader(column)} reads"
        )
    read = _sound(log.read(Path(source), tokenizer, rewards), f"{source} is no log of {trainer}")
    first = next(read, None)
    if first is None:
        raise DataError(f"{source} has no response of {trainer}")
    state, steps, tokens = planned.init(), list[int](), 0
    with closing(RunRecord(out, config, tokenizer, SingleProcess())) as record:
        for step in chain([first], read):
            record.steps = step.number - 1
            state = _record(record, planned, step, state)
            steps.append(step.number)
            tokens += sum(len(response) for _, response in step.sequences)
    return Converted(Path(out), tuple(steps), tokens, log.missing)


def _sound(steps: Iterator[_Step], what: str) -> Iterator[_Step]:
    """The steps of a log; values that no such log has become a DataError."""
    try:
        yield from steps
    except RlobjError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{what}: {type(error).__name__}: {error}") from error


def _configured(
    objective: str | Objective, model: str, source: str, settings: Mapping[str, Any]
) -> RunConfig:
    """The configuration of the run."""
    if not isinstance(objective, Objective):
        objective = load_preset(objective).objective
    own = {
        "objective": objective.model_dump(mode="json", by_alias=True),
        "model": {"name": model},
        "data": {"source": source},
        "output": {"records_share": 1.0, "tables_every": 1},
    }
    given = [("settings", nested(path, value)) for path, value in settings.items()]
    return build_config(layers_of(None, [("the log", own), *given]))


def _record(
    record: RunRecord, objective: Objective, step: _Step, state: Mapping[str, Any]
) -> dict[str, Any]:
    """Plan a step and record it; the objective's new state."""
    [table] = objective.with_advantages([step.table()])
    now = objective.observe([table], state)
    for index, phase in enumerate(objective.phases):
        plan = phase.plan([table], now, clauses=True)
        known = {name: getattr(table, name) for name in ("logprobs", "entropy")}
        scores = {name: column for name, column in known.items() if column is not None}
        observed = observed_update(phase, dict(now), [table], plan, step.sequences, [scores])
        entropy = observed.entropy.double().nanmean().item()
        record.update(index, observed, {"policy/entropy": entropy} if entropy == entropy else {})
        now["update"] = now.get("update", 0) + 1
    record.end_step()
    return now


# TRL: one Parquet file per logged step, with the completions of the last generation batch.


def _trl(folder: Path, tokenizer: Any, rewards: Sequence[str]) -> Iterator[_Step]:
    last: Sequence[Row] = ()
    for file, number in _files(folder, r"completions_(\d+)\.parquet"):
        rows = [row for _, row in read_file(file)]
        same = [{k: v for k, v in row.items() if k != "step"} for row in rows]
        if not rows or same == last:  # the step trained on the same completions again
            continue
        last = same
        names = rewards or _numbers(file, rows)
        texts = [[_text(row[name]) for name in ("prompt", "completion")] for row in rows]
        groups = accumulate((a[0] != b[0] for a, b in pairwise(texts)), initial=0)
        values = [[_number(row[name]) for name in names] for row in rows]
        known = [[each for each in row if each == each] or [math.nan] for row in values]
        columns = {
            "rewards": torch.tensor([sum(row) for row in known], dtype=torch.float64),
            "advantages": torch.tensor([_number(row["advantage"]) for row in rows]),
        }
        yield _Step(number, _tokenised(tokenizer, texts), list(groups), columns)


def _numbers(file: Path, rows: Sequence[Row]) -> list[str]:
    """The columns between `completion` and `advantage` that hold numbers: one, or an error."""
    others = [name for name in rows[0] if name not in ("step", "prompt", "completion", "advantage")]
    found = [name for name in others if all(isinstance(r[name], float | None) for r in rows)]
    if len(found) != 1:
        raise ConfigError(
            f"{file} has {len(found)} columns of numbers: {', '.join(found) or 'none'}. Name those "
            "that are rewards: rewards=['NAME', ...]"
        )
    return found


def _text(message: Any) -> str:
    """A text, or the contents of a conversation."""
    if isinstance(message, str):
        return message
    return "".join(str(each.get("content") or "") for each in message)


# verl: STEP.jsonl with the texts of prompts and responses.


def _verl(folder: Path, tokenizer: Any, rewards: Sequence[str]) -> Iterator[_Step]:
    for file, number in _files(folder, r"(\d+)\.jsonl"):
        rows = [row for _, row in read_file(file)]
        keys = [re.sub(r"_\d+_\d+$", "", str(row.get("uid") or row["input"])) for row in rows]
        names = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        texts = [[row["input"], row["output"]] for row in rows]
        scores = torch.tensor([_number(row["score"]) for row in rows], dtype=torch.float64)
        groups = [names[key] for key in keys]
        if rows:
            yield _Step(number, _tokenised(tokenizer, texts), groups, {"rewards": scores})


# prime-rl: step_STEP/rank_RANK.jsonl with one sequence per line.


def _prime_rl(folder: Path, tokenizer: Any, rewards: Sequence[str]) -> Iterator[_Step]:
    for place, number in _files(folder, r"step_(\d+)"):
        if not (place / "STABLE").exists():  # some rank has not written all of it
            continue
        step, columns = _Step(number), dict[str, list[float]]()
        for file, _ in _files(place, r"rank_(\d+)\.jsonl"):
            for _, row in read_file(file):
                weights = row["rl_weights"]
                pairs = zip(row["loss_mask"], weights, strict=True)
                chosen = [i for i, (mask, weight) in enumerate(pairs) if mask and weight != 0]
                prompt = row["token_ids"][: row["loss_mask"].index(True)]
                step.sequences.append((prompt, [row["token_ids"][i] for i in chosen]))
                for name, key in _PRIME_RL.items():
                    columns.setdefault(name, []).extend(_number(row[key][i]) for i in chosen)
        step.groups = list(range(len(step.sequences)))
        step.columns = {name: torch.tensor(values) for name, values in columns.items()}
        if step.sequences:
            yield step


_PRIME_RL = {
    "logprobs": "trainer_logprobs",
    "sampler_logprobs": "inference_logprobs",
    "entropy": "entropy",
    "advantages": "advantages",
}


def _files(folder: Path, pattern: str) -> list[tuple[Path, int]]:
    """Files and folders whose whole name matches, with the number in it, in its order."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected the folder that the trainer wrote")
    found = [(file, re.fullmatch(pattern, file.name)) for file in folder.iterdir()]
    return sorted(((file, int(m[1])) for file, m in found if m), key=lambda pair: pair[1])


def _tokenised(tokenizer: Any, pairs: Sequence[Sequence[str]]) -> list[Pair]:
    """The ids of prompts and responses."""
    ids = [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in p] for p in pairs]
    return [(prompt, response) for prompt, response in ids]


def _number(value: Any) -> float:
    """A number of a log; null is NaN."""
    return math.nan if value is None else float(value)


_TEXTS = (
    "log-probs and entropies: probabilities and sizes of gradients are unknown",
    "token ids: the texts were tokenised again, without special tokens such as the end of text",
    "masks: tokens of tools count as the policy's",
)
_LOGS = {
    "trl": _Log(
        _trl,
        frozenset({"rewards"}),
        (
            *_TEXTS,
            "groups: consecutive completions of one prompt are a group",
            "weights of rewards: they are added up; the advantages are TRL's",
            "the generation batches between two logged steps",
        ),
    ),
    "verl": _Log(
        _verl,
        frozenset({"rewards"}),
        (*_TEXTS, "advantages: they are computed from the scores, by the objective's formula"),
    ),
    "prime-rl": _Log(
        _prime_rl,
        frozenset({"rewards", *_PRIME_RL, "old_logprobs", "old_entropy"}),
        (
            "rewards and groups: the advantages are prime-rl's; each response is its own group",
            "the rollout's policy: its log-probs are those of the update, so ratio is 1; "
            "exp(sampler_gap) is prime-rl's ratio",
            "Σπ²: sizes of gradients are unknown",
            "text between the policy's tokens, such as tool output",
        ),
    ),
}
