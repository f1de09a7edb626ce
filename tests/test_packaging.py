"""The wheel and the sdist: built, looked into, installed and used outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import rlobj
from rlobj.data.tasks import TASKS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PRESETS = sorted(path.stem for path in (ROOT / "presets").glob("*.yaml"))
VERSION = f"rlobj {rlobj.__version__}\n"
LOAD_ALL = """
import rlobj
from rlobj.settings.presets import preset_folder, preset_names
for name in preset_names():
    rlobj.load_preset(name).objective
print(rlobj.__file__)
print(preset_folder())
print(*preset_names())
"""


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Output of a command that must succeed, away from the checkout's path."""
    hidden = ("PYTHONPATH", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(wheel: Path, folder: Path) -> Path:
    """The python of an environment with the wheel, which sees the packages of this one."""
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run([python, "-c", code], folder).strip())
    # A plain path: .pth files over there, such as that of an editable rlobj, are not followed.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet"]
    run([*pip, "install", *options, wheel], folder)
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel); the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], folder)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_holds_the_presets_both_packages_and_the_license(built):
    names = zipfile.ZipFile(built[1]).namelist()
    shipped = [Path(name).stem for name in names if name.startswith("rlobj/_presets/")]
    assert sorted(shipped) == PRESETS
    assert {f"rlobj/models/policies/{task}/model.safetensors" for task in TASKS} <= {*names}
    assert {"rlobj/py.typed", "rlobj/skills/rlobj/SKILL.md"} <= {*names}
    assert "rlobj_cli/app.py" in names
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"rlobj", "rlobj_cli"}


def test_the_sdist_holds_all_that_a_build_and_the_tests_need(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"presets/{name}.yaml" for name in PRESETS} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml"} <= names
    assert {"constraints.txt", ".ci/run", ".github/workflows/ci.yml"} <= names
    assert {"src/rlobj/__init__.py", "cli/rlobj_cli/app.py", "tests/conftest.py"} <= names
    assert {"docs/conf.py", "docs/index.md"} <= names


def test_the_installed_wheel_loads_every_preset_and_its_program_answers(built, tmp_path):
    python = installed(built[1], tmp_path / "venv")
    module, folder, names = run([python, "-c", LOAD_ALL], tmp_path).splitlines()
    assert Path(module).is_relative_to(python.parents[1])
    assert Path(folder) == Path(module).parent / "_presets"
    assert names.split() == PRESETS
    program = python.with_name("rlobj")
    assert run([program, "--version"], tmp_path) == VERSION
    assert "entropy.bottom(0.8)" in run([program, "presets", "show", "stapo"], tmp_path)
    assert run([python, "-m", "rlobj_cli", "--version"], tmp_path) == VERSION
