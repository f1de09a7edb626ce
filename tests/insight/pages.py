"""Pages with rows that tests make up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from browser import Browser

from rlobj.base.files import packaged
from rlobj.insight.page.rows import PageRows, encoded
from rlobj.insight.page.store import store_data
from rlobj.objectives.objective import Objective
from rlobj.objectives.tokens import TokenBatch
from rlobj.reporting.pages import render_page
from rlobj.runs.columns import SCHEMA
from rlobj.runs.tables import UpdateTable
from rlobj.runs.texts import TokenTexts

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
    own = packaged("rlobj.insight.page", "assets/store.js")
    scripts, data = [first, own, "const store = openStore();"], {"store-meta": meta}
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
    in_phase = pyarrow.array(np.ones(len(rows), bool))
    return PageRows(encoded(rows.append_column("in_phase", in_phase)), [], [])


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
        if field.name in ("prob", "old_prob"):
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
        objective=Objective(columns={"stage": "token"}),
        state={"W": {"value": 0.3 * place[1]}},
        weights=torch.zeros(tokens),
        codes=torch.zeros(tokens, dtype=torch.int16) - 1,
        causes=[],
        sequences=[([1, 2], each) for each in ids],
        facts={},
    )
