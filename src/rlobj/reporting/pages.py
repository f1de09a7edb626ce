"""HTML pages: one file that needs no network, with its styles, scripts and libraries inside.

A page may hold texts that a model wrote, and these count as hostile. They go into JSON that no text
can break out of, and the page's Content-Security-Policy names its own scripts by hash and nothing
else, so that no text can run or load anything, even if a browser took it for markup.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from rlobj.base.files import packaged

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
        % (name.encode(), script_safe(content))
        for name, content in data.items()
    ]
    elements += [
        b'<script type="application/octet-stream" id="%s">%s</script>\n' % (name.encode(), content)
        for name, content in (packed or {}).items()
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
            "scripts": "".join(f"<script>{script}</script>\n" for script in running),
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
    titles = "".join(f"<th scope=col>{title}</th>" for title in head)
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
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
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
