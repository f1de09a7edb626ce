"""What a run's value was: in its files, on the screen, on the page, and replayed with another λ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from browser import CHROMIUM, Browser
from replays import rows, update_of
from screens import printed
from tiny import tiny_config

import rlobj
from rlobj import ConfigError, Objective, TokenBatch, read_tables, write_inspection_page
from rlobj.base.yaml import dump_yaml
from rlobj.ranks import ProcessGroup
from rlobj.runs.metrics import read_metrics
from rlobj.runs.observed import ObservedUpdate
from rlobj.runs.reading import read_records
from rlobj.runs.recorder import Recorder
from rlobj.settings.run_config import RunConfig
from rlobj.training import run_training

LENGTHS = [12, 9, 1, 0, 7, 3, 11, 5]
GAE = {"kind": "gae", "lam": 0.95, "truncated": "bootstrap"}
OBJECTIVE = Objective(advantage=GAE, values=[{"kind": "clipped_squared"}], drop="critic_value < 0")
KNEW = 8
"""In response 0, the token after which V rises from 0 to 1."""


def table_of(**columns: Any) -> TokenBatch:
    """Conversations of which V and the last value are known; response 4 is undecided."""
    generator = torch.Generator().manual_seed(0)
    size = sum(LENGTHS)
    value = torch.randn(size, generator=generator)
    value[: LENGTHS[0]] = (torch.arange(LENGTHS[0]) > KNEW).float()
    turn = torch.cat([torch.arange(n) // 4 for n in LENGTHS])
    logprobs = -torch.rand(size, generator=generator)
    rewards = torch.tensor([1.0, 0, 1, 0, torch.nan, 0, 1, 1])
    lengths = torch.tensor(LENGTHS)
    last = torch.cat([torch.arange(n) // 4 == (n - 1) // 4 for n in LENGTHS])
    paid = torch.where(last, rewards.repeat_interleave(lengths), 0.0)
    critic = {"critic_value": value, "critic_bootstrap": torch.arange(8.0)[:, None] / 10}
    return TokenBatch(
        lengths=lengths,
        groups=torch.arange(8),
        ids=torch.arange(8) + 5,
        rewards=rewards,
        turn=turn,
        turn_reward=paid,
        logprobs=logprobs,
        old_logprobs=logprobs,
        entropy=-logprobs,
        collision=logprobs.exp().square(),
        **{"columns": critic, **columns},
    )


def observed_of(objective: Objective = OBJECTIVE, **columns: Any) -> ObservedUpdate:
    [table] = objective.with_advantages([table_of(**columns)])
    plan = objective.plan([table], {"update": 0}, clauses=True)
    sequences = [([4, 5], [4 + i % 16 for i in range(n)]) for n in LENGTHS]
    scores = (table.logprobs, table.entropy, table.collision, table.logprobs)
    return ObservedUpdate(objective, {"update": 0}, table, plan, sequences, *scores)


def write(folder: Path, observed: ObservedUpdate) -> None:
    """The record and the full table of a run of one step, and its settings."""
    config = RunConfig(output={"records": 1000, "tables_every": 1}, training={"steps": 1})
    recorder = Recorder(folder, config, build_tokenizer(), ProcessGroup())
    recorder.update(1, 0, observed)
    recorder.end_step(1)
    objective = observed.objective.model_dump(mode="json", by_alias=True)
    scores = {name: {"value": True} for name in [observed.objective.critic] if name}
    (folder / "config.resolved.yaml").write_text(
        dump_yaml({"objective": objective, "scores": scores})
    )
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens/step": 41}) + "\n")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step, with a record and a full table."""
    folder = tmp_path_factory.mktemp("run")
    write(folder, observed_of())
    return folder


def test_tables_keep_v_its_bootstraps_and_returns_to_the_bit(run: Path) -> None:
    [update] = read_tables(run)
    expected = observed_of().table
    assert update.table.columns.keys() == {"critic_value", "critic_bootstrap", "critic_return"}
    for name, column in expected.columns.items():
        assert torch.equal(update.table.columns[name], column), name
    assert update.table.response_columns == {"critic_bootstrap"}
    [again] = OBJECTIVE.with_advantages([update.table.replace(advantages=None)])
    assert torch.equal(again.advantages, update.table.advantages)
    assert torch.equal(again.columns["critic_return"], expected.columns["critic_return"])


