"""Figures of curves: one description for a page (assets/figures.js) and for papers (matplotlib).

Text of tokens, prompts and names for a terminal: data that nothing interprets.

HTML pages: one file that needs no network, with its styles, scripts and libraries inside.

A page may hold texts that a model wrote, and these count as hostile. They go into JSON that no text
can break out of, and the page's Content-Security-Policy names its own scripts by hash and nothing
else, so that no text can run or load anything, even if a browser took it for markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import textwrap
import unicodedata
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.files import packaged

_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"}
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that move the cursor, turn the direction of text, or have no glyph."""


def visible(text: str, most: int | None = None) -> str:
    r"""Text on one line in which every control character is a symbol.

    Args:
        text: any text.
        most: the largest number of characters; longer text ends with "…". None = all.

    Example:
        >>> visible("a\n\x1b[31mb\u202ec"), visible("abcdef", 4)
        ('a␊␛[31mb‹202e›c', 'abc…')
    """
    if most is not None and len(text) > most:
        text = text[: max(most - 1, 0)] + "…"
    shown = text.translate(_PICTURES)
    return "".join(
        f"‹{ord(each):x}›" if unicodedata.category(each) in _UNSAFE else each for each in shown
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; the first column is aligned left, the others right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    first, *rest = [[escaped(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))


def escaped(text: str) -> str:
    """Text on one line without a meaning in Markdown or in a table."""
    for mark in ("\\", "|", "<", "`", "*", "_", "$"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito 2008: colours that people with any kind of colour blindness can tell apart."""
DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3))
"""Lengths of strokes and gaps in pixels; () is a solid line."""

_WIDTH, _LONGEST = 95, 400
"""Characters in a line of small text in a file, and in a whole text."""
_FEW = 12
"""Points that are drawn as dots as well."""


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: in the legend.
        x: its places.
        y: its values; None or NaN is a gap.
        low, high: a band around it, such as an interval; None = no band.
        run: the number of the run, which gives the colour; None = a colour of its own.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    run: int | None = None


@dataclass(frozen=True)
class Mark:
    """An event at a place of the x axis, such as a finding of the diagnosis.

    Attributes:
        x: its place.
        text: what it is.
        run: the number of the run, which gives the colour.
        link: the id of an element of the page that explains it; "" = none.
    """

    x: float
    text: str
    run: int = 0
    link: str = ""


@dataclass(frozen=True)
class Target:
    """A horizontal band that a controller or a user aims at; `low` may equal `high`."""

    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Figure:
    """Curves over a common axis.

    Attributes:
        name: of its file.
        title: what is drawn.
        unit: of the y axis, such as "nats"; "" if it has none.
        lines: the curves.
        marks: events.
        targets: bands.
        x: title of the x axis, with its unit.
        caption: lines below the title in files, such as the rules of the runs.
        log_x: a logarithmic x axis; places that are not positive are left out.
    """

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    targets: Sequence[Target] = ()
    x: str = "step"
    log_x: bool = False
    caption: Sequence[str] = ()


def styles(figure: Figure) -> list[tuple[int, int]]:
    """(number of the colour, number of the dash) of each line.

    Lines of a run share its colour and differ in their dash. Runs with one line each differ in
    both, and so do lines without a run.
    """
    runs = [i if line.run is None else line.run for i, line in enumerate(figure.lines)]
    within = [runs[:i].count(run) for i, run in enumerate(runs)]
    if any(within):
        return list(zip(runs, within, strict=True))
    return [(run, dash_of(run)) for run in runs]


def dash_of(run: int) -> int:
    """The number of a run's dash, another one each time that the colours begin again."""
    return run + run // len(COLORS)


def figure_data(figures: Sequence[Figure]) -> dict[str, Any]:
    """Figures as JSON for `drawFigures` of assets/figures.js.

    Returns:
        `figures`, and `xs`: each list of places once, as lines often share them. Numbers have four
        significant digits, places are exact. Gaps are null.
    """
    places: dict[tuple[float, ...], int] = {}
    drawn = []
    for figure in figures:
        lines = []
        for line, (color, dash) in zip(figure.lines, styles(figure), strict=True):
            parts = {"y": line.y, "low": line.low, "high": line.high}
            numbers = {key: _rounded(part) for key, part in parts.items() if part is not None}
            x = places.setdefault(tuple(line.x), len(places))
            look = {"run": line.run, "color": color, "dash": dash}
            lines.append({"name": line.name, **look, "x": x, **numbers})
        drawn.append(
            {
                **{key: getattr(figure, key) for key in ("name", "title", "unit", "x")},
                **{"logX": figure.log_x, "lines": lines},
                "marks": [vars(mark) for mark in figure.marks],
                "targets": [vars(target) for target in figure.targets],
            }
        )
    return {"figures": drawn, "xs": list(places), "colors": COLORS, "dashes": DASHES}


def save_figure(figure: Figure, path: Path) -> None:
    """Draw a figure into a file for a paper.

    Args:
        figure: the curves.
        path: ends with .svg or .png; its folder exists.

    Raises:
        ConfigError: another ending.
        RunError: the disk refused.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"figures are written as .svg or .png, not as {path.name!r}")
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": figure.name}):
        warnings.simplefilter("ignore")  # characters without a glyph, log axes without a value
        canvas = Canvas(figsize=(5, 3), layout="constrained")
        _draw(figure, canvas)
        with reported(RunError, f"cannot write {path}", OSError):
            canvas.savefig(path, dpi=200, metadata=metadata)


def _draw(figure: Figure, canvas: Any) -> None:
    """Lines, bands, targets and marks with a legend below them, as text that is no formula."""
    import numpy as np

    axes, legend = canvas.add_subplot(), []
    for line, (color, dash) in zip(figure.lines, styles(figure), strict=True):
        look = {"color": COLORS[color % len(COLORS)], "linewidth": 1.3}
        y = np.array(line.y, float)  # None is NaN
        [drawn] = axes.plot(line.x, y, **look, marker="." if len(y) <= _FEW else "")
        if pattern := DASHES[dash % len(DASHES)]:
            drawn.set_dashes(pattern)
        if line.low is not None and line.high is not None:
            ends = np.array([line.low, line.high], float)
            axes.fill_between(line.x, *ends, color=look["color"], alpha=0.15, linewidth=0)
        legend.append((drawn, line.name))
    for target in figure.targets:
        axes.axhspan(target.low, target.high, color="#888888", alpha=0.2, linewidth=0)
        drawn = [axes.axhline(y, color="#888888", dashes=(2, 2)) for y in (target.low, target.high)]
        legend.append((drawn[0], target.text))
    for mark in figure.marks:
        color = COLORS[mark.run % len(COLORS)]
        drawn = axes.axvline(mark.x, color=color, linestyle=":", linewidth=1)
        legend.append((drawn, mark.text))
    if figure.log_x:
        axes.set_xscale("log", nonpositive="mask")
    axes.grid(alpha=0.3)
    caption, names = (
        [textwrap.fill(visible(text, _LONGEST), _WIDTH) for text in texts]
        for texts in (figure.caption, [name for _, name in legend])
    )
    texts = [canvas.suptitle(visible(figure.title, _WIDTH)), axes.set_xlabel(visible(figure.x, 60))]
    texts.append(axes.set_ylabel(visible(figure.unit, 60)))
    texts.append(axes.set_title("\n".join(caption), fontsize=7, color="#555555"))
    rows = caption + (names if len(legend) > 1 else [])
    canvas.set_figheight(3 + 0.16 * sum(text.count("\n") + 1 for text in rows))
    if len(legend) > 1:
        drawings = [drawn for drawn, _ in legend]
        labels = [f" {name}" for name in names]  # one with a leading _ would be left out
        box = canvas.legend(drawings, labels, loc="outside lower left", fontsize=7, frameon=False)
        texts += box.get_texts()
    for text in texts:
        text.set_parse_math(False)


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Four significant digits; None for what is no finite number."""
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
        for value in values
    ]


_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


_LIBRARIES = {
    "katex": ("dom.js", "katex/katex.min.js", "math.js"),
    "echarts": ("dom.js", "echarts/echarts.min.js", "figures.js"),
}


def render_page(
    title: str,
    body: str | bytes,
    *,
    styles: str = "",
    scripts: Sequence[str] = (),
    data: Mapping[str, Any],
    packed: Mapping[str, bytes] | None = None,
    libraries: Sequence[str] = (),
) -> bytes:
    """A page.

    Args:
        title: plain text.
        body: HTML.
        styles: CSS of this page, after the shared styles.
        scripts: JavaScript of this page, after that of the libraries.
        data: id -> JSON value; a script reads it from the element with this id.
        packed: id -> base64 of content that `pack` compressed; `unpack(id)` in the page resolves to
            its bytes.
        libraries: "katex" for formulas (`typeset`), "echarts" for charts (`echarts`,
            `drawFigures`); both with `byId`, `make` and `css` of dom.js.
    """
    shared = list(dict.fromkeys(asset for name in libraries for asset in _LIBRARIES[name]))
    running = [*map(_asset, ["unpack.js", *shared] if packed else shared), *scripts]
    elements = [
        b'<script type="application/json" id="%s">%s</script>\n'
        % (name.encode(), script_safe(each))
        for name, each in data.items()
    ]
    elements += [
        b'<script type="application/octet-stream" id="%s">%s</script>\n' % (name.encode(), each)
        for name, each in (packed or {}).items()
    ]
    looks = {"katex": _katex_styles, "echarts": lambda: _asset("figures.css")}
    library_styles = [looks[name]() for name in libraries]
    return fill(
        _asset("shell.html"),
        {
            "policy": _policy(running),
            "title": escape(title),
            "styles": "\n".join([*library_styles, _asset("shell.css"), styles]),
            "body": body,
            "data": b"".join(elements),
            "scripts": "".join(f"<script>{each}</script>\n" for each in running),
        },
    )


def pack(content: bytes) -> bytes:
    """Base64 of the content, compressed with zlib (a browser's "deflate")."""
    return base64.b64encode(zlib.compress(content, 6))


def fill(template: str, parts: Mapping[str, str | bytes]) -> bytes:
    """The template with each `<!--name-->` replaced by the part of that name."""
    encoded = {k: v if isinstance(v, bytes) else v.encode() for k, v in parts.items()}
    return re.sub(rb"<!--(\w+)-->", lambda mark: encoded[mark[1].decode()], template.encode())


def definition_list(lines: Mapping[str, str]) -> str:
    """Names and values as HTML; "" for none."""
    terms = (
        f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(text)}</dd></div>"
        for name, text in lines.items()
    )
    return f"<dl>{''.join(terms)}</dl>" if lines else ""


def html_table(head: Iterable[str], rows: Iterable[tuple[str, Iterable[str]]]) -> str:
    """A table of text below a head of HTML; each row is its name and its cells."""
    titles = "".join(f"<th scope=col>{each}</th>" for each in head)
    lines = (
        f"<tr><th scope=row>{escape(name)}</th>"
        f"{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    return (
        f"<table><thead><tr><th></th>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def script_safe(value: Any) -> bytes:
    """JSON for a <script> element: without `<`, `>` and `&`, whatever the text.

    Lone surrogates, which UTF-8 does not have, become JSON's own escapes.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark, replacement in _ESCAPES.items():
        text = text.replace(mark, replacement)
    return text.encode("utf-8", "backslashreplace")


def _asset(name: str) -> str:
    return packaged("rlobj.reporting", f"assets/{name}")


def _katex_styles() -> str:
    """KaTeX's style sheet with its woff2 fonts inside, and no other format."""
    fonts = files("rlobj.reporting") / "assets" / "katex" / "fonts"

    def inlined(source: re.Match[str]) -> str:
        content = base64.b64encode((fonts / source[1]).read_bytes()).decode()
        return f'src:url(data:font/woff2;base64,{content}) format("woff2")'

    return re.sub(r"src:url\(fonts/([\w-]+\.woff2)\)[^;}]*", inlined, _asset("katex/katex.min.css"))


def _policy(scripts: Sequence[str]) -> str:
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
