"""Data: published layouts are read alike, splits are stable, errors say what to type."""

from __future__ import annotations

import json
import logging
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy
import pyarrow
import pytest
from data_files import numbered, write_lines, write_parquet
from pyarrow import parquet

from rlobj.base.errors import DataError
from rlobj.data import Columns, DataConfig, Problem, load_problems
from rlobj.data.files import split_files
from rlobj.data.layouts import answer_text
from rlobj.data.problems import fingerprint


def load(source, split="train", **fields):
    return load_problems(DataConfig(source=str(source), **fields), split)


# ---- layouts ----------------------------------------------------------------------------------


def test_math500_uses_the_answer_and_not_the_solution(tmp_path):
    row = {
        "problem": "Convert $(0,3)$.",
        "solution": "We have \\boxed{wrong}.",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 2,
        "unique_id": "test/precalculus/807.json",
    }
    (problem,) = load(write_lines(tmp_path / "math.jsonl", [row]))
    assert (problem.id, problem.answer) == (row["unique_id"], row["answer"])
    assert problem.extra == {"solution": row["solution"], "subject": "Precalculus", "level": 2}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(numbered(3)),
        "\n".join(map(json.dumps, numbered(3))),
    ],
    ids=["a list", "lines"],
)
def test_a_json_file_has_a_list_or_lines(tmp_path, text):
    path = tmp_path / "train.json"
    path.write_text(text, encoding="utf-8")
    assert [problem.answer for problem in load(path)] == ["0", "1", "2"]


def test_a_puzzle_has_its_quiz_and_the_text_of_its_solution(tmp_path):
    """The prompt beside it has the markup of a chat, and the gold of verl is an object."""
    said = [{"role": "user", "content": "<|im_start|>user\nWho is a knight?<think>"}]
    row = {"quiz": "Who is a knight?", "solution": [True], "prompt": said}
    row |= {"solution_text_format": "(1) Zoey", "reward_model": {"ground_truth": {"x": "()"}}}
    (problem,) = load(write_parquet(tmp_path / "train.parquet", [row]))
    assert (problem.prompt, problem.answer) == ("Who is a knight?", "(1) Zoey")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("  x=5 ", "x=5"), (27, "27"), (27.0, "27"), (0.5, "0.5"), (True, "True"), (-0.0, "0")),
        *((["$1,2$"], "$1,2$"), (("x",), "x"), ([[3.0]], "3"), ("52_8", "52_8")),
        *((empty, "") for empty in (None, float("nan"), [None], (), Decimal("NaN"))),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("first \\boxed{1} then \\boxed{\\{2\\}} end", "\\{2\\}"),
        ("\\boxed{1} and an open \\boxed{2", "1"),
        ("an open \\boxed{2", "an open \\boxed{2"),
        ("1 #### 3 #### 4", "4"),
        *((Decimal(x), y) for x, y in {"3.00": "3", "2.50": "2.5", "-1E+3": "-1000"}.items()),
        (Decimal("1234567890123456789012345678901234.50"), "1234567890123456789012345678901234.5"),
        *((Fraction(1, 3), "1/3"), (1e22, "10000000000000000000000"), (2**63, str(2**63))),
        *((numpy.int64(3), "3"), (numpy.float64(0.1), "0.1"), (numpy.float32(0.1), "0.1")),
    ],
    ids=repr,
)
def test_the_text_of_a_gold_keeps_its_value(value, expected):
    assert answer_text(value, "row 1") == expected


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        *((text, text.replace(",", "")) for text in ("1,080", "-12,345.67", "1,234,567", "1,080.")),
        *((text, text.replace(",", "")) for text in ("$1,234", "\\$1,234.50", "-$1,234", "1,234%")),
        *((text, text) for text in ("(1, 2)", "1,2,3", "12,34", "1,23,456", "0,123", "1,2345")),
        *((text, text) for text in ("1.234,56", "[1,234]", "1,234, 5", "x = 1,234", "1,234 cm")),
        *((text, text) for text in ("1080", "1{,}234", "")),
    ],
)
def test_commas_of_a_gold_stay_unless_they_group_the_digits_of_one_number(gold, expected):
    assert answer_text(f"It is 1,000 + 80.\n#### {gold}", "row 1") == expected
    assert answer_text(gold, "row 1") == gold  # text alone stays as it is


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("inf"), "row 1 has the answer inf; expected a finite number"),
        (Decimal("-Infinity"), "the answer -Infinity; expected a finite number"),
        (date(2024, 1, 5), r"the type date \(2024-01-05\); expected text or a number"),
        (numpy.array([3, 4]), "the type ndarray"),
        ({1: 2}, "the type dict"),
        (b"3", "the type bytes"),
        ((1, 2), "the type tuple"),
        (1j, "the type complex"),
    ],
    ids=repr,
)
def test_a_gold_whose_text_would_be_another_answer_is_refused(value, message):
    with pytest.raises(DataError, match=message):
        answer_text(value, "row 1")