def test_a_record_has_v_of_touched_tokens(run: Path) -> None:
    found = read_records(run, ["response", "position", "value", "advantage"]).to_pylist()
    table = observed_of().table
    starts = dict(zip(table.ids.tolist(), table.starts.tolist(), strict=True))
    assert len(found) == int((table.decided & (table.columns["critic_value"] < 0)).sum())
    for row in found:
        place = starts[row["response"]] + row["position"]
        assert row["value"] == table.columns["critic_value"][place].item()
        assert row["advantage"] == table.advantages[place].float().item()


def test_inspect_shows_v_and_selects_by_it(run: Path, tmp_path: Path) -> None:
    text = printed("inspect", str(run), columns=100)
    assert " V " in next(line for line in text.splitlines() if "entropy" in line)
    table = observed_of().table
    low = int((table.decided & (table.columns["critic_value"] < 0.2)).sum())
    for name in ("critic_value", "value"):
        found = rlobj.inspect(run, where=f"{name} < 0.2", examples=None)
        assert found.count == low
        assert max(row["value"] for row in found.tokens.to_pylist()) < 0.2
    with pytest.raises(ConfigError, match="Did you mean 'critic_value'"):
        rlobj.inspect(run, where="critic_valu < 0.2")
    write(tmp_path, observed_of(Objective(drop="prob < 0.5")))
    without = printed("inspect", str(tmp_path), columns=100)
    assert " V " not in without
    assert "advantage" in without


def test_other_lambdas_are_replayed_from_the_recorded_values(run: Path) -> None:
    changed = Objective(
        **{**OBJECTIVE.model_dump(by_alias=True), "advantage": {**GAE, "lam": 0.5, "gamma": 0.9}}
    )
    settings = {"objective.advantage.lam": 0.5, "objective.advantage.gamma": 0.9}
    found = rlobj.replay(run, {"same": OBJECTIVE, "mine": changed}, settings=settings)
    assert found.reproduced == found.population
    named = rows(found.objectives)
    assert {**named["same"], "name": "recorded"} == named["recorded"]
    again = named["advantage.lam=0.5, advantage.gamma=0.9"]
    assert {**again, "name": "mine"} == named["mine"]
    assert again["gradient"] != named["recorded"]["gradient"]
    table = changed.with_advantages([table_of()])[0]
    facts = changed.plan([table]).metrics
    assert again["value_explained_variance"] == facts["value/explained_variance"]
    assert again["value_mean"] == named["recorded"]["value_mean"] == facts["value/mean"]
    old = table.columns["critic_value"]
    moved = table.with_columns({"critic_new_value": old})
    assert again["value_loss"] == changed.value_loss(moved, changed.plan([moved])).loss.item()
    alone = rlobj.replay([update_of(Objective(), table_of(columns={}))]).objectives.to_pylist()
    assert alone[0]["value_loss"] is None


def test_a_replay_of_a_run_gives_its_advantages_and_metrics_to_the_bit(policy: Path, tmp_path):
    paid = tmp_path / "paid.py"
    paid.write_text("def even(response, answer, **columns):\n    return float(len(response) % 2)\n")
    cut = {"kind": "gae", "lam": "maximum(0, 1 - 1 / length)", "truncated": "bootstrap"}
    config = tiny_config(
        policy,
        "ppo",
        objective={"advantage": {**cut, "lam_value": 1.0}},
        scores={"critic": {"learning_rate": 1e-3}},
        rewards={"kind": "custom", "target": f"{paid}:even"},
        sampling={"max_tokens": 6, "prompts_per_step": 16},
        training={"steps": 2},
        output={"tables_every": 1},
    )
    run_training(config, tmp_path / "run")
    lines = {line["step"]: line for line in read_metrics(tmp_path / "run")}
    updates = [*read_tables(tmp_path / "run")]
    assert [update.step for update in updates] == [1, 2]
    for update in updates:
        table = update.table
        assert table.columns["critic_bootstrap"].ne(0).any() == (update.step == 2)
        [again] = update.objective.with_advantages([table.replace(advantages=None)])
        assert torch.equal(again.advantages, table.advantages)
        assert torch.equal(again.columns["critic_return"], table.columns["critic_return"])
        found = rlobj.replay(tmp_path / "run", {"again": update.objective}, step=update.step)
        for row in found.objectives.to_pylist():
            for name in ("explained_variance", "loss", "mean"):
                assert row[f"value_{name}"] == lines[update.step][f"value/{name}"], (name, row)


