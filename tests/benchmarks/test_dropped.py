"""The picture of the README."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.real.dropped import Response, chosen, drawn


def response(prompt: str, reward: float, dropped: int | None, least: float) -> Response:
    texts = list("1+2=3;3+4=7#7")
    probs = [0.99] * len(texts)
    probs[4] = least
    return Response(60, prompt, reward, texts, probs, [i == dropped for i in range(len(texts))])


def test_right_responses_with_dropped_tokens_come_first_and_then_an_unlikely_wrong_one() -> None:
    rows = [
        response("1+2=", 1.0, None, 0.9),
        response("3+4=", 1.0, 4, 0.0004),
        response("3+4=", 1.0, 4, 0.00004),  # of a prompt, the least likely
        response("7+8=", 1.0, 4, 0.0003),
        response("3+4=", 0.0, None, 0.002),
        response("5+6=", 0.0, None, 0.0001),
    ]
    assert {row.lowest for row in chosen(rows)} == {4}
    assert {id(row) for row in chosen(rows)} == {id(rows[i]) for i in (2, 3, 5)}
    assert chosen(rows)[-1] is rows[5]


def test_each_dropped_token_is_framed_and_named_and_text_stays_text() -> None:
    hostile = Response(9, "<&", 1.0, ["</text>", "\x1b"], [0.5, 4e-5], [False, True])
    picture = ElementTree.fromstring(drawn([hostile, response("3+4=", 0.0, None, 0.002)]))
    name = "{http://www.w3.org/2000/svg}"
    frames = [each for each in picture.iter(f"{name}rect") if each.get("class") == "dropped"]
    assert len(frames) == 2  # one in the legend
    texts = [each.text for each in picture.iter(f"{name}text")]
    assert {"</text>", "␛", "dropped, π = 4e-05", "kept, π = 0.002"} <= set(texts)
