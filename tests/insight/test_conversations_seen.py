"""A run whose responses are conversations: its tables, inspect, its page, replay and diagnosis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.embedded_policy import build_policy, build_tokenizer
from pyarrow import parquet

import rlobj
from rlobj.base.interleaved import own, whole
from rlobj.insight.page.rows import read_rows
from rlobj.insight.run_report.figures import figures
from rlobj.insight.run_report.runs import read_runs
from rlobj.models.embedded import SCRATCHPAD_ALPHABET
from rlobj.runs.reading import read_records
from rlobj.runs.tables import read_tables

ALPHABET = SCRATCHPAD_ALPHABET + "?"
TOKENIZER = build_tokenizer(ALPHABET)
STEPS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy beside a calculator: its calls are malformed, and answered with `error;`."""
    settings: dict[str, Any] = {
        **{"training.steps": STEPS, "sampling.prompts_per_step": 6, "sampling.group_size": 3},
        **{"sampling.max_tokens": 40, "sampling.stop": [";"], "evaluation.every": 0},
        **{"model.chat_template": False, "data.template": "{prompt}", "output.samples_every": 1},
        **{"output.tables_every": STEPS, "objective.drop": "(turn > 0) & (turn_position < 1)"},
    }
    rows = [{"prompt": f"{a}*7=", "answer": str(a * 7)} for a in range(10, 40)]
    given = {"model": build_policy(0, ALPHABET), "tokenizer": TOKENIZER, "data": rows}
    out = tmp_path_factory.mktemp("seen") / "run"
    return rlobj.train("grpo", **given, environment="calculator", out=out, settings=settings).path


def conversations(run: Path, step: int) -> dict[int, tuple[str, list[dict[str, Any]]]]:
    """The prompt and the turns of each response, by its id, in the sample table."""
    rows = parquet.read_table(run / f"samples/step-{step:06d}.parquet").to_pylist()
    assert all(row["response"] == json.loads(row["conversation"])[-1]["text"] for row in rows)
    return {row["id"]: (row["prompt"], json.loads(row["conversation"])) for row in rows}


def test_tables_hold_whole_conversations_and_the_record_their_turns(run: Path) -> None:
    [update] = read_tables(run, [STEPS])
    table, said = update.table, conversations(run, STEPS)
    assert table.turn is not None
    assert table.ids is not None
    several = 0
    turns = {}
    for i, (prompt, tokens) in enumerate(update.sequences):
        asked, spoken = said[int(table.ids[i])]
        assert TOKENIZER.decode([*prompt]) == asked
        parts = [part for each in spoken for part in (each["text"], each["observation"])]
        assert TOKENIZER.decode(whole(tokens), skip_special_tokens=True) == "".join(parts)
        several += len(spoken) > 1
        if (mark := own(tokens)) is not None:
            read = TOKENIZER.decode(whole(tokens)[~mark])
            assert read == "error;" * (len(spoken) - 1)
        mine = table.turn[table.responses == i].tolist()
        assert set(mine) <= set(range(len(spoken)))
        turns |= {(int(table.ids[i]), at): turn for at, turn in enumerate(mine)}
    assert several > 3
    record = read_records(run, ["response", "position", "turn"], steps=[STEPS]).to_pylist()
    assert any(row["turn"] for row in record)
    assert all(turns[row["response"], row["position"]] == row["turn"] for row in record)


def test_inspect_filters_by_turn_and_shows_who_said_what(run: Path) -> None:
    second = rlobj.inspect(run, where="(turn > 0) & (turn < 2)", step=STEPS)
    assert set(second.tokens["turn"].to_pylist()) == {1}
    [update] = read_tables(run, [STEPS])
    dropped = rlobj.inspect(run, dropped=True, step=STEPS)
    assert update.table.turn is not None
    firsts = (update.table.turn.diff() > 0).sum()
    assert dropped.count == int(firsts) > 3
    placed = [row["before"].rpartition("│")[0] for row in dropped.tokens.to_pylist()]
    assert all(before.endswith("error;") for before in placed)  # what the policy read


def test_a_rule_by_turn_is_replayed_on_every_turn(run: Path) -> None:
    [update] = read_tables(run, [STEPS])
    rule = "prob.top(0.0001, by='turn')"  # one token of each turn
    found = rlobj.replay(run, [rule])
    assert found.reproduced == found.population
    table = update.table
    assert table.ids is not None
    assert table.turn is not None
    turns = {*zip(table.spread(table.ids).tolist(), table.turn.tolist(), strict=True)}
    assert found.objectives.to_pylist()[1]["touched"] == len(turns)


def test_the_report_shows_the_turns_of_a_random_policy(run: Path) -> None:
    drawn = {plot.name: figure for plot, figure in figures(read_runs([run]))}
    [turns] = drawn["turns"].lines
    assert all(each is not None and each > 1 for each in turns["y"])


def test_the_page_has_what_was_read_before_the_token_that_follows(run: Path) -> None:
    rows = read_rows(run).rows.to_pylist()
    follows = [row for row in rows if row["read"]]
    assert {row["read"] for row in follows} == {"error;"}
    assert {row["turn"] for row in follows} >= {1}
