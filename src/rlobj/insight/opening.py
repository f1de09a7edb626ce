"""A run that is opened for insight: its settings, metrics, record, full tables and token texts."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from rlobj.base.errors import ConfigError
from rlobj.runs.checkpoints import checkpoints
from rlobj.runs.configuration import read_settings
from rlobj.runs.metrics import read_metrics
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.reading import Record, sound
from rlobj.runs.tables import UpdateTable, read_tables
from rlobj.runs.texts import TokenTexts
from rlobj.runs.traces import is_traces, traced_update


def open_run(folder: Path | str) -> "OpenRun":
    """Open a run, finished or not. Nothing that its files name is imported.

    Raises:
        ConfigError: the folder is no run.
    """
    path = Path(folder)
    return OpenRun(path, read_settings(path))


class OpenRun:
    """A run whose files are read when they are asked for.

    Attributes:
        path: its folder.
        settings: config.resolved.yaml.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """metrics.jsonl in the order of the steps."""
        return read_metrics(self.path)

    @cached_property
    def record(self) -> Record:
        """The record of the run."""
        return Record(self.path)

    @cached_property
    def texts(self) -> TokenTexts:
        """The texts of the run's tokens.

        They are those of the newest checkpoint's tokenizer, or as the record has them; those of
        traces are those of a tokenizer.json beside the file.
        """
        from tokenizers import Tokenizer

        models = [checkpoint / "model" for checkpoint in reversed(checkpoints(self.path))]
        for folder in models or [self.path.parent] * is_traces(self.path):
            file = folder / "tokenizer.json"
            if not file.is_file():
                continue
            with contextlib.suppress(Exception):  # tokenizers raises nothing narrower
                tokenizer = Tokenizer.from_file(str(file))
                return _texts(tokenizer, tokenizer.id_to_token)
        texts: dict[int, str] = {}
        with contextlib.suppress(ConfigError):
            rows = self.record.rows(["token", "text"])
            grouped = rows.group_by("token").aggregate([("text", "min")])
            texts = dict(zip(*(column.to_pylist() for column in grouped.columns), strict=True))
        return _texts(None, lambda token: texts.get(token, f"⟨{token}⟩"))

    def tables(self, step: int | None = None, trust: bool = False) -> Iterator[UpdateTable]:
        """The updates with full tables, of all steps or of one."""
        if is_traces(self.path):
            yield traced_update(self.path)
            return
        with sound(self.path):
            yield from read_tables(self.path, None if step is None else [step], trust=trust)


def observed_again(update: UpdateTable) -> ObservedUpdate:
    """What an update observed, planned again."""
    objective, table, state = update.objective, update.table, update.state
    plan, unknown = objective.plan([table], state, clauses=True), table.logprobs * torch.nan
    columns = {name: getattr(table, name) for name in POLICY}
    current: dict[str, Any] = {n: unknown if v is None else v for n, v in columns.items()}
    current["began"] = update.began
    return ObservedUpdate(objective, state, table, plan, update.sequences, **current)


def _texts(tokenizer: Any, text_of: Callable[[int], str | None]) -> TokenTexts:
    names = SimpleNamespace(backend_tokenizer=tokenizer, convert_ids_to_tokens=text_of)
    return TokenTexts(names)
