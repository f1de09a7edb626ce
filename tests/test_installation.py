"""What is installed: versions, the supported ones, and engines that cannot be imported."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages import package

from rlobj import installation

# After vLLM ran in this process, setuptools warns at each look at the installed packages.
pytestmark = pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os._exit(7)", "the import ended Python with code 7"),
        ("raise ImportError('no libtorch')", "ImportError: no libtorch"),
        ("", ""),
    ],
)
def test_an_engine_that_cannot_be_imported_has_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    package(tmp_path, "trl", "99.0", code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert installation._why_not(installation._importing("import trl")) == error


def test_a_session_names_versions_and_hardware():
    told = installation.session("started")
    assert {"rlobj", "python", "torch", "transformers", "math-verify"} <= told["versions"].keys()
    assert told["started"]
    assert told["hardware"]