def test_parquet_golds_of_each_type_are_kept(tmp_path):
    """A float32 is the number that was written."""
    struct = pyarrow.struct([("answer", pyarrow.list_(pyarrow.float32())), ("x", pyarrow.int8())])
    golds = {
        "0.1": pyarrow.array([0.1], pyarrow.float32()),
        "0.2": pyarrow.array([{"answer": [0.2], "x": 1}], struct),
        "3.5": pyarrow.array([Decimal("3.50")], pyarrow.decimal128(10, 2)),
        str(2**64 - 1): pyarrow.array([2**64 - 1], pyarrow.uint64()),
        "x": pyarrow.array([["x"]], pyarrow.list_(pyarrow.string())),
        "True": pyarrow.array([True]),
        "y": pyarrow.array(["y"]).dictionary_encode(),
    }
    for expected, column in golds.items():
        path = tmp_path / f"{expected}.parquet"
        table = pyarrow.table({"problem": ["Q?"], "gold": column, "id": ["a"]})
        parquet.write_table(table, path)
        name = "gold.answer" if column.type == struct else "gold"
        [problem] = load(path, columns=Columns(answer=name))
        assert (problem.prompt, problem.id, problem.answer) == ("Q?", "a", expected)


def test_system_and_user_messages_are_joined_and_assistant_messages_refused(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "2+2?"}
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": [system, user], "answer": "4"}])
    assert load(path)[0].prompt == "Be brief.\n\n2+2?"
    said = {"role": "assistant", "content": "4"}
    path = write_lines(tmp_path / "b.jsonl", [{"prompt": [user, said], "answer": "4"}])
    with pytest.raises(DataError, match=r"b\.jsonl:1, column 'prompt'.*assistant"):
        load(path)


# ---- duplicates, ids, missing answers ------------------------------------------------------------


def test_ids_are_unique_and_independent_of_the_row_order(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    write_lines(folder / "a.jsonl", [{"id": 0, "problem": "A?", "answer": "1"}])
    write_lines(folder / "b.jsonl", [{"id": 0, "problem": "B?", "answer": "2"}])
    assert len({problem.id for problem in load(folder)}) == 2
    rows = numbered(10)
    forward = load(write_lines(tmp_path / "f.jsonl", rows))
    backward = load(write_lines(tmp_path / "b.jsonl", rows[::-1]))
    assert {p.id: p.prompt for p in forward} == {p.id: p.prompt for p in backward}
    assert len({problem.id for problem in forward}) == 10


def test_rows_without_a_question_or_an_answer_are_left_out_with_a_warning(tmp_path, caplog):
    rows = [*numbered(3), {"problem": "Open?", "answer": None}, {"problem": "Open too?"}]
    empty = [{"problem": text, "answer": "1"} for text in ("", " ", None, [])]
    problems = load(write_lines(tmp_path / "a.jsonl", [*rows, *empty]))
    assert len(problems) == 3
    assert "2 rows without an answer were left out" in caplog.text
    assert "4 rows without a question were left out" in caplog.text


# ---- splits ----------------------------------------------------------------------------------


def test_test_fraction_is_disjoint_complete_and_independent_of_the_row_order(tmp_path):
    rows = numbered(400)
    path = write_lines(tmp_path / "f.jsonl", rows)
    train, test = (load(path, split, test_fraction=0.25) for split in ("train", "test"))
    prompts = [{problem.prompt for problem in part} for part in (train, test)]
    assert prompts[0] | prompts[1] == {row["problem"] for row in rows}
    assert not prompts[0] & prompts[1]
    assert 70 < len(test) < 130
    turned = load(write_lines(tmp_path / "b.jsonl", rows[::-1]), "test", test_fraction=0.25)
    assert {problem.prompt for problem in turned} == prompts[1]


def test_test_source_has_priority_and_can_have_other_columns(tmp_path):
    train = write_lines(tmp_path / "f.jsonl", [{"text": f"{i}?", "gold": i} for i in range(50)])
    test = write_lines(tmp_path / "t.jsonl", [{"problem": "held out", "answer": "1"}])
    fields = {"test": test, "test_fraction": 0.5, "columns": Columns(prompt="text", answer="gold")}
    assert [problem.prompt for problem in load(train, "test", **fields)] == ["held out"]
    assert len(load(train, **fields)) == 50


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        (["train_test_split/train", "train_test_split/test"], [0], [1]),
        (["ds/test/train", "ds/test/test"], [0], [1]),
        (["problems", "testing"], None, [1]),
        (["train", "testset-2024"], [0], [1]),
        ([".ipynb_checkpoints/train-checkpoint", "train", "test"], [1], [2]),
        ([".test", "a"], [1], None),
        (["training/part-1", "training/part-2", "Tests/part-1"], [0, 1], [2]),
        (["train/tests/a", "test/train/b"], [1], [0]),
        (["train-and-test", "more"], [0, 1], None),
        (["my-test-of-reading/a", "my-test-of-reading/train-b"], [1], [0]),
    ],
    ids=str,
)
def test_the_name_of_a_file_decides_on_its_split_before_its_folders(tmp_path, files, train, test):
    for answer, file in enumerate(files):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        row = {"question": f"{file}?", "answer": answer}
        write_lines(tmp_path / f"{file}.jsonl", [row])
    for split, expected in (("train", train), ("test", test)):
        if expected is None:
            with pytest.raises(DataError, match=f"no file with '{split}'"):
                load(tmp_path, split)
        else:
            assert sorted(int(problem.answer) for problem in load(tmp_path, split)) == expected


