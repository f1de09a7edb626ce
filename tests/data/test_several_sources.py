"""Training on several sources by weight."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from data_files import write_lines
from hypothesis import given
from hypothesis import strategies as st

from rlobj.base.errors import ConfigError, DataError
from rlobj.data import (
    MATH_TEMPLATE,
    DataConfig,
    Problem,
    ProblemStream,
    format_prompt,
    load_problems,
)
from rlobj.data.sources import source_names, template_of


def write(path: Path, count: int, **columns: object) -> str:
    """A file whose questions are numbered, with these columns beside them."""
    rows = [{"problem": f"{path.stem} {i}", "answer": str(i), **columns} for i in range(count)]
    return write_lines(path, rows)


def mixed(sizes: dict[str, int], weights: dict[str, float], seed: int = 0) -> ProblemStream:
    problems = [Problem(f"{s}/{i}", "?", "1", source=s) for s, n in sizes.items() for i in range(n)]
    return ProblemStream(problems, weights, seed=seed)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.lists(st.integers(1, 7), max_size=9))
def test_each_source_has_its_share_at_any_time(weights, draws):
    shares = {str(i): Fraction(w, sum(weights)) for i, w in enumerate(weights)}
    stream = mixed(dict.fromkeys(shares, 3), {str(i): w / 3 for i, w in enumerate(weights)})
    order = [each.source for count in draws for each in stream.next(count)]
    for end in range(len(order) + 1):
        counts = Counter(order[:end])
        assert all(abs(counts[name] - end * share) < 1 for name, share in shares.items())


def test_each_source_has_epochs_of_its_own():
    """The problems of a source come in the order that they have alone."""
    stream = mixed({"a": 3, "b": 8}, {"a": 2, "b": 1}, seed=5)
    drawn = stream.next(18)
    for name in "ab":
        own = [each for each in drawn if each.source == name]
        part = [each for each in stream.first(11) if each.source == name]
        alone = ProblemStream(part, seed=5)
        assert own == alone.next(len(own))
    assert stream.epochs(stream.state()) == {"a": 4.0, "b": 6 / 8}
    assert "".join(each.source for each in stream.first(8)) == "abababbb"


@given(st.integers(0, 40), st.integers(1, 20))
def test_a_restored_stream_continues_exactly(before, after):
    sizes, weights = {"a": 4, "b": 3, "c": 7}, {"a": 1.0, "b": 0.3, "c": 2.5}
    stream, other = mixed(sizes, weights), mixed(sizes, weights, seed=9)
    stream.next(before)
    other.restore(json.loads(json.dumps(stream.state())))
    assert other.next(after) == stream.next(after)


def test_sources_have_settings_of_their_own(tmp_path):
    a = write(tmp_path / "a.jsonl", 5)
    (tmp_path / "b.csv").write_text("ask,key\na 0,7\nb 1,8\n")
    b = {"source": str(tmp_path / "b.csv"), "columns": {"prompt": "ask", "answer": "key"}}
    config = DataConfig.model_validate(
        {"source": [{"source": a, "limit": 2, "weight": 3}, {**b, "template": "Q {prompt}"}]}
    )
    assert config.weights == {"a": 3, "b": 1}
    problems = load_problems(config, "train")
    assert [each.answer for each in problems] == ["0", "1", "7", "8"]
    assert len({each.id for each in problems}) == 4  # the question "a 0" is in both
    assert all(each.id.startswith(f"{each.source}/") for each in problems)
    prompts = [format_prompt(config.template, each) for each in problems]
    assert prompts[1:3] == [MATH_TEMPLATE.replace("{prompt}", "a 1"), "Q a 0"]


def test_a_named_source_keeps_its_template_beside_others(tmp_path):
    sources = ["dapo-math-17k", "gsm8k", "owner/Name.v2", {"source": "addition", "label": "sums"}]
    config = DataConfig.model_validate({"source": sources})
    assert [*config.weights] == ["dapo-math-17k", "gsm8k", "Name.v2", "sums"]
    assert [template_of(name, config.template) for name in source_names(config.source)] == [
        *("{prompt}", MATH_TEMPLATE, MATH_TEMPLATE, "{prompt}")
    ]
    assert DataConfig.model_validate(config.model_dump(mode="json")) == config


def test_held_out_problems_are_a_share_of_each_source(tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", 60) for name in "ab"]
    config = DataConfig.model_validate({"source": files, "test_fraction": 0.3})
    train, test = load_problems(config, "train"), load_problems(config, "test")
    assert not {each.prompt for each in train} & {each.prompt for each in test}
    assert len(train) + len(test) == 120
    assert {each.source for each in test[:12]} == {"a", "b"}
    with pytest.raises(DataError, match=r"data\.test_fraction"):
        load_problems(DataConfig.model_validate({"source": files}), "test")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "source: expected at least one source"),
        (["a.jsonl", "x/a.csv"], "source.1.label: a is taken"),
        ([{"source": "a", "weight": 0}], "source.0.weight: .*greater than 0"),
        ([{"source": "a", "wieght": 2}], "source.0.wieght: unknown key.*weight"),
        (["a", 5], "source.1.source: .*string, got 5"),
        ([{"source": "a", "template": "?"}], "source.0.template: .*does not contain {prompt}"),
    ],
)
def test_wrong_lists_of_sources_are_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        DataConfig(source=source)


def test_a_source_that_lacks_a_column_is_named(tmp_path):
    a = write(tmp_path / "a.jsonl", 2, hint="h")
    (tmp_path / "b.jsonl").write_text('{"problem": "1+1", "solved": "2"}')
    config = DataConfig.model_validate({"source": [a, str(tmp_path / "b.jsonl")]})
    with pytest.raises(DataError, match=r"the source b: .*found no answer"):
        load_problems(config, "train")
    b = write(tmp_path / "b.jsonl", 2)
    config = DataConfig.model_validate({"source": [a, b], "template": "{prompt} {hint}"})
    with pytest.raises(ConfigError, match=r"'\{hint\}', but problem b/\w+ has no such column"):
        load_problems(config, "train")
