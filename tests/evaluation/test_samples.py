"""The folder of an evaluation."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.evaluation import Samples

PROBLEMS = [Problem(str(n), f"{n}+1=", str(n + 1)) for n in range(5)]


def test_error_if_another_process_writes_to_the_folder(tmp_path):
    with (
        Samples(tmp_path / "new").locked(),
        pytest.raises(ConfigError, match="another process"),
        Samples(tmp_path / "new").locked(),
    ):
        pass


def test_problems_and_settings_are_read_back(tmp_path):
    directory = Samples(tmp_path)
    directory.write_problems({"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]})
    assert directory.problems() == {"a": PROBLEMS, "b": [Problem("x", "?", "1", {"level": 3})]}
    directory.write_settings({"model": {"name": "m"}, "benchmarks": {}})
    settings = Samples.open(tmp_path).settings()
    assert settings == {"model": {"name": "m"}, "benchmarks": {}}
    directory.write_settings({"another": "program's"})
    with pytest.raises(ConfigError, match="has no benchmarks"):
        Samples.open(tmp_path)
    with pytest.raises(ConfigError, match="not an evaluation"):
        Samples.open(tmp_path / "elsewhere")