def test_folder_is_split_by_file_names(tmp_path):
    """A folder that is named like a file is one, too, and files without a split are training."""
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", numbered(2))
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet" / "0.parquet", numbered(5)[2:])
    write_lines(tmp_path / "data" / "test.jsonl", [{"question": "Q?", "final_answer": ["7"]}])
    (tmp_path / "README.md").write_text("not data", encoding="utf-8")
    assert [problem.answer for problem in load(tmp_path)] == ["0", "1", "2", "3", "4"]
    assert [problem.answer for problem in load(tmp_path, "test")] == ["7"]
    with pytest.raises(DataError, match=r"no file with 'dev'.*test\.jsonl"):
        load_problems(DataConfig(source=str(tmp_path), split="dev"), "train")
    (tmp_path / "other").mkdir()
    write_lines(tmp_path / "other" / "algebra.jsonl", numbered(3))
    assert len(load(tmp_path / "other")) == 3
    for name, message in {
        "other": "no file with 'test'",
        "other/algebra.jsonl": r"data\.test_fraction=0\.1",
        "other/algebar.jsonl": "no file '.*'. Did you mean '.*/algebra.jsonl'",
    }.items():
        with pytest.raises(DataError, match=message):
            load(tmp_path / name, "test")
    with pytest.raises(DataError, match=r"data\.source is not given"):
        load_problems(DataConfig(), "train")


# ---- errors ----------------------------------------------------------------------------------


