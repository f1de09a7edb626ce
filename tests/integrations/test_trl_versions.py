"""Each minor version of TRL that `rlobj[trl]` admits, installed beside the other packages.

The newest is the one that the other tests use.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest

import rlobj.integrations.trl
from rlobj import ConfigError

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.13.0", "1.14.2", "1.15.0"])
def test_a_version_of_trl(version: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    folder = pytestconfig.cache.mkdir(f"trl-{version}")
    if not (folder / "trl").exists():
        install(version, folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS)])}
    words = [str(Path(__file__).with_name("trl_version.py")), str(tmp_path)]
    if version == "1.15.0":  # its forward pass is a Triton kernel, also on a CPU
        # Triton interprets kernels where this is set before it is imported: in a new interpreter.
        environment["TRITON_INTERPRET"] = "1"
        words = [sys.executable, "-W", "ignore", *words]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
    else:
        done = forked.run(words, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"] == version
    assert found["handed over"]
    assert found["dapo"]
    assert found["dapo, two rounds"]
    assert max(found["20-entropy"], found["entropy bonus"]) < 1e-4
    assert abs(found["evaluated"]) < 10


def install(version: str, folder: Path) -> None:
    """Put this version alone into a folder."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    pip = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--target", str(folder), f"trl=={version}"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("version", ["1.12.0", "1.17.0", "1.17.0.dev0", "0.29.1", "2.0.0"])
def test_other_versions_are_refused_by_name(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / f"trl-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"has trl {version}; rlobj works with >=1\.13,<1\.17"):
        importlib.reload(rlobj.integrations.trl)
