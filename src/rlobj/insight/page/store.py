"""The rows of a page as elements of HTML, from which `assets/store.js` reads one column at a time.

An element has base64 of deflate of little-endian numbers. The element `store-meta` has, as JSON:

    size               the number of rows
    columns            name -> {type, per, element, values}
    updates            the whole updates: step, update

type is float32 (null is NaN), int32, float64, bool (bytes 0, 1, 2 = null) or text; then the numbers
are int32 places in the list of `values`, an element of its own. `per` is "token" or "response".
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from rlobj.base.arrow import pc
from rlobj.insight.page.rows import ORDER, PageRows
from rlobj.reporting.pages import pack

PER_RESPONSE = ("step", "update", "group", "rollout", "response", "began", "reward", "prompt")
"""Columns with one value per response; so are rewards by name, `reward:NAME`."""


def store_data(page: PageRows) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The value of `store-meta`, and the packed columns by the ids of their elements."""
    rows, ids = page.rows, dict[bytes, str]()  # equal columns share an element

    def element(content: bytes) -> str:
        return ids.setdefault(pack(content), f"column-{len(ids)}")

    keys = np.stack([_numbers(rows[name]) for name in ORDER[:5]])
    first = np.ones(len(rows), bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
    starts = np.flatnonzero(first).astype(np.int32)
    responses = rows.take(starts)
    columns = {"start": {"per": "response", **_described(pyarrow.array(starts), element)}}
    for name in rows.column_names:
        per_response = name in PER_RESPONSE or name.startswith("reward:")
        column = (responses if per_response else rows)[name].combine_chunks()
        if column.null_count < len(column):
            per = "response" if per_response else "token"
            columns[name] = {"per": per, **_described(column, element)}
    meta = {"size": len(rows), "columns": columns, "updates": page.updates}
    return meta, {name: packed for packed, name in ids.items()}


def _described(column: Any, element: Callable[[bytes], str]) -> dict[str, Any]:
    """How to read a column, of which `element` keeps the bytes."""
    texts: dict[str, Any] = {}
    if pyarrow.types.is_dictionary(column.type):
        used = column.cast("string").dictionary_encode("encode")  # null is one of the values
        kind, values = "text", used.indices.to_numpy()
        texts["values"] = element(json.dumps(used.dictionary.to_pylist()).encode())
    elif pyarrow.types.is_boolean(column.type):
        kind, values = "bool", pc.fill_null(column.cast("uint8"), 2).to_numpy()
    else:
        values = _numbers(column)
        if values.dtype == np.int64:
            small = abs(values).max(initial=0) < 2**31
            values = values.astype(np.int32 if small else np.float64)
        kind = str(values.dtype)
    return {"type": kind, "element": element(values.tobytes()), **texts}


def _numbers(column: Any) -> NDArray[Any]:
    """The numbers of a column; null becomes NaN."""
    floating = pyarrow.types.is_floating(column.type)
    return np.asarray(column.cast("float32") if floating else column)
