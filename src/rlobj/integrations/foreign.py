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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch

from rlobj.base.errors import ConfigError, DataError, nearest
from rlobj.base.yaml import packaged_table
from rlobj.config.presets import load_preset
from rlobj.config.run_config import ModelConfig, RunConfig, build_config
from rlobj.data.files import read_file
from rlobj.integrations.run_record import RunRecord, observed_update
from rlobj.models.policy import load_tokenizer
from rlobj.objectives.objective import Objective
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.tokens import TokenBatch
from rlobj.reporting import visible

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


def convert_log(
    trainer: str,
    source: Path | str,
    out: Path | str,
    tokenizer: Any,
    *,
    objective: str | Objective = "dapo-loss",
    rewards: Sequence[str] = (),
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

    Raises:
        ConfigError: an unknown trainer, an objective that reads what the log does not have, or
            `out` exists already.
        DataError: the log cannot be read, or has no response.
    """
    if trainer not in _LOGS:
        raise ConfigError(f"no logs of '{trainer}' can be converted.{nearest(trainer, _LOGS)}")
    log = _LOGS[trainer]
    name = tokenizer if isinstance(tokenizer, str) else str(tokenizer.name_or_path)
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(ModelConfig(), tokenizer)
    config = _configured(objective, name or trainer, str(source))
    planned = config.resolved_objective()
    if lacking := sorted((planned.needs.plan | planned.needs.observe) - {*log["columns"]}):
        readers = (f"'{column}', which {planned.reader(column)} reads" for column in lacking)
        absent = ", and no column ".join(readers)
        raise ConfigError(f"the log of {trainer} has no column {absent}. {log['advice']}")
    out = Path(out)
    if out.exists():
        raise ConfigError(
            f"{out} exists already: delete it, or choose another folder for the converted run"
        )
    state, steps, tokens = planned.init(), list[int](), 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        run = Path(folder) / "run"  # `out` does not exist before it is complete
        with closing(RunRecord(run, config, tokenizer, SingleProcess())) as record:
            for step in _READERS[trainer](Path(source), tokenizer, rewards):
                record.steps = step.number - 1
                state = _record(record, planned, step, state)
                steps.append(step.number)
                tokens += sum(len(response) for _, response in step.sequences)
        if not steps:
            raise DataError(_nothing(Path(source), trainer, log["files"]))
        run.rename(out)
    return Converted(out, tuple(steps), tokens, tuple(log["missing"]))


def _nothing(source: Path, trainer: str, files: str) -> str:
    """What to say of a folder without steps; the log may be in a folder of it."""
    inside = sorted(file.parents[files.count("/")] for file in source.glob(f"*/{files}"))
    advice = f". Did you mean {inside[0]}?" if inside else ""
    return f"{source} has no response of {trainer}; expected files {files}{advice}"


def _configured(objective: str | Objective, model: str, source: str) -> RunConfig:
    """The configuration of the run."""
    if not isinstance(objective, Objective):
        objective = load_preset(objective).objective
    own = {
        "objective": objective.model_dump(mode="json", by_alias=True),
        "model": {"name": model},
        "data": {"source": source},
        "output": {"records_share": 1.0, "tables_every": 1},
    }
    return build_config([("the log", own)])


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
    last: Sequence[Mapping[str, Any]] = ()
    for file, number in _files(folder, r"completions_(\d{1,9})\.parquet"):
        rows = [_Row(*row) for row in read_file(file)]
        same = [{k: v for k, v in row.fields.items() if k != "step"} for row in rows]
        if not rows or same == last:  # the step trained on the same completions again
            continue
        last = same
        names = _rewards(file, rows, rewards)
        texts = [[row.text("prompt"), row.text("completion")] for row in rows]
        groups = accumulate((a[0] != b[0] for a, b in pairwise(texts)), initial=0)
        values = [[row.number(name) for name in names] for row in rows]
        known = [[each for each in row if each == each] or [math.nan] for row in values]
        columns = {
            "rewards": torch.tensor([sum(row) for row in known], dtype=torch.float64),
            "advantages": torch.tensor([row.number("advantage") for row in rows]),
        }
        yield _Step(number, _tokenised(tokenizer, texts), list(groups), columns)


def _rewards(file: Path, rows: Sequence[_Row], names: Sequence[str]) -> Sequence[str]:
    """The columns of rewards: those that are named, or the only one that holds numbers."""
    own = ("step", "prompt", "completion", "advantage")
    others = {
        name: [row.fields[name] for row in rows] for name in rows[0].fields if name not in own
    }
    numbers = [
        n for n, values in others.items() if all(isinstance(v, float | None) for v in values)
    ]
    if set(names) <= set(numbers) and (names or len(numbers) == 1):
        return names or numbers
    raise ConfigError(
        f"{file} has {len(numbers)} columns of numbers: {', '.join(numbers) or 'none'}. Name those "
        f"that are rewards: rewards=['NAME', ...]; got {list(names)}"
    )


# verl: STEP.jsonl with the texts of prompts and responses.


def _verl(folder: Path, tokenizer: Any, rewards: Sequence[str]) -> Iterator[_Step]:
    for file, number in _files(folder, r"(\d{1,9})\.jsonl"):
        rows = [_Row(*row) for row in read_file(file)]
        texts = [[row.text("input"), row.text("output")] for row in rows]
        keys = [
            re.sub(r"_\d+_\d+$", "", str(row.fields.get("uid") or text))
            for row, (text, _) in zip(rows, texts, strict=True)
        ]
        names = {key: place for place, key in enumerate(dict.fromkeys(keys))}
        scores = torch.tensor([row.number("score") for row in rows], dtype=torch.float64)
        groups = [names[key] for key in keys]
        if rows:
            yield _Step(number, _tokenised(tokenizer, texts), groups, {"rewards": scores})


# prime-rl: step_STEP/rank_RANK.jsonl with one sequence per line.


def _prime_rl(folder: Path, tokenizer: Any, rewards: Sequence[str]) -> Iterator[_Step]:
    for place, number in _files(folder, r"step_(\d{1,9})"):
        if not (place / "STABLE").exists():  # some rank has not written all of it
            continue
        step, columns = _Step(number), dict[str, list[float]]()
        for file, _ in _files(place, r"rank_(\d{1,9})\.jsonl", first=0):
            for row in (_Row(*each) for each in read_file(file)):
                ids = [int(n) for n in row.numbers("token_ids")]
                weights = row.numbers("rl_weights", len(ids))
                mask = row.numbers("loss_mask", len(ids))
                chosen = [i for i in range(len(ids)) if mask[i] and weights[i] != 0]
                if not chosen:
                    continue
                if ids != row.fields["token_ids"] or not 0 <= min(ids) <= max(ids) < len(tokenizer):
                    row.refuse("token_ids", f"ids of the tokenizer's {len(tokenizer)} tokens")
                step.sequences.append((ids[: mask.index(1)], [ids[i] for i in chosen]))
                for name, key in _PRIME_RL.items():
                    values = row.numbers(key, len(ids))
                    columns.setdefault(name, []).extend(values[i] for i in chosen)
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


@dataclass(frozen=True)
class _Row:
    """A row of a log; its methods raise a DataError that names the file, the line and the field."""

    where: str
    fields: Mapping[str, Any]

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Say that a field is not what was expected."""
        value = visible(repr(self.fields[name]), 60) if name in self.fields else "missing"
        raise DataError(f"{self.where}: '{name}' is {value}; expected {expected}")

    def text(self, name: str) -> str:
        """A text, or the texts of a conversation."""
        value = self.fields.get(name)
        parts = value if isinstance(value, list) else [{"content": value}]
        texts: Any = [part.get("content") if isinstance(part, dict) else None for part in parts]
        try:
            "".join(texts).encode()
        except (TypeError, UnicodeEncodeError):
            self.refuse(name, "a text, or a list of messages with a text in 'content'")
        return "".join(texts)

    def number(self, name: str) -> float:
        """A finite number; null is NaN."""
        return self._number(name, self.fields.get(name, ""))

    def numbers(self, name: str, size: int | None = None) -> list[float]:
        """A list of so many finite numbers; null is NaN."""
        values = self.fields.get(name)
        if not isinstance(values, list) or size not in (None, len(values)):
            self.refuse(name, f"a list of {'' if size is None else f'{size} '}numbers")
        return [self._number(name, value) for value in values]

    def _number(self, name: str, value: Any) -> float:
        if value is None or value != value:
            return math.nan
        if not isinstance(value, int | float) or abs(value) > 1e30:
            self.refuse(name, "finite numbers")
        return float(value)


def _files(folder: Path, pattern: str, first: int = 1) -> list[tuple[Path, int]]:
    """Files and folders whose whole name matches, with the number in it, from `first` on."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected the folder that the trainer wrote")
    found = [(file, re.fullmatch(pattern, file.name)) for file in folder.iterdir()]
    numbered = [(file, int(m[1])) for file, m in found if m]
    return sorted((each for each in numbered if each[1] >= first), key=lambda pair: pair[1])


def _tokenised(tokenizer: Any, pairs: Sequence[Sequence[str]]) -> list[Pair]:
    """The ids of prompts and responses."""
    ids = [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in p] for p in pairs]
    return [(prompt, response) for prompt, response in ids]


_READERS = {"trl": _trl, "verl": _verl, "prime-rl": _prime_rl}
"""(folder, tokenizer, names of the rewards) -> the steps of a log."""
_LOGS = packaged_table("rlobj.integrations", "logs.yaml")