def test_what_no_value_or_bootstrap_was_recorded_for_is_refused_with_what_to_type(run: Path):
    gae = Objective(advantage="gae")
    grpo = update_of(Objective(), table_of(columns={}))
    why = rlobj.replay([grpo], {"gae": gae, "dapo-loss": "dapo-loss"}).refused["gae"]
    assert "critic_value; use objective.advantage={kind: gae, value: critic}" in str(why)
    plain = Objective(advantage={**GAE, "truncated": "zero"})
    value = {"critic_value": table_of().columns["critic_value"]}
    cut = Objective(advantage=GAE)
    refused = rlobj.replay([update_of(plain, table_of(columns=value))], {"cut": cut, "gae": gae})
    assert "use objective.advantage.truncated=bootstrap" in str(refused.refused["cut"])
    assert "gae" not in refused.refused
    with pytest.raises(ConfigError, match=r"training.steps is no setting of an objective"):
        rlobj.replay(run, settings={"training.steps": 3})
    with pytest.raises(ConfigError, match=r"objective.advantage.lam .*expected a number from 0 to"):
        rlobj.replay(run, settings={"objective.advantage.lam": 3})
    with pytest.raises(ConfigError, match=r"of a run's folder"):
        rlobj.replay([grpo], settings={"objective.drop": "prob < 0.1"})
    screen = printed("replay", str(run), "--set", "objective.advantage.lam=0.5", columns=100)
    assert "V explains" in screen
    assert "advantage.lam=0.5" in screen


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_draws_v_and_says_where_it_rose(run, tmp_path, browser: Browser, width, scheme):
    page = write_inspection_page(run, tmp_path / "page.html")
    browser.resize(width, 844, scheme)
    browser.open(page)
    browser.wait("document.querySelector('#group-responses .piece')")
    browser.run("go({step: '1', update: '1', group: '0', color: 'critic_value'})")
    browser.wait("document.querySelector('.curve')")
    points = browser.run("document.querySelector('.curve .value').getAttribute('points')")
    assert len(points.split()) == LENGTHS[0]
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights[0] == heights[KNEW] > heights[KNEW + 1] == heights[-1]
    note = browser.run("document.querySelector('.curve .notes').textContent")
    assert note.startswith("V 0 → 1 · largest rise ")
    assert "fall" not in note
    browser.run("document.querySelector('.curve .piece').click()")
    browser.wait(f"state.at === store.responses[0].start + {KNEW}", 20)
    clientX = "const clientX = document.querySelector('.curve svg').getBoundingClientRect().right"
    click = "document.querySelector('.curve svg').dispatchEvent(new MouseEvent('click', {clientX}))"
    browser.run(f"{{ {clientX}; {click} }}")
    browser.wait("state.at === store.responses[0].end - 1", 20)
    browser.run("go({group: '2', at: -1})")  # a response of one token
    browser.wait("document.querySelector('article h3').textContent === 'response 7'", 20)
    assert browser.run("document.querySelectorAll('.curve polyline, .curve .piece').length") == 2
    browser.run("byId('more').open = true")
    browser.run("go({'range:critic_value': '..0.2'})")
    browser.wait("chosen.narrowed")
    table = observed_of().table
    low = int((table.decided & (table.columns["critic_value"] <= 0.2)).sum())
    browser.wait(f"byId('found').textContent.startsWith('{low} of ')")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.complaints() == []
