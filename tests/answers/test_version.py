"""The version of the verifier changes when its code changes, and only then."""

import shutil
from pathlib import Path

from rlobj import answers
from rlobj.answers import MathVerifier, verifier_version


def test_the_version_is_that_of_the_source_files(tmp_path: Path) -> None:
    source = Path(answers.__file__).parents[1]

    def version(**changed: str) -> str:
        copy = tmp_path / "-".join(["copy", *changed])
        for folder in ("answers", "workers"):
            shutil.copytree(source / folder, copy / folder)
        for name, file in changed.items():
            (copy / file).write_text(f"# {name}\n", encoding="utf-8")
        return verifier_version(folder=copy)

    changed = version(a="answers/vocabulary.toml"), version(b="workers/judge.py")
    assert len({version(), *changed}) == 3
    assert version(c="base.py") == verifier_version()


def test_the_version_is_also_that_of_the_limits() -> None:
    limits = [(5.0, 4.0), (6.0, 4.0), (5.0, 3.0)]
    versions = [MathVerifier(seconds, memory_gib=gib).version for seconds, gib in limits]
    assert versions == [verifier_version(*pair) for pair in limits]
    assert len({*versions}) == 3
    assert MathVerifier().version == verifier_version() == versions[0]
