"""The version of the verifier changes when its code changes, and only then."""

import shutil
from pathlib import Path

from rlobj import answers
from rlobj.answers import verifier_version


def test_the_version_is_that_of_the_source_files(tmp_path: Path) -> None:
    copy = tmp_path / "answers"
    shutil.copytree(Path(answers.__file__).parent, copy)
    assert verifier_version(copy) == verifier_version()
    (copy / "vocabulary.toml").write_text("units = 'm'\n", encoding="utf-8")
    changed = tmp_path / "changed"
    shutil.copytree(copy, changed)
    assert verifier_version(changed) != verifier_version()
    (changed / "words.py").rename(changed / "other_words.py")
    assert verifier_version(changed) != verifier_version(copy)  # cached before the change
