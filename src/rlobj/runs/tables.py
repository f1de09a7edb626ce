"""RUN/tables/: whole updates, from which an objective is planned again to the same weights.

A file has one row per response of each update of a step on one rank. Columns with one value per
token are lists. The metadata of the file has, as JSON, the objective and the state of each update.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from numpy.typing import NDArray

from rlobj.base.arrow import DAMAGED, pc, read_parquet, write_parquet
from rlobj.base.errors import ConfigError
from rlobj.base.files import parse_json
from rlobj.base.interleaved import Interleaved
from rlobj.base.paths import step_of
from rlobj.base.targets import importing
from rlobj.objectives.objective import Objective
from rlobj.objectives.tokens import PER_TOKEN, SPREAD, TokenBatch
from rlobj.runs.columns import SCHEMA_VERSION, VERSION_KEY
from rlobj.runs.layout import rank_table
from rlobj.runs.observed import POLICY, ObservedUpdate
from rlobj.runs.reading import checked_files
from rlobj.runs.rows import numpy
from rlobj.settings.run_config import settings_of

_UPDATES = b"rlobj.updates"
_OWN = "own."
"""Before the names of a TokenBatch's own columns."""


@dataclass(frozen=True)
class UpdateTable:
    """One optimizer update of all ranks, as it was recorded.

    `objective.plan([table], state).weights[0]` equals `weights` to the bit.

    Attributes:
        step: of the run, from 1.
        update: in the step, from 1.
        table: every response, undecided and empty ones too. Log-probs, entropy and collision are
            NaN where the step did not score a token.
        objective: the phase of the objective that the update trained.
        state: the objective's state as `plan` read it.
        weights: m·ω/Z_t, [N].
        codes: the place in `causes` of what touched each token, int16 [N]; −1 = untouched.
        causes: pairs of effect and clause, as in `Clauses`.
        sequences: prompt ids and response ids of each response; those of a conversation are an
            `Interleaved`.
        facts: how the policy was scored: temperature, ...
        began: of each response, see `Response.began`; () = no rollout has several rows.
    """

    step: int
    update: int
    table: TokenBatch
    objective: Objective
    state: Mapping[str, Any]
    weights: torch.Tensor
    codes: torch.Tensor
    causes: Sequence[tuple[str, str]]
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
    facts: Mapping[str, Any]
    began: Sequence[str] = ()


def write_tables(
    run: Path,
    step: int,
    updates: Sequence[tuple[int, ObservedUpdate]],
    ranks: tuple[int, int],
    facts: Mapping[str, Any],
) -> None:
    """Write this rank's part of some updates of a step.

    Args:
        run: the run's folder.
        step: from 1.
        updates: the number of each update in the step, from 1, and what it observed.
        ranks: this rank, and the number of ranks.
        facts: how the policy was scored.
    """
    described = [
        {
            "update": number,
            "objective": settings_of(observed.objective),
            "state": observed.state,
            "causes": observed.plan.asked_clauses.causes,
            "reward_names": observed.table.reward_names,
            "reward_weights": observed.table.reward_weights,
            "version": observed.table.version,
        }
        for number, observed in updates
    ]
    written = {"rank": ranks[0], "ranks": ranks[1], "facts": facts, "updates": described}
    parts = [_rows(step, number, observed) for number, observed in updates]
    whole = pyarrow.concat_tables(parts, promote_options="default")
    metadata = {VERSION_KEY: str(SCHEMA_VERSION), _UPDATES: json.dumps(written)}
    write_parquet(rank_table(run, step, ranks[0]), whole.replace_schema_metadata(metadata))


def _rows(step: int, number: int, observed: ObservedUpdate) -> Any:
    """The responses of an update as a table of pyarrow."""
    table, size = observed.table, len(observed.table.lengths)
    values = {name: getattr(table, name) for name in (*PER_TOKEN, *SPREAD)}
    if not observed.objective.needs.plan & {*POLICY}:  # else the rules read those of the table
        values |= {name: getattr(observed, name) for name in POLICY}
    run_columns = {f"{_OWN}{name}": column for name, column in table.columns.items()}
    of_responses = {f"{_OWN}{name}" for name in table.response_columns}
    values |= {name: column for name, column in run_columns.items() if name not in of_responses}
    values |= {"weight": observed.plan.weights[0], "cause": observed.plan.asked_clauses.codes}
    assert table.ids is not None
    lengths = numpy(table.lengths)
    prompts, tokens = ([sequence[part] for sequence in observed.sequences] for part in (0, 1))
    gaps = [sequence.gaps if isinstance(sequence, Interleaved) else () for sequence in tokens]
    ids = pyarrow.list_(pyarrow.int32())
    columns = {
        "step": pyarrow.array(np.full(size, step, np.int32)),
        "update": pyarrow.array(np.full(size, number, np.int32)),
        "response": pyarrow.array(numpy(table.ids)),
        "group": pyarrow.array(numpy(table.groups)),
        "prompt": pyarrow.array(prompts, ids),
        "tokens": pyarrow.array(tokens, ids),
    }
    if table.rollouts is not None:
        columns["rollout"] = pyarrow.array(numpy(table.rollouts))
        columns["began"] = pyarrow.array(observed.began or [""] * size, "string")
    if any(gaps):  # the policy read these ids before the token at this place
        places = [[place for place, _ in read] for read in gaps]
        columns["read_at"] = pyarrow.array(places, ids)
        read = [[said for _, said in read] for read in gaps]
        columns["read"] = pyarrow.array(read, pyarrow.list_(ids))
    if table.rewards is not None:
        kinds = 1 if table.rewards.dim() == 1 else table.rewards.shape[1]
        columns["rewards"] = _lists(numpy(table.rewards.flatten()), np.full(size, kinds))
    for name, column in values.items():
        if column is not None:
            columns[name] = _lists(numpy(column), lengths)
    for name in of_responses:
        columns[name] = pyarrow.array(numpy(run_columns[name]), from_pandas=True)
    return pyarrow.table(columns)


