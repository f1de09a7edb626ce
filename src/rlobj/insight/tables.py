"""Full tables as recorded tokens: every token of an update, with what the objective did to it."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import torch

from rlobj.base.errors import ConfigError
from rlobj.runs.checkpoints import checkpoints
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.reading import read_records
from rlobj.runs.tables import UpdateTable
from rlobj.runs.texts import TokenTexts


def observed_again(update: UpdateTable) -> ObservedUpdate:
    """What an update observed, planned again."""
    objective, table, state = update.objective, update.table, update.state
    plan, unknown = objective.plan([table], state, clauses=True), table.logprobs * torch.nan
    columns = {name: getattr(table, name) for name in POLICY}
    current = {name: unknown if values is None else values for name, values in columns.items()}
    return ObservedUpdate(objective, state, table, plan, update.sequences, **current)


def vocabulary(run: Path) -> TokenTexts:
    """The texts of a run's tokens.

    They are those of the newest checkpoint's tokenizer, or as the record has them. No code of the
    run is executed, and nothing is downloaded.
    """
    from tokenizers import Tokenizer

    for checkpoint in reversed(checkpoints(run)):
        file = checkpoint / "model" / "tokenizer.json"
        if not file.is_file():
            continue
        with contextlib.suppress(Exception):  # tokenizers raises nothing narrower
            tokenizer = Tokenizer.from_file(str(file))
            return TokenTexts(
                SimpleNamespace(
                    backend_tokenizer=tokenizer, convert_ids_to_tokens=tokenizer.id_to_token
                )
            )
    texts: dict[int, str] = {}
    with contextlib.suppress(ConfigError):
        rows = read_records(run, ["token", "text"]).group_by("token").aggregate([("text", "min")])
        texts = dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))
    return TokenTexts(
        SimpleNamespace(
            backend_tokenizer=None,
            convert_ids_to_tokens=lambda token: texts.get(token, f"⟨{token}⟩"),
        )
    )
