"""Sphinx settings. Pages are Markdown, and `python docs/tables.py --write` writes their tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import rlobj

project = "rlobj"
author = "the rlobj authors"
copyright = "the rlobj authors"
version = release = rlobj.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "contents"
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"rlobj {version}"
html_context = {"master_doc": "index"}  # the page behind the name in the sidebar
html_static_path = ["_static"]
html_css_files = ["rlobj.css"]
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

toc_object_entries = False  # the on-page contents of the reference list modules only
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures of pydantic fields are in the configuration tables
autodoc_default_options = {"members": True, "exclude-members": "model_config, model_post_init"}
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Source", ("Sources", "Source")]


def plain_docstring(_app: Any, *about: Any) -> None:
    """Docstrings are plain text: `code` in backticks, and set-off equations and listings."""
    lines: list[str] = about[-1]
    found: list[str] = []
    literal = doctest = False
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        doctest = (doctest and bool(line.strip())) or line.lstrip().startswith(">>>")
        if line.strip() and not indent:
            literal = False
        elif line.strip() and number and not lines[number - 1].strip() and not literal:
            before = next((old for old in reversed(found) if old.strip()), "")
            literal = not doctest and not before.startswith(" ") and not _is_section(before)
            found += ["::", ""] if literal else []
        found.append(line if literal or doctest else _inline(line))
    lines[:] = found


def _is_section(line: str) -> bool:
    """`Args:`, `Example: of what`, ..."""
    return re.match(r"(Args|Attributes|Returns|Raises|Source|Example)s?:", line) is not None


def _inline(line: str) -> str:
    """A line of prose with its code marked as code, and no other mark-up."""
    parts = line.split("`")
    prose = [re.sub(r"([|*])|(?<=\w)(_)(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    code = [f"``{part}``" if part else "``" for part in parts[1::2]]
    mixed = [x for pair in zip(prose, [*code, ""], strict=False) for x in pair]
    return "".join(mixed) if len(parts) % 2 else line.replace("`", "'").replace("|", "\\|")


def with_files(_app: Any, _page: str, source: list[str]) -> None:
    """`<!-- file: loop.py -->` stands for the file; a repository host shows the link before it."""
    folder = Path(__file__).parent
    source[0] = re.sub(
        r"^<!-- file: (\S+) -->$",
        lambda named: f"```python\n{(folder / named[1]).read_text(encoding='utf-8')}```",
        source[0],
        flags=re.MULTILINE,
    )


def setup(app: Any) -> None:
    """Read docstrings as they are, and put files into pages."""
    app.connect("source-read", with_files)
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
