"""Checking that a name can be a model before anything is loaded."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.models.location import require_model


def test_error_says_what_the_path_is_when_it_is_not_a_model(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "run" / "checkpoints" / "step-000002").mkdir(parents=True)
    (tmp_path / "run" / "config.resolved.yaml").write_text("")
    with pytest.raises(ConfigError, match="is a file; a model is a folder, a GGUF file"):
        require_model(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"is a run, not a model: name .*step-000002/model$"):
        require_model(str(tmp_path / "run"))
    (tmp_path / "run" / "checkpoints" / "step-000002").rmdir()
    with pytest.raises(ConfigError, match="is a run, not a model: it has no checkpoint yet"):
        require_model(str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"no run or model folder.*Did you mean '.*/run'"):
        require_model(str(tmp_path / "runn"))
    require_model("owner/name")
