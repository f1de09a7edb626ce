"""Rules of a page select the same tokens as rlobj does, to the bit, and refuse the same texts."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from pages import (
    OF_RECORDS,
    OF_UPDATES,
    TOKEN_COLUMNS,
    PageFrame,
    Rules,
    awaited,
    damaged,
    frame_of,
    random_record,
    random_update,
    recorded,
    whole,
    write_page,
)
from tiny import tiny_config

from rlobj.base.errors import BatchError, ConfigError
from rlobj.insight.filtering import matching, read_filter
from rlobj.insight.page.writing import PageRows, read_rows
from rlobj.objectives.explanation import rule_columns
from rlobj.objectives.rules import CustomRule, Rule, nodes, parse
from rlobj.objectives.rules.columns import declared
from rlobj.objectives.statistics import SingleProcess
from rlobj.records.tables import read_tables
from rlobj.training import run_training

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")

EVALUATE = """(async (texts) => {
  await store.load(store.names);
  return texts.map((text) => {
    try {
      const held = rules.select(rules.parse(text), store);
      const found = [];
      for (let i = 0; i < held.length; i++) if (held[i]) found.push(i);
      return found;
    } catch (error) {
      if (!(error instanceof RuleError)) throw new Error(text + ": " + error.stack);
      return {message: error.message, at: error.at};
    }
  });
})(%s)"""


def evaluate(browser: Browser, path: Path, page: PageRows, texts: list[str]) -> list[Any]:
    browser.open(write_page(path, page))
    return awaited(browser, EVALUATE % json.dumps(texts))


def test_random_rules_select_the_rows_of_a_record_that_python_selects(browser, tmp_path):
    generate = Rules(1, (*TOKEN_COLUMNS, *OF_RECORDS))
    texts = [generate.rule(depth) for depth in (0, 1, 2, 3, 4) for _ in range(300)]
    table = random_record(300, 0)
    found = evaluate(browser, tmp_path / "page.html", recorded(table), texts)
    selected = 0
    for text, rows in zip(texts, found, strict=True):
        expected = np.flatnonzero(matching(read_filter(text), table).to_numpy(False)).tolist()
        assert rows == expected, text
        selected += 0 < len(expected) < len(table)
    assert selected > len(texts) / 3  # most rules are neither empty nor everything


def test_random_rules_over_populations_select_the_tokens_that_an_objective_selects(
    browser: Browser, tmp_path: Path
) -> None:
    updates = [random_update((2, 1), 24, 0), random_update((2, 2), 9, 1)]
    names = (*TOKEN_COLUMNS, *OF_UPDATES, "reward('form')")
    generate = Rules(2, names, populations=True)
    texts = [generate.rule(depth) for depth in (1, 2, 3) for _ in range(350)]
    page = whole(updates)
    found = evaluate(browser, tmp_path / "page.html", page, texts)
    selected = 0
    for text, rows in zip(texts, found, strict=True):
        try:
            with declared(("stage",)):
                rule = parse(text)
        except ConfigError:  # such as the mean of a constant
            assert isinstance(rows, dict), text
            continue
        masks = []
        for update in updates:
            frame = frame_of(update)
            masks.append(frame.rule(rule)[frame.decided])
        expected = torch.cat(masks).nonzero()[:, 0].tolist()
        assert rows == expected, text
        selected += 0 < len(expected) < len(torch.cat(masks))
    assert selected > len(texts) / 3


def test_rules_over_populations_select_in_a_real_run_what_an_objective_selects_or_say_where_not(
    browser: Browser, policy: Path, tmp_path: Path
) -> None:
    training = {"steps": 3, "updates_per_step": 2, "learning_rate": 1e-3}
    run_training(tiny_config(policy, "justrl", training=training, output=EVERY_OTHER), tmp_path)
    page = read_rows(tmp_path)
    browser.open(write_page(tmp_path / "page.html", page))
    script = """store.load(store.names).then(() => %s.map((text) => {
      const rule = rules.parse(text), held = rules.select(rule, store);
      const answers = store.answers(rule);
      const found = {};
      store.updates.forEach(({step, update, start, end}, i) => {
        if (answers[i]) found[`${step} ${update}`] = [...held.subarray(start, end)];
      });
      return found;
    }))"""
    found = awaited(browser, script % json.dumps(COMPARING))
    updates, refused, selected = list(read_tables(tmp_path)), 0, 0
    assert 0 < len(updates) < browser.run("store.updates.length")  # others have a record only
    for text, answered in zip(COMPARING, found, strict=True):
        expected = {}
        for each in updates:
            rule = parse(text)
            assert isinstance(rule, Rule)
            reads = rule_columns([("test", rule)], None)
            try:
                frame = PageFrame([each.table], reads, SingleProcess(), each.state)
            except BatchError:  # it did not score all tokens
                refused += 1
                continue
            held = frame.rule(rule)[frame.decided]
            expected[f"{each.step} {each.update}"] = held.int().tolist()
            selected += int(held.sum()) > 0
        assert answered == expected, text
    assert selected > len(COMPARING)
    assert 0 < refused < len(COMPARING) * len(updates)


COMPARING = (
    "entropy > entropy.mean()",
    "entropy < entropy.quantile(0.8)",
    "(advantage > 0) & (prob < 0.02) & entropy.bottom(0.8)",
    "entropy > entropy.mean(by='response')",
    "reward.mean() >= 0",
    "(advantage > advantage.mean()) | (old_entropy > old_entropy.max(by='group') / 2)",
    "covariance > covariance.mean()",
    "logprob.suffix_sum(0.9) < logprob.suffix_sum(0.9).min(by='group') + 5",
    "(prob < 0.05).share(by='response') > (prob < 0.05).share()",
)
EVERY_OTHER = {"tables_every": 2}


def accepted(text: str, names: set[str]) -> bool:
    """Whether a page must read a text: Python does, and the page has what it names."""
    try:
        with declared(OF_RECORDS), warnings.catch_warnings(action="ignore"):
            rule = parse(text)
    except ConfigError:
        return False
    refused = (nodes.Controlled, nodes.NamedReward, nodes.Sample, CustomRule)
    parts = rule.walk()
    known = all(part.name in names for part in parts if isinstance(part, nodes.Column))
    return known and not any(isinstance(part, refused) for part in parts)


def test_damaged_texts_are_read_or_refused_as_python_does(browser: Browser, tmp_path: Path) -> None:
    generate = Rules(3, (*TOKEN_COLUMNS, *OF_RECORDS), populations=True)
    changes = random.Random(4)
    texts = [damaged(generate.rule(i % 3), changes) for i in range(2000)]
    table = random_record(20, 0)
    page = recorded(table)
    browser.open(write_page(tmp_path / "page.html", page))
    script = """%s.map((text) => {
      try { rules.parse(text); return null; }
      catch (error) {
        if (!(error instanceof RuleError)) throw new Error(text + ": " + error.stack);
        return error.message;
      }
    })"""
    found = browser.run(script % json.dumps(texts))
    names = set(browser.run("store.names"))
    read = 0
    for text, message in zip(texts, found, strict=True):
        assert (message is None) == accepted(text, names), (text, message)
        read += message is None
    assert len(texts) / 20 < read < len(texts) / 2
