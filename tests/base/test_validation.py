"""Settings with a union type: one message for all members, with the path of the field."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from rlobj.base.errors import ConfigError
from rlobj.base.validation import InvalidFields, Model
from rlobj.settings.building import build_config
from rlobj.settings.run_config import LoraConfig, RunConfig
from rlobj.settings.training import TrainingConfig


@pytest.mark.parametrize(
    ("model", "name", "given", "says"),
    [
        (TrainingConfig, "packed", "auot", "'auto'; or Input should be a valid boolean"),
        (TrainingConfig, "threads", 0, "'auto'; or Input should be greater than or equal to 1"),
        (LoraConfig, "targets", ["a", 3], "a valid string; or Input should be 'all-linear'"),
    ],
)
def test_a_value_that_fits_no_member_of_a_union_gives_one_message(model, name, given, says):
    with pytest.raises(InvalidFields) as caught:
        model(**{name: given})
    [(path, text)] = caught.value.problems
    assert path == name
    assert says in text
    assert text.endswith(f", got {given!r}")


def test_the_path_in_a_union_error_is_the_key_of_the_user() -> None:
    with pytest.raises(InvalidFields) as caught:
        RunConfig(training={"packed": "maybe", "step": 1})  # type: ignore[arg-type]
    assert [path for path, _ in caught.value.problems] == ["training.packed", "training.step"]
    with pytest.raises(ConfigError, match=r"training\.packed \(from --set\): Input"):
        build_config([("--set", {"training": {"packed": "maybe"}})])


class Aliased(Model):
    size: int | Literal["all", "half"] | None = Field(default=None, alias="rows")
    nested: LoraConfig | int = 0


def test_union_errors_use_aliases_and_other_unions_keep_pydantics_message() -> None:
    with pytest.raises(InvalidFields) as caught:
        Aliased(rows="alll", nested=0)  # type: ignore[call-arg]
    [(path, text)] = caught.value.problems
    assert path == "rows"
    assert text.endswith("unable to parse string as an integer, got 'alll'")
    with pytest.raises(InvalidFields, match="rank"):
        Aliased(nested={"rank": 0})  # type: ignore[arg-type]
    assert Aliased(rows=None).size is None  # type: ignore[call-arg]
