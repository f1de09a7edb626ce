"""HTML pages hold everything they need, and nothing inside them can run."""

from __future__ import annotations

import json
import re

from rlobj.reporting.pages import definition_list, fill, render_page, script_safe

HOSTILE = "</script><!-- <script> & \ud800 \u2028 \x00 \\"


def test_json_for_a_script_element_cannot_end_it_and_reads_back_the_same() -> None:
    written = script_safe({"text": HOSTILE})
    assert not re.search(rb"[<>&]", written)
    assert json.loads(written) == {"text": HOSTILE}


def test_a_page_holds_title_body_styles_script_and_data() -> None:
    page = render_page(
        "a < b", "<main></main>", styles="p{}", scripts=["go()"], data={"d": [HOSTILE]}
    )
    text = page.decode()
    assert "<title>a &lt; b</title>" in text
    assert text.index("p{}") < text.index("<main></main>") < text.index("<script>go()</script>")
    [data] = re.findall(r'<script type="application/json" id="d">(.*?)</script>', text)
    assert json.loads(data) == [HOSTILE]
    assert text.count("'sha256-") == len(re.findall("<script>", text)) == 1


def test_a_page_holds_only_the_libraries_that_it_names() -> None:
    def scripts(*libraries: str) -> list[str]:
        page = render_page("t", "", data={}, libraries=libraries).decode()
        names = {"katex": "katex.render", "echarts": "Apache Software Foundation"}
        return [name for name, part in names.items() if part in page]

    assert scripts() == []
    assert scripts("katex") == ["katex"]
    assert scripts("echarts") == ["echarts"]
    assert scripts("katex", "echarts") == ["katex", "echarts"]


def test_a_part_that_looks_like_a_mark_is_not_replaced() -> None:
    assert fill("<!--a--><!--b-->", {"a": "<!--b-->", "b": b"x"}) == b"<!--b-->x"


def test_names_and_values_are_escaped() -> None:
    assert definition_list({"a_b": "<i>"}) == "<dl><div><dt>a b</dt><dd>&lt;i&gt;</dd></div></dl>"
    assert definition_list({}) == ""
