"""The picture of the README: responses of a run, with the tokens that its rule silenced.

    rlobj train --preset stapo --out runs/stapo
    python -m benchmarks.silenced runs/stapo docs/_static/silenced.svg

It shows the newest step of the run that has a full table: right responses with a silenced token,
and a wrong response whose unlikely token was kept. The colours follow the light or dark mode.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from rlobj import read_tables
from rlobj.base.paths import step_of
from rlobj.reporting import visible
from rlobj.runs.checkpoints import newest_checkpoint

LEVELS = (0.5, 0.1, 0.01, 0.001)
"""A token is one shade darker below each of these probabilities."""
NAMES = ("≥ 0.5", "< 0.5", "< 0.1", "< 0.01", "< 0.001")
LIGHT = ("#eaf3fb", "#c6dff2", "#6baed6", "#1f6fb4", "#08306b")
DARK = ("#16202c", "#1c3d5e", "#2f6fa8", "#6fb3ea", "#d6ecff")
WIDTH, MARGIN, CELL, ROW = 480, 16, 13, 90

STYLE = f"""
text {{ font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }}
.back {{ fill: #ffffff; stroke: #d0d7de }}
.muted {{ fill: #59636e }}
.token {{ font: 19px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  text-anchor: middle }}
.number {{ font-size: 15px; text-anchor: middle }}
.silenced {{ fill: none; stroke: #c2410c; stroke-width: 3 }}
.said {{ fill: #b33a0a; font-weight: 600 }}
{" ".join(f".p{i} {{ fill: {colour} }}" for i, colour in enumerate(LIGHT))}
.on3, .on4 {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }}
  .back {{ fill: #0d1117; stroke: #3d444d }}
  .muted {{ fill: #9198a1 }}
  .silenced {{ stroke: #ff8a4c }}
  .said {{ fill: #ff9d66 }}
  {" ".join(f".p{i} {{ fill: {colour} }}" for i, colour in enumerate(DARK))}
  .on2 {{ fill: #ffffff }}
  .on3, .on4 {{ fill: #0d1117 }}
}}"""


@dataclass(frozen=True)
class Response:
    """A response of the run: its problem, and text, probability and fate of each token."""

    step: int
    prompt: str
    reward: float
    texts: list[str]
    probs: list[float]
    silenced: list[bool]

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
    """All responses of the newest step that has a full table."""
    from transformers import AutoTokenizer

    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None, f"{run} has no checkpoint, and with it no tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "model")
    step = max(map(step_of, (run / "tables").glob("step-*")))
    for update in read_tables(run, [step]):
        table, end = update.table, 0
        assert table.logprobs is not None
        assert table.rewards is not None
        for i, (prompt, ids) in enumerate(update.sequences):
            start, end = end, end + len(ids)
            texts = [tokenizer.decode([x]) for x in ids if x not in tokenizer.all_special_ids]
            part = slice(start, start + len(texts))
            yield Response(
                step,
                tokenizer.decode(prompt),
                float(table.rewards[i]),
                texts,
                table.logprobs[part].exp().tolist(),
                (update.weights[part] == 0).tolist(),
            )


def chosen(found: list[Response]) -> list[Response]:
    """Three right responses with silenced tokens, and a wrong one with a token as unlikely."""
    right = {each.prompt: each for each in found if each.reward == 1 and 0 < sum(each.silenced) < 3}
    rows = list(right.values())[:3]
    assert rows, "no response of this step was graded right and has a silenced token"
    wrong = [
        each
        for each in found
        if each.reward == 0 and len(each.texts) > 10 and not any(each.silenced)
    ]
    shared = [each for each in wrong if each.prompt in right]
    return [*rows, *sorted(shared or wrong, key=lambda each: min(each.probs))[:1]]


def shade(prob: float) -> int:
    """The shade of a token of that probability, from 0."""
    return sum(prob < level for level in LEVELS)


def drawn(rows: list[Response]) -> str:
    """The picture as SVG."""
    parts = [text(MARGIN, 30, f"Step {rows[0].step}, tokens by their probability π")]
    parts += legend(46)
    for i, row in enumerate(rows):
        parts += response(row, 120 + i * ROW)
    height = 120 + len(rows) * ROW - 20
    title = "Responses of a run with their tokens coloured by probability; silenced ones are framed"
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


def box(x: float, y: float, kind: str, width: float = CELL) -> str:
    """The background of a token."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="26" class="{kind}"/>'


def frame(x: float, y: float) -> str:
    """What marks a silenced token."""
    return f'<rect x="{x - 2:g}" y="{y - 2:g}" width="{CELL + 4}" height="30" class="silenced"/>'


def legend(y: float) -> list[str]:
    """The shades with their probabilities, and the mark of a silenced token."""
    parts = []
    for i, name in enumerate(NAMES):
        parts += [box(MARGIN + 68 * i, y, f"p{i}", 62)]
        parts.append(f'<text x="{MARGIN + 68 * i + 31}" y="{y + 18}" class="number on{i}">')
        parts[-1] += f"{escape(name)}</text>"
    x = MARGIN + 68 * len(NAMES) + 8
    return [*parts, frame(x + 2, y), text(x + 22, y + 18, "silenced", "said")]


def response(row: Response, y: float) -> list[str]:
    """A caption, the problem and the tokens; below, what became of the silenced or unlikely one."""
    parts = [text(MARGIN, y - 10, f"graded {'right' if row.reward == 1 else 'wrong'}", "muted")]
    for i, character in enumerate(row.prompt):
        parts.append(text(MARGIN + CELL * (i + 0.5), y + 19, character, "token muted"))
    x = MARGIN + CELL * len(row.prompt) + 6
    for i, (token, prob) in enumerate(zip(row.texts, row.probs, strict=True)):
        left, level = x + CELL * i, shade(prob)
        parts += [
            box(left, y, f"p{level}"),
            text(left + CELL / 2, y + 19, token, f"token on{level}"),
        ]
    for i in [i for i, silenced in enumerate(row.silenced) if silenced] or [row.lowest]:
        digits = max(4, math.ceil(-math.log10(row.probs[i])))
        parts += [frame(x + CELL * i, y)] if row.silenced[i] else []
        said = f"{'silenced' if row.silenced[i] else 'kept'}, π = {row.probs[i]:.{digits}f}"
        place = min(max(x + CELL * (i + 0.5), MARGIN + 80), WIDTH - MARGIN - 80)
        parts.append(text(place, y + 46, said, f"number {'said' if row.silenced[i] else 'muted'}"))
    return parts


if __name__ == "__main__":
    main()
