"""Responses made elsewhere: files of lm-eval, and plain tables."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet as parquet
import pytest

from rlobj.base.errors import DataError
from rlobj.data import Problem
from rlobj.evaluation.regrading import read_responses


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


LM_EVAL = {"id": "doc_id", "prompt": "doc.problem", "answer": "target", "response": "resps"}


def lm_eval(doc_id, texts, filter_name="none"):
    """A line of lm-eval's --log_samples."""
    return {
        "doc_id": doc_id,
        "doc": {"problem": f"What is {doc_id}+1?", "solution": f"So \\boxed{{{doc_id + 1}}}."},
        "target": f"{doc_id + 1}",
        "arguments": {"gen_args_0": {"arg_0": "few shots ...", "arg_1": {"until": []}}},
        "resps": [texts],
        "filtered_resps": texts[:1],
        "filter": filter_name,
        "exact_match": 0,
        "doc_hash": "0" * 64,
    }


def parquet_file(path, *rows):
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def test_details_of_lighteval_are_read_through_named_columns(tmp_path):
    row = {
        "__doc__": {"query": "What is 6*7?", "choices": ["42"], "id": "7"},
        "__model_response__": {"text": ["\\boxed{42}", "43"], "output_tokens": [[1, 2], [3]]},
    }
    file = parquet_file(tmp_path / "details.parquet", row)
    columns = {"response": "__model_response__.text", "prompt": "__doc__.query"}
    known = [Problem("a", "What is 6*7?", "42")]
    [problem], responses = read_responses([file], "x", known=known, columns=columns)
    assert (problem.id, problem.answer) == ("a", "42")
    assert [response.text for response in responses.values()] == ["\\boxed{42}", "43"]


def test_the_parts_of_a_row_are_in_columns_of_their_names(tmp_path):
    row = {"id": 3, "prompt": "2+2?", "answer": 4.0, "response": ["\\boxed{4}"]}
    [problem], responses = read_responses([lines(tmp_path / "r.jsonl", row, row)], "x")
    assert problem == Problem("3", "2+2?", "4")
    assert [(key[2], r.text) for key, r in responses.items()] == [
        (0, "\\boxed{4}"),
        (1, "\\boxed{4}"),
    ]


def test_no_other_name_of_a_column_is_guessed(tmp_path):
    row = {"id": "a", "answer": "5", "gold": "4", "target": "4", "response": "5", "output": "4"}
    [problem], responses = read_responses([lines(tmp_path / "r.jsonl", row)], "x")
    assert problem.answer == "5"
    assert [response.text for response in responses.values()] == ["5"]


def test_several_files_of_a_task_are_samples_of_the_same_problems(tmp_path):
    files = [
        lines(tmp_path / f"samples_aime24_2026-01-0{i}T00-00-00.jsonl", lm_eval(0, [str(i)]))
        for i in range(3)
    ]
    problems, responses = read_responses(files, "x", columns=LM_EVAL)
    assert [problem.id for problem in problems] == ["0"]
    assert [response.text for response in responses.values()] == ["0", "1", "2"]


def test_gold_answers_of_a_benchmark_are_found_by_id_or_question(tmp_path):
    known = [Problem("p-1", "What is 1+1?", "2"), Problem("p-2", "What is 2+2?", "4")]
    file = lines(
        tmp_path / "r.jsonl",
        {"id": "p-2", "response": "by id"},
        {"prompt": "What is\n1+1?", "response": "by question"},
        {"prompt": "User: What is 2+2? Think.", "response": "by what is in the prompt"},
    )
    problems, responses = read_responses([file], "x", known=known)
    assert {p.id: p.answer for p in problems} == {"p-1": "2", "p-2": "4"}
    found = {(key[1], key[2]): response.text for key, response in responses.items()}
    assert found == {
        ("p-2", 0): "by id",
        ("p-1", 0): "by question",
        ("p-2", 1): "by what is in the prompt",
    }


# What the model wrote.

CHAT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "four"}]


