"""The picture of the README: responses of a run, with the tokens that its rule dropped.

    python -m benchmarks.real.dropped DIR/stapo/0 docs/_static/dropped.svg

DIR is the folder of `benchmarks.real.study`. The picture shows right responses with a dropped
token, and a wrong response whose unlikely token was kept. The colours follow the light or dark
mode.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.real_model import real_model
from rlobj import read_tables
from rlobj.reporting import visible

LEVELS = (0.5, 0.1, 0.01, 0.001)
"""A token is one shade darker below each of these probabilities."""
NAMES = ("≥ 0.5", "< 0.5", "< 0.1", "< 0.01", "< 0.001")
LIGHT = ("#eaf3fb", "#c6dff2", "#6baed6", "#1f6fb4", "#08306b")
DARK = ("#16202c", "#1c3d5e", "#2f6fa8", "#6fb3ea", "#d6ecff")
WIDTH, MARGIN, CELL, PAD, GAP, ROW = 520, 16, 11.5, 4, 3, 90
"""Pixels; CELL is the width of a character, PAD stands on both sides of a token, GAP after it."""

STYLE = f"""
text {{ font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }}
.back {{ fill: #ffffff; stroke: #d0d7de }}
.muted {{ fill: #59636e }}
.token {{ font: 19px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  text-anchor: middle }}
.start {{ text-anchor: start }}
.number {{ font-size: 15px; text-anchor: middle }}
.dropped {{ fill: none; stroke: #c2410c; stroke-width: 3 }}
.said {{ fill: #b33a0a; font-weight: 600 }}
{" ".join(f".p{i} {{ fill: {colour} }}" for i, colour in enumerate(LIGHT))}
.on3, .on4 {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }}
  .back {{ fill: #0d1117; stroke: #3d444d }}
  .muted {{ fill: #9198a1 }}
  .dropped {{ stroke: #ff8a4c }}
  .said {{ fill: #ff9d66 }}
  {" ".join(f".p{i} {{ fill: {colour} }}" for i, colour in enumerate(DARK))}
  .on2 {{ fill: #ffffff }}
  .on3, .on4 {{ fill: #0d1117 }}
}}"""


@dataclass(frozen=True)
class Response:
    """A response of the run: the last line of its prompt, and text, probability and fate of each
    token."""

    step: int
    prompt: str
    reward: float
    texts: list[str]
    probs: list[float]
    dropped: list[bool]

    @property
    def lowest(self) -> int:
        """The position of the least likely token."""
        return min(range(len(self.probs)), key=self.probs.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path, help="the SVG file")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(drawn(chosen(list(responses(options.run)))), encoding="utf-8")


def responses(run: Path) -> Iterator[Response]:
    """All responses of the steps that have a full table."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model())
    for update in read_tables(run):
        table, end = update.table, 0
        assert table.logprobs is not None
        assert table.rewards is not None
        for i, (prompt, ids) in enumerate(update.sequences):
            start, end = end, end + len(ids)
            texts = [tokenizer.decode([x]) for x in ids if x not in tokenizer.all_special_ids]
            part = slice(start, start + len(texts))
            yield Response(
                update.step,
                tokenizer.decode(prompt).splitlines()[-1],
                float(table.rewards[i]),
                [visible(text).replace(" ", "·").replace("␊", "↵") for text in texts],
                table.logprobs[part].exp().tolist(),
                (update.weights[part] == 0).tolist(),
            )


def chosen(rows: list[Response]) -> list[Response]:
    """Three right responses with the least likely dropped tokens, each to another prompt, and the
    wrong one with the least likely token."""
    by_lowest = sorted(rows, key=lambda row: -min(row.probs))
    right = {row.prompt: row for row in by_lowest if row.reward == 1 and 0 < sum(row.dropped) < 3}
    assert right, "no response of this run was graded right and has a dropped token"
    wrong = [row for row in by_lowest if row.reward == 0 and not any(row.dropped)]
    return [*list(right.values())[-3:], *wrong[-1:]]


def shade(prob: float) -> int:
    """The shade of a token of that probability, from 0."""
    return sum(prob < level for level in LEVELS)


def drawn(rows: list[Response]) -> str:
    """The picture as SVG."""
    parts = [text(MARGIN, 30, "Tokens of SmolLM2-135M-Instruct by their probability π")]
    parts += legend(46)
    for i, row in enumerate(rows):
        parts += response(row, 120 + i * ROW)
    height = 120 + len(rows) * ROW - 20
    title = "Responses of a run with their tokens coloured by probability; dropped ones are framed"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{title}">\n<title>{title}</title>\n'
        f"<style>{STYLE}\n</style>\n"
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(visible(content))}</text>'


def box(x: float, y: float, kind: str, width: float) -> str:
    """The background of a token."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="26" class="{kind}"/>'


def frame(x: float, y: float, width: float) -> str:
    """What marks a dropped token."""
    return f'<rect x="{x - 1:g}" y="{y - 2:g}" width="{width + 2:g}" height="30" class="dropped"/>'


def legend(y: float) -> list[str]:
    """The shades with their probabilities, and the mark of a dropped token."""
    parts, step = [], 70
    for i, name in enumerate(NAMES):
        left = MARGIN + step * i
        parts += [box(left, y, f"p{i}", 64), text(left + 32, y + 18, name, f"number on{i}")]
    x = MARGIN + step * len(NAMES) + 8
    return [*parts, frame(x + 2, y, 14), text(x + 24, y + 18, "dropped", "said")]


def response(row: Response, y: float) -> list[str]:
    """A caption, the problem and the tokens; below, what became of the dropped or unlikely ones."""
    verdict = "right" if row.reward == 1 else "wrong"
    parts = [text(MARGIN, y - 10, f"step {row.step}, graded {verdict}", "muted")]
    parts.append(text(MARGIN, y + 19, row.prompt, "token start muted"))
    left, free = MARGIN + CELL * len(row.prompt) + 8, MARGIN
    named = [i for i, dropped in enumerate(row.dropped) if dropped] or [row.lowest]
    for i, (token, prob) in enumerate(zip(row.texts, row.probs, strict=True)):
        width, level = CELL * len(token) + 2 * PAD, shade(prob)
        parts.append(box(left, y, f"p{level}", width))
        parts.append(text(left + width / 2, y + 19, token, f"token on{level}"))
        if row.dropped[i]:
            parts.append(frame(left, y, width))
        if i in named:
            fate = "dropped" if row.dropped[i] else "kept"
            said = f"{fate}, π = {prob:.2g}"
            place = min(max(left, free), WIDTH - MARGIN - 8 * len(said))
            parts.append(text(place, y + 46, said, "said" if row.dropped[i] else "muted"))
            free = place + 8 * len(said) + 12
        left += width + GAP
    return parts


if __name__ == "__main__":
    main()
