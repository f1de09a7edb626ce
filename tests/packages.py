"""Made-up packages for the tests of what is installed."""

from __future__ import annotations

from pathlib import Path


def package(folder: Path, name: str, version: str, code: str = "") -> None:
    """A package as pip leaves it, to be found before the one that is installed."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code, encoding="utf-8")
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name.replace('_', '-')}", f"Version: {version}"]
    (about / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