def _lists(values: NDArray[Any], lengths: Any) -> Any:
    """One list per response; NaN becomes null."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(values, from_pandas=True))


def read_tables(
    run: Path | str, steps: Sequence[int] | None = None, *, trust: bool = False
) -> Iterator[UpdateTable]:
    """Read the full tables of a run, update by update.

    Only data are read: nothing in the files is executed.

    Args:
        run: the run's folder, a folder with such files in it, or one such file.
        steps: only these steps, from 1; None = all that were written.
        trust: import the code that an objective names by its path.

    Raises:
        ConfigError: no run or no tables there, files of another version or with missing parts, or
            an objective that names code without `trust`.
    """
    for path, schema in checked_files(Path(run), "tables", steps).items():
        try:
            written = parse_json(schema.metadata[_UPDATES])
            if written["rank"] == 0:
                yield from _read_step(path, written, trust)
        except ConfigError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError, *DAMAGED) as error:
            raise ConfigError(
                f"{path} is no full table, or it is damaged: {type(error).__name__}: {error}"
            ) from error


def _read_step(first: Path, written: Mapping[str, Any], trust: bool) -> Iterator[UpdateTable]:
    """The updates of a step, of all ranks together, from the file of rank 0 and its metadata."""
    ranks, paths = written["ranks"], list[Path]()
    for rank in range(ranks):
        paths.append(path := first.with_name(first.name.replace("rank-0", f"rank-{rank}")))
        if not path.is_file():
            raise ConfigError(f"{path} is missing: {ranks} processes wrote tables of this step")
    tables = [read_parquet(path) for path in paths]
    for described in written["updates"]:
        number = described["update"]
        chosen = [table.filter(pc.equal(table["update"], number)) for table in tables]
        rows = pyarrow.concat_tables(chosen, promote_options="default").combine_chunks()
        with importing(None if trust else ()):
            objective = Objective(**described["objective"])
        yield UpdateTable(
            step=rows["step"][0].as_py() if rows else step_of(first),
            update=number,
            table=_token_batch(rows, described),
            objective=objective,
            state=described["state"],
            weights=_flat(rows["weight"]),
            codes=_flat(rows["cause"]),
            causes=[(effect, clause) for effect, clause in described["causes"]],
            sequences=_sequences(rows),
            facts=written["facts"],
            began=rows["began"].to_pylist() if "began" in rows.column_names else (),
        )


def _sequences(rows: Any) -> list[tuple[Sequence[int], Sequence[int]]]:
    prompts, tokens = rows["prompt"].to_pylist(), rows["tokens"].to_pylist()
    if "read" in rows.column_names:
        gaps = zip(rows["read_at"].to_pylist(), rows["read"].to_pylist(), strict=True)
        tokens = [
            Interleaved(ids, [*zip(*pair, strict=True)]) if pair[0] else ids
            for ids, pair in zip(tokens, gaps, strict=True)
        ]
    return list(zip(prompts, tokens, strict=True))


def _token_batch(rows: Any, described: Mapping[str, Any]) -> TokenBatch:
    present = {name for name in rows.column_names if rows[name].null_count < len(rows) or not rows}
    lengths = pc.list_value_length(rows["tokens"])
    rewards = _flat(rows["rewards"]) if "rewards" in rows.column_names else None
    names = described["reward_names"]
    columns: dict[str, Any] = {name: _flat(rows[name]) for name in PER_TOKEN if name in present}
    table = TokenBatch(
        lengths=torch.from_numpy(lengths.to_numpy().copy()),
        groups=torch.from_numpy(rows["group"].to_numpy().copy()),
        ids=torch.from_numpy(rows["response"].to_numpy().copy()),
        rollouts=_own(rows["rollout"])[:, 0] if "rollout" in present else None,
        rewards=rewards if rewards is None or not names else rewards.reshape(len(rows), -1),
        reward_names=names,
        reward_weights=described["reward_weights"],
        version=described["version"],
        columns={name[len(_OWN) :]: _own(rows[name]) for name in present if name.startswith(_OWN)},
        **columns,
    )
    return table.credited(**{name: _flat(rows[name]) for name in SPREAD if name in present})


def _own(values: Any) -> torch.Tensor:
    """A column of a run's own: one value for each response, [B, 1], or each token, [N]."""
    if pyarrow.types.is_list(values.type):
        return _flat(values)
    return torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())[:, None]


def _flat(lists: Any) -> torch.Tensor:
    """The values of all lists; null becomes NaN."""
    values = pc.list_flatten(lists)
    values = values.fill_null(np.nan) if values.null_count else values  # not of integers
    return torch.from_numpy(values.to_numpy().copy())
