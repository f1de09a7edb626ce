"""Settings with a union type: one message for all members, with the path of the field."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.validation import InvalidFields
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
