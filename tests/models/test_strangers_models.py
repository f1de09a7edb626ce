"""Model folders of strangers: nothing in them is executed, and damage has a clear error."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from limits import within
from tiny import save_tiny_policy

from rlobj.base.errors import ConfigError
from rlobj.evaluation.evaluating import evaluate
from rlobj.models.loading import load_model
from rlobj.settings.run_config import ModelConfig
from rlobj.sizing.sizes import Size


@pytest.fixture
def model(tmp_path):
    return save_tiny_policy(tmp_path / "model")


def asked(model: Path) -> None:
    evaluate(str(model), on="max-digits", n=1, limit=1, max_tokens=3)


def test_a_short_chat_template_is_used_and_a_range_that_no_loop_ends_is_refused(model):
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    asked(model)
    (model / "chat_template.jinja").write_text("{% for i in range(10**12) %}x{% endfor %}")
    with within(60), pytest.raises(ConfigError, match="the tokenizer's chat template fails"):
        asked(model)


@pytest.mark.parametrize(
    "part",
    [
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": {"": "evil/kernel@main:f"}},
        {"text_config": {"attn_implementation": "evil/kernel"}},
        {"experts_implementation": "evil/kernel"},
    ],
    ids=str,
)
def test_a_kernel_of_the_hub_is_neither_downloaded_nor_executed(model, part):
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **part}))
    refused = pytest.raises(ConfigError, match="code that would be downloaded and executed")
    with refused:
        asked(model)
    with refused:
        load_model(ModelConfig(name=str(model)), str(model))
    with refused:
        load_model(ModelConfig(name=str(model)), str(model), hollow=True)
    with refused:
        Size.named(ModelConfig(name=str(model)))


class Executed:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("kind", ["a pickle", "a pickle of torch", "damaged"])
def test_pickled_weights_run_no_code_and_have_a_clear_error(model, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (model / "model.safetensors").unlink()
    file = model / "pytorch_model.bin"
    if kind == "a pickle of torch":
        torch.save({"a": Executed()}, file)
    else:
        file.write_bytes(pickle.dumps(Executed(), 2) if kind == "a pickle" else b"\x80\x02x")
    with pytest.raises(ConfigError, match="are a pickle that is damaged or would run code"):
        asked(model)
    assert not Path("executed").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "another type"])
def test_a_damaged_file_of_a_model_has_a_clear_error(model, file, damage):
    content = (model / file).read_bytes()
    (model / file).write_bytes(content[: len(content) // 2] if damage == "cut" else b"[1]")
    with pytest.raises(ConfigError, match="cannot load the model"):
        asked(model)
