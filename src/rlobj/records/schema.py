"""The columns of RUN/records/*.parquet: one row per recorded token of an update."""

from __future__ import annotations

from typing import Literal, NamedTuple

SCHEMA_VERSION = 1
"""Of records/ and tables/; readers refuse files of another version."""

VERSION_KEY = "rlobj.schema_version"
"""The key of the version in the metadata of each file."""

CONTEXT = 20
"""Tokens of context on each side of a recorded token."""

Effect = Literal["dropped", "reweighted", "masked", "switched", "penalised"]


class RecordColumn(NamedTuple):
    """A column of the record.

    Attributes:
        type: a type name of pyarrow.
        unit: nats, a count, ...; "" = none.
        meaning: one sentence.
    """

    type: str
    unit: str
    meaning: str


COLUMNS: dict[str, RecordColumn] = {
    "schema_version": RecordColumn("int32", "", "version of these columns, now 1"),
    "step": RecordColumn("int32", "", "step of the run, from 1"),
    "update": RecordColumn("int32", "", "optimizer update in the step, from 1"),
    "response": RecordColumn("int64", "", "id of the response, as in samples/"),
    "group": RecordColumn("int64", "", "id of the prompt's group"),
    "position": RecordColumn("int32", "tokens", "index of the token in its response, from 0"),
    "token": RecordColumn("int32", "", "token id"),
    "text": RecordColumn("string", "", "text of the token"),
    "kept": RecordColumn("bool", "", "the token's weight is not 0"),
    "weight": RecordColumn("float", "1/token", "m·ω/Z_t, the token's weight in the policy loss"),
    "factor": RecordColumn(
        "float",
        "",
        "m·ω with the mismatch weight, which touches no token between its bounds; 0 = left out",
    ),
    "effect": RecordColumn(
        "string",
        "",
        "what the objective did: dropped, masked (by the mismatch correction), reweighted, "
        "switched (to another surrogate) or penalised; null = the token was untouched",
    ),
    "clause": RecordColumn(
        "string",
        "",
        "the part of the rule that decided, as text that `rlobj.parse` reads; null = untouched",
    ),
    "advantage": RecordColumn(
        "float", "reward", "A of the surrogate; with `shape`, rules read another"
    ),
    "reward": RecordColumn(
        "float", "reward", "reward of the response, the weighted sum of several"
    ),
    "prob": RecordColumn(
        "float", "", "π of the token at the start of the update; null = not scored"
    ),
    "old_prob": RecordColumn("float", "", "π_old of the token, of the rollout's policy"),
    "ratio": RecordColumn("float", "", "π / π_old"),
    "entropy": RecordColumn("float", "nats", "H of π at the token's position"),
    "gradient_norm": RecordColumn(
        "float",
        "reward",
        "|A|·sqrt(1 − 2π + Σ π²), the norm of the token's gradient by the logits, before m and ω",
    ),
    "entropy_sensitivity": RecordColumn(
        "float",
        "nats",
        "π(l + H) − Σ π_k²(l_k + H); times −A it is the change of H for a unit step along the "
        "token's gradient",
    ),
    "sampler_gap": RecordColumn(
        "float", "nats", "l0 − l_sampler; null = the sampler reported none"
    ),
    "before": RecordColumn("string", "", "text of up to 20 tokens before, prompt included"),
    "after": RecordColumn("string", "", "text of up to 20 tokens after"),
    "inclusion_probability": RecordColumn(
        "float", "", "probability with which such a token is recorded; weight rows by its inverse"
    ),
    "spurious": RecordColumn(
        "bool",
        "",
        "the token departs from every valid derivation in a response graded right; null = not "
        "judged",
    ),
}
"""Name -> column, in the order of the files."""

OPTIONAL = ("sampler_gap", "spurious")
"""Columns that files of other programs may leave out: null in each row."""