def test_error_of_a_missing_column_lists_the_columns(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "2+2?", "gold": "4"}])
    with pytest.raises(DataError, match=r"columns are: text, gold.*data\.columns\.prompt=COLUMN"):
        load(path)
    with pytest.raises(DataError, match=r"no column 'golds'.*Did you mean 'gold'\?"):
        load(path, columns=Columns(prompt="text", answer="golds"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '\n{"problem": \n', r"a\.jsonl:2: not JSON \("),
        ("a.jsonl", "\n{problem: 1}\n", r":2: not JSON \(.*char 1\)\); expected"),
        ("a.jsonl", '{"problem": "\\ud800", "answer": "1"}', r":1, column 'problem': half a surr"),
        ("a.jsonl", '{"problem": "A", "answer": "1", "id": "\\ud83d"}', r":1, column 'id': half"),
        (
            "a.json",
            '[{"problem": "A", "answer": "1", "x": {"y": ["", "\\ud83d"]}}]',
            r"a\.json, item 1, column 'x.y': half a surrogate pair",
        ),
        ("a.json", "[" * 9999, r"a\.json: not JSON \(maximum recursion depth"),
        ("a.jsonl", '{"answer": ' + "9" * 9999, r"a\.jsonl:1: not JSON \(Exceeds the limit"),
        ("a.jsonl", '{"problem": "A", "answer": "1"}\n[1]\n', r"a\.jsonl:2: expected an object"),
        ("a.json", '{\n"problem": "A"}', r"expected a list of rows.*a\.json:1: not JSON"),
        ("a.json", '[\n{"problem": }]', r"a\.json: not JSON \(.*: line 2 column 13"),
        ("a.csv", "problem,answer\nA,1\nB\n", r"a\.csv:3: malformed CSV"),
        ("a.csv", 'problem,answer\nA,"1\n', r"a\.csv:\d: malformed CSV"),
        ("a.parquet", "PAR?", r"a\.parquet is not a readable Parquet file"),
        ("a.jsonl", b'{"problem": "\xff"}', "codec can't decode byte 0xff"),
        ("a.txt", "What is 2+2?", "unknown file type"),
        ("a.jsonl", "", r"no problem with a question and an answer"),
        ("a.jsonl", '{"problem": "A", "answer": [["1", "2"]]}', r"a\.jsonl:1.*the type list"),
        ("a.csv", "Frage;Lösung\n1+1;2\n", r"a\.csv:1: .*separated by ';', not ','"),
        ("a.csv", "problem\tanswer\n1+1\t2\n", r"a\.csv:1: .*separated by '\\t', not ','"),
        ("a.tsv", "problem,answer\n1+1,2\n", r"a\.tsv:1: .*separated by ',', not '\\t'"),
        ("a.jsonl", '{"problem": "A", "answer": {"x": 1}}', "type dict"),
    ],
)
def test_error_names_the_place_in_the_file(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        load(tmp_path / name)


def test_csv_columns_may_have_no_name(tmp_path):
    (tmp_path / "a.csv").write_text("problem,answer,,\nA,1,,\n")
    assert [problem.answer for problem in load(tmp_path / "a.csv")] == ["1"]


# ---- rows that a Python program gives ------------------------------------------------------------


def problems_of_rows(rows, columns=None, **settings):
    config = DataConfig(source="given", columns=columns or Columns(), **settings)
    return load_problems(config, "train", rows)


ROWS = [
    {"problem": "1+1?", "answer": 2, "level": 3},
    {"problem": "2+2?", "answer": "4"},
    {"problem": "1+1?", "answer": "3"},
    {"problem": "3+3?", "answer": None},
]


def test_rows_become_problems_and_each_question_occurs_once(caplog) -> None:
    caplog.set_level(logging.INFO, "rlobj")
    first, second = problems_of_rows(iter(ROWS))
    assert (first.prompt, first.answer, first.extra) == ("1+1?", "2", {"level": 3})
    assert second.answer == "4"
    assert "1 rows with repeated questions were left out" in caplog.text
    assert "1 rows without an answer were left out" in caplog.text
    assert problems_of_rows(ROWS, limit=1) == [first]


def test_columns_can_be_named_also_nested_ones() -> None:
    rows = [{"q": "1+1?", "gold": {"value": 2, "unit": "m"}, "key": 7}]
    [problem] = problems_of_rows(rows, Columns(prompt="q", answer="gold.value", id="key"))
    assert problem == Problem("7", "1+1?", "2", {"gold": {"value": 2, "unit": "m"}})


def test_error_names_the_row_that_cannot_be_read() -> None:
    with pytest.raises(DataError, match="row 2, column 'problem'"):
        problems_of_rows([ROWS[0], {"problem": ["?"], "answer": "4"}])


def test_a_split_with_a_number_is_the_file_of_that_number(tmp_path):
    for year in (2023, 2024):
        write_lines(tmp_path / f"test{year}.jsonl", numbered(1))
    for split, names in (("test2024", [2024]), ("test", [2023, 2024])):
        files = split_files(tmp_path, split, fallback=False)
        assert [path.name for path in files] == [f"test{name}.jsonl" for name in names]
    write_lines(tmp_path / "train1.jsonl", numbered(1))
    assert split_files(tmp_path, "train", fallback=True) == [tmp_path / "train1.jsonl"]


def test_the_fingerprint_of_problems_changes_with_any_text_and_with_nothing_else():
    class Thing:
        pass

    def of(prompt="at 0x1f", answer="1", **extra):
        return fingerprint([Problem(id="a", prompt=prompt, answer=answer, extra=extra)])

    assert of() != of("at 0x2f")
    assert of(thing=Thing(), names={"b", "a"}) == of(thing=Thing(), names={"a", "b"})
    for one, other in (({"a"}, {"b"}), (b"1", b"2"), (Decimal(1), Decimal(2))):
        assert of(names=one) != of(names=other)
    values = numpy.arange(5000)
    assert of(values=values) != of(values=numpy.where(values == 2500, 0, values))
