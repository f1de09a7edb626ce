"""Pages with rows that tests make up, and random rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from browser import Browser

from rlobj.base.files import packaged
from rlobj.insight.filtering import FUNCTIONS_OF_PAGES, OWN_COLUMNS
from rlobj.insight.page.writing import (
    STORE,
    PageRows,
    described,
    recorded_rows,
    store_data,
    whole_rows,
)
from rlobj.objectives.frame import Frame
from rlobj.objectives.objective import Objective
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.tokens import TokenBatch
from rlobj.records.reading import SCHEMA
from rlobj.records.tables import UpdateTable
from rlobj.records.texts import TokenTexts
from rlobj.reporting.pages import render_page

NUMBERS = (0.0, 1.0, 0.002, 0.5, 0.8, 1e-4, 2.0, -0.5, 0.1, 0.3, 100.0)
"""Values of columns; many rows have equal ones, and some are the thresholds of the rules."""
FLOATS = tuple(f.name for f in SCHEMA if f.type == pyarrow.float32())


class Letters:
    """A tokenizer whose tokens are letters."""

    backend_tokenizer = None

    def convert_ids_to_tokens(self, token: int) -> str:
        return chr(97 + token % 26)


TEXTS = TokenTexts(Letters())


def write_page(path: Path, page: PageRows, first: str = "") -> Path:
    """A page with a store and nothing else; `first` is a script that runs before its own."""
    meta, columns = store_data(page)
    own = [packaged("rlobj.insight.page", f"assets/{name}.js") for name in STORE]
    scripts, data = [first, *own, "const store = openStore();"], {"store-meta": meta}
    path.write_bytes(render_page("store", "", scripts=scripts, data=data, packed=columns))
    return path


def awaited(browser: Browser, script: str) -> Any:
    """The value of a promise in a page."""
    sent = browser.send(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in sent, sent["exceptionDetails"]
    return sent["result"].get("value")


def recorded(rows: Any) -> PageRows:
    """A page of recorded tokens, without full tables."""
    return PageRows(recorded_rows(rows), [], [])


def random_record(n: int, seed: int) -> Any:
    """Rows of a record: some numbers are null, equal, or at the thresholds of rules."""
    generator = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        values = np.where(
            generator.random(n) < 0.4,
            generator.choice(NUMBERS, n),
            generator.lognormal(-1.0, 2.0, n) * generator.choice([1, 1, -1], n),
        )
        if field.name in ("prob", "old_prob", "inclusion_probability"):
            values = np.clip(np.abs(values), 0, 1)
        kept = generator.random(n) > 0.05
        if field.type == pyarrow.float32():
            columns[field.name] = pyarrow.array(values.astype(np.float32), mask=~kept)
        elif field.type == pyarrow.bool_():
            columns[field.name] = pyarrow.array(values > 0.5, mask=~kept)
        elif field.type == pyarrow.string():
            columns[field.name] = pyarrow.array(["a" if x else None for x in kept])
        else:
            columns[field.name] = generator.integers(0, 60, n)
    columns["response"] = np.arange(n) + 2**24  # single precision would round the odd ones
    columns["position"] = generator.integers(0, 40, n)
    table = pyarrow.table([pyarrow.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)
    return table.sort_by([(x, "ascending") for x in ("step", "update", "group", "response")])


def random_update(place: tuple[int, int], responses: int, seed: int) -> UpdateTable:
    """A whole update with ties, empty and undecided responses, two rewards and a controller."""
    generator = torch.Generator().manual_seed(seed)

    def draw(n: int, scale: float = 1.0) -> torch.Tensor:
        plain = torch.randn(n, generator=generator) * scale
        few = torch.tensor(NUMBERS)[torch.randint(len(NUMBERS), (n,), generator=generator)]
        return torch.where(torch.rand(n, generator=generator) < 0.5, plain, few)

    lengths = torch.randint(0, 9, (responses,), generator=generator)
    tokens = int(lengths.sum())
    rewards = torch.randint(0, 3, (responses, 2), generator=generator) / 2
    rewards[torch.rand(responses, generator=generator) < 0.1] = torch.nan
    table = TokenBatch(
        lengths=lengths,
        groups=torch.arange(responses) // 4 * 3,
        ids=torch.arange(responses) * 2 + 5,
        rewards=rewards,
        reward_names=("right", "form"),
        reward_weights=(1.0, 0.3),
        logprobs=-draw(tokens, 3).abs(),
        old_logprobs=-draw(tokens, 3).abs(),
        entropy=draw(tokens).abs(),
        old_entropy=draw(tokens).abs(),
        ref_logprobs=-draw(tokens, 3).abs(),
        sampler_logprobs=-draw(tokens, 3).abs(),
        collision=draw(tokens).abs().clamp(max=1),
        old_collision=draw(tokens).abs().clamp(max=1),
        advantages=draw(tokens),
        columns={"stage": draw(tokens).round()},
    )
    ids = [list(range(int(n))) for n in lengths]
    return UpdateTable(
        step=place[0],
        update=place[1],
        table=table,
        objective=Objective(columns=("stage",)),
        state={"W": {"value": 0.3 * place[1]}},
        weights=torch.zeros(tokens),
        sequences=[([1, 2], each) for each in ids],
        facts={},
    )


def whole(updates: Sequence[UpdateTable]) -> PageRows:
    """A page of whole updates."""
    rows = pyarrow.concat_tables([whole_rows(u, TEXTS) for u in updates], promote_options="default")
    order = [(name, "ascending") for name in ("step", "update", "group", "response", "position")]
    named = [{**described(u), "state": {"W": u.state["W"]["value"]}} for u in updates]
    return PageRows(rows.unify_dictionaries().sort_by(order), named, [])


class PageFrame(Frame):
    """A frame whose exp, log and powers are those of pages."""

    functions = FUNCTIONS_OF_PAGES


COLUMNS = ("stage", "logprobs", "old_logprobs", "entropy", "old_entropy", "ref_logprobs")


def frame_of(update: UpdateTable) -> PageFrame:
    """The evaluation of rules on a whole update."""
    names = (*COLUMNS, "sampler_logprobs", "collision", "old_collision", "advantages", "rewards")
    return PageFrame([update.table], dict.fromkeys(names, "test"), SingleProcess(), update.state)


TOKEN_COLUMNS = (
    *("prob", "old_prob", "ratio", "entropy", "advantage", "reward", "gradient_norm", "position"),
    *("logprob", "surprisal", "old_logprob", "old_surprisal", "sampler_gap"),
)
OF_RECORDS = tuple(name for name in OWN_COLUMNS if name != "schema_version")
OF_UPDATES = (
    *("old_entropy", "length", "covariance", "ref_gap", "collision", "old_collision", "stage", "W"),
)


class Rules:
    """Random rules as text.

    Args:
        seed: of the generator.
        columns: the columns that they read.
        populations: rules about populations, too.
    """

    def __init__(self, seed: int, columns: Sequence[str], populations: bool = False) -> None:
        self.random, self.columns, self.populations = random.Random(seed), columns, populations

    def space(self) -> str:
        return self.random.choice(["", "", " ", " ", "  ", "\t", "\n ", "\u00a0"])

    def words(self, *parts: str) -> str:
        return " ".join(f"{self.space()}{part}{self.space()}" for part in parts)

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def constant(self) -> str:
        picked = self.random.choice([*NUMBERS, 0.25, 3, 7, 16777217, 1e39, 1e-45, 5])
        texts = (f"{picked!r}", f"{picked:.3g}", f"{picked:e}", f"-{abs(picked)!r}", f"-({picked})")
        return self.pick(*texts, "1_0.5", "0x1F", ".5", "2.", "0b11", "1E2", "00")

    def number(self, depth: int) -> str:
        chance, smaller = self.random.random(), depth - 1
        if depth <= 0 or chance < 0.2:
            return self.pick(*self.columns) if self.random.random() < 0.75 else self.constant()
        one, other = f"({self.number(smaller)})", f"({self.number(smaller)})"
        if chance < 0.45:
            return self.words(one, self.pick(*"+-*/*-/", "**"), other)
        if chance < 0.5:
            return f"{one} ** {self.pick('-2', '-1', '0', '0.5', '1', '2', '3', '4', '-3', '1.5')}"
        if chance < 0.55:
            return self.words("-", one)
        if chance < 0.75:
            return f"{self.pick('abs', 'exp', 'log', 'sqrt', 'sign')}{one}"
        if chance < 0.82:
            return f"{self.pick('minimum', 'maximum')}({one}, {other})"
        if chance < 0.86:
            return f"clip({one}, {other}, {self.number(smaller)})"
        if self.populations and chance < 0.95:
            return self.of_population(depth)
        return f"when({self.rule(smaller)}, {one}, {other})"

    def rule(self, depth: int) -> str:
        chance, smaller = self.random.random(), depth - 1
        if depth <= 0 or chance < 0.4:
            sides = self.number(smaller), self.number(smaller)
            return self.words(sides[0], self.pick("<", "<=", ">", ">="), sides[1])
        if self.populations and chance < 0.65:
            return self.cut(depth)
        one = f"({self.rule(smaller)})"
        if chance < 0.8:
            return self.words(one, self.pick("&", "|", "and", "or"), f"({self.rule(smaller)})")
        return f"{self.pick('~', 'not ', '~ ', '')}{one}"

    def options(self, *options: str) -> str:
        return "".join(f", {each}" for each in options if self.random.random() < 0.3)

    def cut(self, depth: int) -> str:
        within = f"within={self.rule(depth - 1)}"
        if self.random.random() < 0.3:
            return f"({self.rule(depth - 1)}).{self.pick('any', 'all')}({self.by(within)})"
        fraction = self.pick("0.2", "0.8", "0.5", "0", "1", "0.07", "1e-3", "0.999", "0.3", "1.0")
        options = self.options(
            within,
            "round=" + self.pick("'ceil'", "'floor'", "'linear'"),
            f"at_least={self.pick('0', '1', '3', '40')}",
            f"none_below={self.pick('0', '1', '2', '5')}",
            "by=" + self.pick("'update'", "'group'", "'response'"),
        )
        chance, by = self.random.random(), "by=" + self.pick("'update'", "'group'", "'response'")
        if chance < 0.15:
            limit = self.pick("0.5", "0", "-1", "2.25", "0.04")
            return f"({self.ranked(depth)}).bottom_to_mean({limit}{self.options(within, by)})"
        ranked, of = f"({self.ranked(depth)})", ""
        if chance < 0.35:
            ranked, of = self.whole(), ", of='response'"
        return f"{ranked}.{self.pick('top', 'bottom')}({fraction}{options}{of})"

    def whole(self) -> str:
        """A number that responses are ranked by."""
        mean = f"({self.ranked(1)}).mean(by='response')"
        return self.pick(mean, *(x for x in self.columns if x in ("reward", "length")))

    def ranked(self, depth: int) -> str:
        column = self.pick(*(name for name in self.columns if name != "W"))
        return column if self.random.random() < 0.6 else f"({self.number(depth - 1)}) + {column}"

    def by(self, within: str) -> str:
        units = self.pick("'update'", "'group'", "'position'", "'response'")
        return f"by={units}{self.options(within)}"

    def of_population(self, depth: int) -> str:
        chance, within = self.random.random(), f"within={self.rule(depth - 1)}"
        if chance < 0.15:
            units, q = self.pick("'update'", "'group'", "'response'"), self.pick("0.5", "0", "1")
            if self.random.random() < 0.3:
                return f"{self.whole()}.quantile({q}, by={units}, of='response')"
            return f"({self.ranked(depth)}).quantile({q}, by={units}{self.options(within)})"
        if chance < 0.22:
            return f"({self.ranked(depth)}).rank({self.by(within)})"
        if chance < 0.34:
            sides = f"{self.pick('prefix', 'suffix')}_sum({self.pick('', '0.5', '1')})"
            return f"({self.number(depth - 1)}).{sides}"
        if chance < 0.5:
            return f"({self.rule(depth - 1)}).{self.pick('count', 'share')}({self.by(within)})"
        name = self.pick("mean", "sum", "min", "max")
        return f"({self.ranked(depth)}).{name}({self.by(within)})"


def damaged(text: str, generator: random.Random) -> str:
    """The text with some characters changed."""
    letters = "()<>=&|~+-*/.,:'\" 0123eE_andorxprob#[]{}!%@^;\\\u00e9\u2003"
    for _ in range(generator.choice([1, 1, 2, 4])):
        at, kind = generator.randrange(len(text) + 1), generator.random()
        if kind < 0.4:
            text = text[:at] + generator.choice(letters) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + 1 :]
        elif kind < 0.85:
            text = text[:at] + generator.choice(letters) + text[at + 1 :]
        else:
            other = generator.randrange(len(text) + 1)
            text = text[:at] + text[min(at, other) : max(at, other)] + text[at:]
    return text
