"""The rows of a page as elements of HTML, from which `assets/store.js` reads one column at a time.

An element has base64 of deflate of little-endian numbers. The element `store-meta` has, as JSON:

    size               the number of rows
    columns            name -> {type, per, element, values}
    updates            the whole updates: step, update, state

type is float32 (null is NaN), int32, float64, bool (bytes 0, 1, 2 = null) or text; then the numbers
are int32 places in the list of `values`, an element of its own. `per` is "token" or "response".
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from rlobj.base.arrow import pc
from rlobj.base.files import packaged
from rlobj.insight.page.store import ORDER, PER_RESPONSE, PageRows
from rlobj.reporting.page import pack, script_safe

SCRIPTS = ("rules.js", "evaluate.js", "store.js")


def store_script() -> str:
    """The scripts that read the elements: `openStore()` and `rules`."""
    own = [packaged("rlobj.insight.page", f"assets/{name}") for name in SCRIPTS]
    return "\n".join([packaged("rlobj.reporting", "assets/unpack.js"), *own])


def store_elements(page: PageRows) -> bytes:
    """The <script> elements with the rows."""
    rows, elements = page.rows, _Elements()
    keys = np.stack([_numbers(rows[name]) for name in ORDER[:4]])
    first = np.ones(len(rows), bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
    real = _numbers(rows["position"]) >= 0
    starts = np.flatnonzero(first)
    before = np.concatenate([[0], np.cumsum(real)])[starts].astype(np.int32)
    responses, tokens = rows.take(starts), rows.filter(pyarrow.array(real))
    columns = {"start": {"per": "response", **elements.column(pyarrow.array(before))}}
    for name in rows.column_names:
        each = name in PER_RESPONSE or name.startswith("reward:")
        column = (responses if each else tokens)[name].combine_chunks()
        if column.null_count < len(column):
            columns[name] = {"per": "response" if each else "token", **elements.column(column)}
    meta = {
        "size": len(tokens),
        "columns": columns,
        "updates": page.updates,
    }
    head = b'<script type="application/json" id="store-meta">%s</script>\n' % script_safe(meta)
    return head + b"".join(elements.written)


class _Elements:
    """The elements that were written; equal columns share one."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._known: dict[bytes, str] = {}

    def column(self, column: Any) -> dict[str, Any]:
        """How to read a column, after its elements were written."""
        found: dict[str, Any] = {}
        if pyarrow.types.is_dictionary(column.type):
            used = column.cast("string").dictionary_encode("encode")  # null is one of the values
            kind, values = "text", used.indices.to_numpy()
            found["values"] = self._element(json.dumps(used.dictionary.to_pylist()).encode())
        elif pyarrow.types.is_boolean(column.type):
            kind, values = "bool", pc.fill_null(column.cast("uint8"), 2).to_numpy()
        else:
            values = _numbers(column)
            if values.dtype == np.int64:
                small = abs(values).max(initial=0) < 2**31
                values = values.astype(np.int32 if small else np.float64)
            kind = str(values.dtype)
        return {"type": kind, "element": self._element(values.tobytes()), **found}

    def _element(self, content: bytes) -> str:
        packed = pack(content)
        if packed not in self._known:
            self._known[packed] = f"column-{len(self._known)}"
            element = b'<script type="application/octet-stream" id="%s">%s</script>\n'
            self.written.append(element % (self._known[packed].encode(), packed))
        return self._known[packed]


def _numbers(column: Any) -> NDArray[Any]:
    """The numbers of a column; null becomes NaN."""
    floating = pyarrow.types.is_floating(column.type)
    return np.asarray(column.cast("float32") if floating else column)
