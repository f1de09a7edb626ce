"""Settings with a union type: one message for all members, with the path of the field."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from rlobj.base.errors import ConfigError
from rlobj.base.validation import InvalidFields, Model
from rlobj.data import DataConfig
from rlobj.settings.building import build_config
from rlobj.settings.run_config import LoraConfig, RunConfig
from rlobj.settings.training import TrainingConfig

AT_LEAST_1 = "expected a whole number of at least 1 or auto"


@pytest.mark.parametrize(
    ("model", "name", "given", "says"),
    [
        (
            TrainingConfig,
            "packed",
            "auot",
            "expected true, false or auto, got 'auot'. Did you mean 'auto'?",
        ),
        (TrainingConfig, "packed", "always", "expected true, false or auto, got 'always'"),
        (TrainingConfig, "threads", 1.5, f"{AT_LEAST_1}, got 1.5"),
        (TrainingConfig, "threads", 0, f"{AT_LEAST_1}, got 0"),
        (TrainingConfig, "micro_batch_tokens", 0, f"{AT_LEAST_1}, got 0"),
        (
            DataConfig,
            "test_fraction",
            1,
            "expected a number of at least 0 and below 1 or auto, got 1",
        ),
        (LoraConfig, "targets", ["a", 3], "expected all-linear or a list of texts, got ['a', 3]"),
    ],
)
def test_a_value_that_fits_no_member_of_a_union_gives_one_message(model, name, given, says):
    with pytest.raises(InvalidFields) as caught:
        model(**{name: given})
    assert caught.value.problems == [(name, says)]


def test_the_path_in_a_union_error_is_the_key_of_the_user() -> None:
    with pytest.raises(InvalidFields) as caught:
        RunConfig(training={"packed": "maybe", "step": 1})  # type: ignore[arg-type]
    packed, unknown = caught.value.problems
    assert packed == ("training.packed", "expected true, false or auto, got 'maybe'")
    assert unknown[0] == "training.step"
    with pytest.raises(ConfigError, match=r"training\.packed \(from --set\): expected true"):
        build_config([("--set", {"training": {"packed": "maybe"}})])


class Aliased(Model):
    size: int | Literal["all", "half"] | None = Field(default=None, alias="rows")
    nested: LoraConfig | int = 0


def test_union_errors_use_aliases_and_other_unions_keep_pydantics_message() -> None:
    with pytest.raises(InvalidFields) as caught:
        Aliased(rows="alll", nested=0)  # type: ignore[call-arg]
    words = "expected a whole number, all or half, got 'alll'. Did you mean 'all'?"
    assert caught.value.problems == [("rows", words)]
    with pytest.raises(InvalidFields, match="rank"):
        Aliased(nested={"rank": 0})  # type: ignore[arg-type]
    assert Aliased(rows=None).size is None  # type: ignore[call-arg]
