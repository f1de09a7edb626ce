"""A language model as a second grader: a tiny model whose output depends on the last character."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from vllm_tools import NEEDS_VLLM

from rlobj.base.errors import ConfigError
from rlobj.evaluation import Samples, regrade_with, score
from rlobj.evaluation.judge import TEMPLATE, read_judgement
from rlobj.models.embedded import build_tokenizer

NEXT = {"5": "A", "6": "B", "7": "?", "A": "<eos>", "B": "<eos>", "?": "<eos>"}
"""What the model writes after a character."""
ENGINES = [
    "transformers",
    pytest.param(
        "vllm", marks=[pytest.mark.vllm, pytest.mark.slow, pytest.mark.skipif(**NEEDS_VLLM)]
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A causal model without memory: one-hot embeddings, silent layers, a table as its head."""
    letters = string.digits + string.ascii_letters + string.punctuation + " \n"
    tokenizer: Any = build_tokenizer(letters)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=64,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" not in name:
                weights.zero_()
        model.get_input_embeddings().weight.fill_diagonal_(1.0)
        for first, then in NEXT.items():
            place = tokenizer.convert_tokens_to_ids([then, first])
            model.lm_head.weight[place[0], place[1]] = 1.0
    folder = tmp_path_factory.mktemp("judge")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    said = [r"The answer is 5", r"The answer is 6", r"The answer is 7", r"\boxed{6} or 5"]
    row = {"problem": "How many?", "answer": "6", "response": said}
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    score(file, out=tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A template that ends with the response, whose last character decides."""
    file = tmp_path / "template.txt"
    file.write_text("{question}\n{gold_answer}\n{llm_response}", encoding="utf-8")
    return file


@pytest.mark.parametrize("engine", ENGINES)
def test_the_judge_is_reported_beside_the_rule(
    folder: Path, template: Path, model: str, engine: str
) -> None:
    before = (folder / "results.json").read_bytes()
    ours = [grade.correct for grade in Samples.open(folder).grades.values()]
    found = regrade_with(folder, f"judge:{model}", template=template, sampler=engine)
    assert [each.theirs for each in found.verdicts] == [True, False, None, True]
    assert [each.reason for each in found.verdicts] == ["A", "B", "?", "A"]
    assert [each.ours for each in found.verdicts] == ours
    numbers = found.benchmarks["r"]
    assert (numbers["ours"], numbers["theirs"]) == (sum(map(bool, ours)) / 4, 0.5)
    assert numbers["undecided"] == 1
    assert (folder / "results.json").read_bytes() == before
    assert json.loads(found.path.read_text(encoding="utf-8"))["versions"] == {"model": model}
    assert found.path.parent == folder / "regraded"


def test_a_response_that_does_not_fit_the_judge_is_undecided(
    folder: Path, model: str, tmp_path: Path
) -> None:
    file = tmp_path / "long.txt"
    file.write_text("x" * 1600 + "{question}{gold_answer}{llm_response}", encoding="utf-8")
    found = regrade_with(folder, f"judge:{model}", template=file, sampler="transformers")
    assert {each.reason for each in found.verdicts} == {"too long for the judge"}
    assert {each.theirs for each in found.verdicts} == {None}


@pytest.mark.parametrize("text", ["{question} {gold_answer}", "{question} {gold} {llm_response}"])
def test_a_template_without_its_places_is_refused(
    folder: Path, tmp_path: Path, model: str, text: str
) -> None:
    file = tmp_path / "wrong.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"expected \{question\}, \{gold_answer\} and"):
        regrade_with(folder, f"judge:{model}", template=file)


def test_the_problem_is_in_the_prompt_of_a_judge() -> None:
    text = TEMPLATE.format(question="How many?", gold_answer=r"\frac{1}{2}", llm_response="{x}")
    assert all(part in text for part in ("How many?", r"\frac{1}{2}", "{x}"))


@pytest.mark.parametrize(
    ("output", "correct"),
    [
        ("A", True),
        (" B\n", False),
        ("C", False),
        ("**A**: CORRECT", True),
        ("INCORRECT", False),
        ("<think>B or A?</think>\n\nA", True),
        (r"Analysis: B is possible. Final Judgment: \boxed{A} - CORRECT", True),
        ("A reasonable response, but wrong.", None),
        ("AB", None),
        ("", None),
    ],
)
def test_only_a_clear_judgement_counts(output: str, correct: bool | None) -> None:
    assert read_judgement(output) is correct
