"""Responses built to hang, blow up or confuse a verifier, and long ones that are harmless.

They are made here and not written into the files of cases, because most are far too long to read.
`bombs` are never right; what they must do is return. `long_answers` hold a plain right answer that
is merely surrounded by a lot of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

__all__ = ["Bomb", "bombs", "long_answers"]


class Bomb(NamedTuple):
    """A hostile response, and the gold that it pretends to equal."""

    kind: str
    response: str
    gold: str


# Golds of each sort, so that no single fast path can refuse every bomb.
_GOLDS = ("5", r"\frac{\sqrt{3}}{3}", "x^3+3x-6", "(3,4]", r"\{1\pm\sqrt{5},-2\}", "1,-2", "4.5e33")


def _huge_numbers() -> Iterator[str]:
    yield "9^{9^{9^{9}}}"
    yield "9^9^9^9"
    yield "e^{e^{e^{e^{e}}}}"
    yield r"\frac{2^{10^9}}{2^{10^9}-1}"
    yield r"1.5\times 10^{999999999}"
    yield "1e" + "9" * 60
    yield r"10^{-10^{10}}"
    yield "1000000000!"
    yield "((9!)!)!"
    yield "9!!!!!!!!!!"
    yield r"\binom{10000000}{5000000}"
    yield r"\Gamma(100000000)"
    yield r"\prod_{k=1}^{10000000} k"
    yield r"\sum_{k=1}^{1000000000} \frac{1}{k^{3}}"
    yield r"\sum_{i=1}^{10^6}\sum_{j=1}^{10^6}\sum_{k=1}^{10^6} ijk"
    yield r"\sin(10^{10^{10}})"
    yield r"(1+i)^{10^{9}}"
    yield r"(\sqrt{2}+\sqrt{3}+\sqrt{5})^{20000}"
    yield r"\sqrt[1000000000]{2^{1000000007}}"
    yield r"7^{10^{18}} \pmod{10^{9}+7}"
    yield r"\log_{2^{10^9}} 3^{10^9}"
    yield r"\lfloor 10^{10^9} \pi \rfloor"
    yield r"F_{10^{18}}"
    yield "9" * 100_000
    yield r"0.\overline{" + "142857" * 3000 + "}"
    yield "1" * 400 + "_{99999999999}"


def _algebra() -> Iterator[str]:
    yield "(x+y+z+w+1)^{200}"
    yield r"\frac{x^{5000}-1}{x-1}"
    yield r"\frac{(x+1)^{300}-(x-1)^{300}}{x}-(y+z+1)^{200}"
    yield r"\int_0^1 \int_0^x e^{-x^2 y^3} \sin(\cos(\tan(xy)))\,dy\,dx"
    yield r"\lim_{n\to\infty} \sum_{k=1}^{n} \frac{\sin(k^2)}{k^{1+1/k}}"
    rows = [" & ".join(f"a_{{{i}{j}}}" for j in range(12)) for i in range(12)]
    yield r"\begin{vmatrix}" + r" \\ ".join(rows) + r"\end{vmatrix}"
    yield r"\sqrt{" * 300 + "2" + "+1}" * 300
    yield r"\frac{1}{1+" * 400 + "x" + "}" * 400


def _nesting() -> Iterator[str]:
    yield "(" * 2000 + "5" + ")" * 2000
    yield "{" * 20_000 + "5" + "}" * 20_000
    yield "-" * 5000 + "6"
    yield r"\text{" * 5000 + "5" + "}" * 5000
    yield r"\begin{pmatrix}" * 500 + "5" + r"\end{pmatrix}" * 500


def _lists() -> Iterator[str]:
    yield ",".join(str(i) for i in range(50_000))
    yield "1" + r"\pm 1" * 60
    yield "(" + ",".join([r"\pm 1"] * 40) + ")"
    yield r"\cup".join(f"({i},{i + 1})" for i in range(3000))
    yield "=".join(["5"] * 5000 + ["6"])
    yield r" \text{ or } ".join(str(i) for i in range(5000))


def _characters() -> Iterator[str]:
    yield "a " * 50_000
    yield "$" + "a " * 50_000 + "$"
    yield "½" * 20_000
    yield "\u200b" * 100_000 + "6"
    yield "\n" * 100_000 + "6"
    yield " " * 100_000 + "6" + " " * 100_000
    yield r"\%" * 20_000
    yield r"\," * 30_000 + "6"
    yield "٣" * 20_000
    yield "1,000" * 10_000
    yield "6" + " cm" * 20_000
    yield "$" * 50_001
    yield "\\" * 50_001
    yield r"\boxed{5" * 500 + "}" * 499


def _code() -> Iterator[str]:
    yield "__import__('time').sleep(60)"
    yield "(lambda f: f(f))(lambda f: f(f))"
    yield "[x for x in iter(int, 1)]"
    yield "eval('9**9**9')"
    yield "exec('while True: pass')"
    yield "'a'*10**10"
    yield r"\loop\iftrue\repeat"
    yield r"\def\x{\x\x}\x"


def _raw_responses() -> Iterator[tuple[str, str]]:
    yield "boxes", r"\boxed{" * 50_000
    yield "boxes", r"\boxed{}" * 20_000
    yield "boxes", r"\boxed{5" + "{" * 50_000
    yield "boxes", "".join(rf"\boxed{{{i}}}" for i in range(6, 20_000))
    yield "boxes", r"\boxed" * 30_000
    yield "boxes", r"\boxed{" + r"\}" * 50_000
    yield "tags", "<think>" * 30_000
    yield "tags", "<think>" * 20_000 + r"\boxed{6}" + "</think>" * 19_999
    yield "tags", "</think><think>" * 20_000 + "5"
    yield "tags", "<" * 100_000
    yield "anchors", "Answer: " * 30_000
    yield "anchors", "the answer is " * 20_000
    yield "anchors", "The answer is not 5. " * 10_000
    yield "anchors", "####" * 50_000
    yield "anchors", "#" * 100_000
    yield "anchors", "Final Answer\n" * 20_000
    yield "anchors", "**" * 50_000 + "Answer" + "*" * 50_000 + ":" + " " * 50_000
    yield "anchors", "Answer:" + "\n" * 100_000
    yield "anchors", "The answer is " + "5 or " * 30_000
    yield "anchors", "Answer: " + "\u2028" * 50_000
    yield "anchors", "The answer is " + "\x0b" * 50_000
    yield "anchors", "Answer: " + "\\" * 50_000
    yield "boxes", r"\boxed{6}" + "\\" * 50_000
    yield "prose", "x = 5. " * 15_000
    yield "prose", "\\" * 100_000
    yield "prose", "\x00" * 1000 + "5"
    yield "prose", "\ud800 5"


def bombs() -> list[Bomb]:
    """Every hostile response, with golds dealt in turn."""
    golds = cycle(_GOLDS)
    families = {
        "huge numbers": _huge_numbers,
        "algebra": _algebra,
        "nesting": _nesting,
        "lists": _lists,
        "characters": _characters,
        "code": _code,
    }
    boxed = [
        Bomb(kind, rf"\boxed{{{answer}}}", next(golds))
        for kind, family in families.items()
        for answer in family()
    ]
    bare = [Bomb(f"text: {kind}", response, "5") for kind, response in _raw_responses()]
    hostile_golds = [
        Bomb("hostile gold", r"\boxed{5}", gold)
        for gold in ("9^{9^{9^{9}}}", "(" * 2000 + "6" + ")" * 2000, "1000000000!", "1e" + "9" * 40)
    ]
    return boxed + bare + hostile_golds


def long_answers() -> list[tuple[str, str]]:
    """Long responses with a plain right answer, as (response, gold)."""
    prose = "We add 2 and 3, then check that the sum stays below 12. "
    return [
        (prose * 2000 + r"\boxed{204}", "204"),
        (r"\boxed{204}" + "\n" + prose * 2000, "204"),
        ("<think>\n" + prose * 2000 + "\n</think>\n" + r"\boxed{204}", "204"),
        ("<think>\n" + (prose + r"\boxed{7} ") * 2000 + "\n</think>\n" + r"\boxed{204}", "204"),
        (r"\boxed{}" * 3000 + r"\boxed{204}", "204"),
        (r"\boxed{1}. " * 5000 + r"\boxed{204}", "204"),
        (prose * 2000 + "The answer is 204.", "204"),
        ("The answer is 7. " * 3000 + "Wait. The answer is 204.", "204"),
        (prose * 2000 + r"$\boxed{\frac{14}{3}}$", r"\frac{14}{3}"),
        ("(" * 5000 + r"\boxed{204}", "204"),
        ("{" * 5000 + r"\boxed{204}", "204"),
        ("$" * 5001 + r"\boxed{204}", "204"),
        (r"\boxed{" + " " * 2000 + "204" + " " * 2000 + "}", "204"),
        (prose * 2000 + "\n#### 204", "204"),
        ("\n" * 50_000 + r"\boxed{204}" + "\n" * 50_000, "204"),
        (r"\boxed{" + ", ".join(str(i) for i in range(100)) + "}", ",".join(map(str, range(100)))),
        (r"\boxed{2^{99}}" + prose * 100, str(2**99)),
        (r"\boxed{" + "7" * 300 + "}", "7" * 300),
    ]