@pytest.mark.parametrize(
    ("response", "texts"),
    [
        (CHAT, ["four"]),
        (CHAT[1:], ["four"]),
        (CHAT[1], ["four"]),
        ([CHAT, CHAT[1:]], ["four", "four"]),
        ([*CHAT, CHAT[0], {"role": "assistant", "content": "4"}], ["4"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_a_chat_gives_the_last_message_of_the_assistant(tmp_path, response, texts):
    row = {"id": "a", "answer": "4", "response": response}
    _, responses = read_responses([lines(tmp_path / "r.jsonl", row)], "x")
    assert [response.text for response in responses.values()] == texts


# Which problem it is.


def test_lm_eval_rows_of_the_first_filter_are_samples(tmp_path):
    file = lines(
        tmp_path / "samples_x.jsonl",
        lm_eval(0, ["a"], "strict"),
        lm_eval(0, ["b"], "strict"),
        lm_eval(0, ["c"], "flexible"),
        lm_eval(1, ["d"], "flexible"),
        lm_eval(1, ["e"], "strict"),
    )
    problems, responses = read_responses([file], "x", columns=LM_EVAL)
    assert [(p.id, p.prompt, p.answer) for p in problems] == [
        ("0", "What is 0+1?", "1"),
        ("1", "What is 1+1?", "2"),
    ]
    assert {key[1:]: response.text for key, response in responses.items()} == {
        ("0", 0): "a",
        ("0", 1): "b",
        ("1", 0): "e",
    }


def test_lm_eval_rows_without_doc_id_are_identified_by_their_question(tmp_path):
    rows = [lm_eval(0, ["a"]), lm_eval(1, ["b"]), lm_eval(0, ["c"])]
    for row in rows:
        del row["doc_id"]
    columns = {part: name for part, name in LM_EVAL.items() if part != "id"}
    problems, responses = read_responses([lines(tmp_path / "s.jsonl", *rows)], "x", columns=columns)
    assert [problem.prompt for problem in problems] == ["What is 0+1?", "What is 1+1?"]
    assert [(key[2], r.text) for key, r in responses.items()] == [(0, "a"), (0, "b"), (1, "c")]


KNOWN = [
    Problem("p-1", "What is 1+1?", "2"),
    Problem("p-2", "What is 2+2?", "4"),
    Problem("p-3", "Once more: What is 2+2?", "4"),
    Problem("p-4", "Twice?", "1"),
    Problem("p-5", " Twice? ", "2"),
]


@pytest.mark.parametrize(
    ("row", "belongs"),
    [
        ({"prompt": "Q: What is 2+2?\nA: 4\nQ: What is 1+1?\nA:"}, "p-1"),
        ({"prompt": "Q: What is 1+1?\nA: 2\nQ: What is 2+2?Think."}, "p-2"),
        ({"prompt": "Once more: What is 2+2? What is 1+1? Once more:\nWhat is 2+2? A:"}, "p-3"),
        ({"prompt": "Q: What is 2+2?\nA: 4\nQ: What is 1+1?", "id": "p-1"}, "p-1"),
        ({"prompt": "Twice?", "id": "p-5"}, "p-5"),
        ({"id": "p-2"}, "p-2"),
        ({"prompt": "What is 1+1?", "id": "of another copy"}, "p-1"),
    ],
)
def test_a_prompt_belongs_to_the_question_that_ends_last_in_it(tmp_path, row, belongs):
    file = lines(tmp_path / "r.jsonl", {**row, "response": "4", "answer": "5", "target": "6"})
    [problem], _ = read_responses([file], "x", known=KNOWN)
    assert problem.id == belongs


# Its gold answer.


def test_listed_golds_are_alternatives(tmp_path):
    row = {"id": "a", "answer": ["1/2", "0.5"], "response": "x"}
    [problem], _ = read_responses([lines(tmp_path / "r.jsonl", row)], "x")
    assert (problem.answer, problem.extra) == ("1/2", {"alternatives": ["1/2", "0.5"]})


# Errors.

ROW = {"id": "a", "answer": "4", "response": "4"}
CHOICES = {**lm_eval(0, []), "resps": [[["-5.1", "False"]], [["-0.1", "True"]]]}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"id": "a", "answer": "4"}], {}, r'no response.*columns=\{"response": "COLUMN"\}'),
        ([{"id": "a", "answer": "4", "said": "4"}], {}, "columns are id, answer, said. Name it"),
        ([{"id": "a", "response": "4"}], {}, r"no gold answer.*on=NAME"),
        ([{"response": "4"}], {"columns": {"answer": "answer"}}, "no column 'answer'"),
        ([ROW, {**ROW, "answer": "5"}], {}, "'a' has the gold answer '5' here and '4' before"),
        ([], {}, "no response in it"),
        ([{"answer": "4", "response": "4"}], {}, "neither an id nor a question"),
        (
            [{**ROW, "prompt": "2+2?"}, {**ROW, "prompt": "2 * 2?"}],
            {},
            r"question '2 \* 2\?' here and '2\+2\?' before.*\"id\": \"COLUMN\"",
        ),
        *(
            ([ROW, {**ROW, "response": wrong}], {}, r"r\.jsonl:2: expected the response as text")
            for wrong in (4, [["-5.1", "False"]], [None], CHAT[:1], {"a": 1})
        ),
        ([CHOICES], {"columns": LM_EVAL}, r"r\.jsonl:1: .* log-likelihoods cannot"),
        *(
            ([{**row, "response": "4"}], {"known": KNOWN}, message)
            for row, message in (
                ({"prompt": "Q: What is 1+1?", "id": "p-2"}, "that of problem 'p-2'.*asks 'p-1'"),
                ({"prompt": "What is 3+3?", "id": "p-2"}, "does not hold its question"),
                ({"prompt": "Think. Twice?"}, "its question is that of p-4, p-5"),
                ({"prompt": "What is 3+3?"}, "neither its id None nor its question"),
                ({"prompt": "?", "id": "zzz"}, "neither its id 'zzz' nor its question"),
            )
        ),
    ],
    ids=str,
)
def test_error_says_what_is_missing_or_wrong_and_where(tmp_path, rows, options, message):
    with pytest.raises(DataError, match=message):
        read_responses([lines(tmp_path / "r.jsonl", *rows)], "x", **options)
