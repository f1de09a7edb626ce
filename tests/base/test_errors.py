"""Errors keep what a person can type, and each face writes it in its own way."""

from __future__ import annotations

import copy
import pickle

import pytest
from pydantic import field_validator

from rlobj.base.errors import (
    Argument,
    ConfigError,
    DataError,
    Message,
    MissingExtra,
    RlobjError,
    RunError,
    Setting,
    reported,
)
from rlobj.base.validation import InvalidFields, Model

STEPS = Setting("training.steps", 3)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (STEPS, "training.steps=3"),
        (Setting("training.offload", None), "training.offload=null"),
        (Setting("training.packed", True), "training.packed=true"),
        (
            Setting("objective.mismatch", {"kind": "truncate"}),
            'objective.mismatch={"kind": "truncate"}',
        ),
        (Argument("out", "DIR"), "out=DIR"),
        (Argument("trust"), "trust=True"),
    ],
)
def test_python_writes_what_is_typed_there(part: Setting | Argument, text: str) -> None:
    assert str(part) == text


def test_an_error_in_another_one_keeps_its_parts() -> None:
    with pytest.raises(DataError) as found, reported(DataError, "a.jsonl", RlobjError, advice="!"):
        raise ConfigError("line 3: ", ConfigError("use ", STEPS))
    assert str(found.value) == "a.jsonl: line 3: use training.steps=3!"
    assert STEPS in found.value.message.parts


def test_all_mistakes_of_a_model_keep_their_parts() -> None:
    class Own(Model):
        steps: int

        @field_validator("steps")
        @classmethod
        def _refuse(cls, _: int) -> int:
            raise ConfigError("use ", STEPS)

    with pytest.raises(InvalidFields) as found:
        Own(steps=1, more=2)
    assert str(found.value).startswith("steps: use training.steps=3\nmore: unknown key.")
    assert STEPS in found.value.message.parts


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("use ", STEPS),
        RunError("failed: ", STEPS, finding="collapse"),
        InvalidFields([("a", Message(STEPS))]),
        MissingExtra("trl", "trl", "this"),
    ],
)
def test_an_error_reaches_another_process_whole(error: RlobjError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
        assert getattr(again, "finding", None) == getattr(error, "finding", None)
