"""Models in GGUF files: made dense once, and then like any other model."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_models import TEMPLATE, TOKENS, save_gguf
from runs import ROWS, ROWS_TEMPLATE, metrics, same, weights
from tiny import tiny_config
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlobj
from rlobj.base.errors import ConfigError, MissingExtra, RunError
from rlobj.evaluation.evaluating import evaluate
from rlobj.evaluation.identity import differences
from rlobj.models import gguf_files
from rlobj.models.gguf_files import dense_folder
from rlobj.models.location import require_model
from rlobj.runs.configuration import read_run_config
from rlobj.settings.run_config import ModelConfig
from rlobj.sizing.sizes import Size

QUICK = {
    **ROWS_TEMPLATE,
    "rewards": "exact",
    "model.chat_template": False,
    "training.steps": 1,
    "training.updates_per_step": 1,
    "sampling.prompts_per_step": 2,
    "sampling.group_size": 2,
    "sampling.max_tokens": 3,
    "training.learning_rate": 1e-3,
    "evaluation.every": 0,
    "checkpoint.every": 1,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The user's cache of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def tiny(cache, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf"
    save_gguf(file)
    return file


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rlobj" / "gguf"


@pytest.fixture
def rows(tmp_path) -> str:
    """A file of problems."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    return str(file)


# The folder.


def test_the_folder_has_the_weights_and_the_tokens_of_the_file(empty_cache, tmp_path):
    stored = save_gguf(tmp_path / "m.gguf")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    folder = dense_folder(str(tmp_path / "m.gguf"))
    assert torch.rand(1) == expected
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert same(dict(model.named_parameters()), stored)
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings == 128
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("12 1<|im_end|>").input_ids == [*map(TOKENS.index, ("12", "Ġ1")), 2]


def empty_model(folder: Path) -> None:
    """Files that a model folder has, without content."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).touch()


def test_a_file_is_converted_once_and_processes_wait_for_each_other(
    empty_cache, tmp_path, monkeypatch, caplog
):
    made: list[Path] = []
    begun = threading.Event()

    def make(file: Path, folder: Path) -> None:
        made.append(file)
        empty_model(folder)
        begun.set()
        waiting.join(1)  # as long as it would need if it did not wait

    monkeypatch.setattr(gguf_files, "_make_dense", make)
    save_gguf(tmp_path / "m.gguf")
    (empty_cache / ".unfinished").mkdir(parents=True)  # of a process that was killed
    folders: list[str] = []

    def ask() -> None:
        folders.append(dense_folder(str(tmp_path / "m.gguf")))

    waiting = threading.Thread(target=lambda: (begun.wait(), ask()))
    waiting.start()
    ask()
    waiting.join()
    assert made == [tmp_path / "m.gguf"]
    assert "waiting for another process, which is writing to" in caplog.text
    assert len({*folders}) == 1
    assert Path(folders[0]).is_dir()
    save_gguf(tmp_path / "m.gguf", seed=1)
    ask()
    assert len({*folders}) == 2


def test_a_long_name_and_a_cache_that_cannot_be_written(empty_cache, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "_make_dense", lambda file, folder: empty_model(folder))
    save_gguf(file := tmp_path / f"{'日本語' * 27}.gguf")
    assert Path(dense_folder(str(file))).is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/x")
    with pytest.raises(RunError, match=r"cannot write /proc/x/rlobj/gguf.*XDG_CACHE_HOME=/tmp"):
        dense_folder(str(file))


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("architecture", "architecture strange is not supported"),
        ("a tensor", r"bad.gguf: .*its files lack model\.layers\.0\.mlp\.up_proj\.weight"),
        ("the end", "cannot load the model .*bad.gguf"),
        (
            "the tokenizer",
            r"transformers .* misreads the tokenizer of .*bad\.gguf",
        ),
        ("the disk", r"cannot write .*: no room\. Choose a disk with room: XDG_CACHE_HOME="),
    ],
)
def test_a_file_that_cannot_be_converted_has_its_reason_and_leaves_nothing(
    flaw: str, words: str, empty_cache, tmp_path, monkeypatch
):
    file = tmp_path / "bad.gguf"
    architecture = "strange" if flaw == "architecture" else "llama"
    left_out = "model.layers.0.mlp.up_proj.weight" if flaw == "a tensor" else ""
    save_gguf(file, architecture=architecture, left_out=left_out)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    if flaw == "the end":
        file.write_bytes(file.read_bytes()[:5000])
    if flaw == "the tokenizer":
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda **_: OtherTokenizer())
    if flaw == "the disk":
        monkeypatch.setattr("transformers.LlamaForCausalLM.save_pretrained", full)
    with pytest.raises(RunError if flaw == "the disk" else ConfigError, match=words):
        dense_folder(str(file))
    assert [path.name for path in empty_cache.iterdir()] == [".lock"]


class OtherTokenizer:
    """What transformers 5.5 makes of the file."""

    eos_token_id = 1

    def __len__(self) -> int:
        return len(TOKENS)


# The name.


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tinny.gguf", r"no GGUF file 'tinny\.gguf'\. Did you mean 'tiny\.gguf'\?"),
        ("owner/none.gguf", "no GGUF file 'owner/none.gguf'"),
        ("owner/name:none.gguf", "no GGUF file 'owner/name:none.gguf'"),
        ("tiny.bin", "is a file; a model is a folder, a GGUF file or a hub id"),
        (".", r"folder without config\.json.*, or a GGUF file"),
    ],
)
def test_a_name_that_is_no_gguf_file_is_refused_before_anything_is_loaded(
    name: str, words: str, tiny, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny, "tiny.gguf")
    shutil.copy(tiny, "tiny.bin")
    require_model("tiny.gguf")
    with pytest.raises(ConfigError, match=words):
        require_model(name)


def test_the_missing_package_is_named_with_what_to_type(tiny, monkeypatch):
    monkeypatch.setattr("rlobj.models.location.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"needs the package 'gguf'. .*pip install -e '\.\[gguf"):
        require_model(str(tiny))


def test_a_reward_model_is_no_gguf_file(policy, rows, tiny, tmp_path):
    settings = {**QUICK, "rewards": {"kind": "reward_model", "model": str(tiny)}}
    with pytest.raises(ConfigError, match=r"the reward model .*gguf cannot be read"):
        rlobj.train("grpo", model=policy, data=rows, out=tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


# What takes it.


def test_its_size_is_read_without_a_conversion(tiny, empty_cache):
    size = Size.named(ModelConfig(name=str(tiny)), local=True)
    assert not empty_cache.exists()
    model = AutoModelForCausalLM.from_pretrained(dense_folder(str(tiny)))
    assert size == Size.of(model, None)


def test_a_run_from_the_file_is_one_from_its_folder(tiny, rows, tmp_path):
    for name, model in {"file": tiny, "folder": dense_folder(str(tiny))}.items():
        rlobj.train("stapo", model=str(model), data=rows, out=tmp_path / name, settings=QUICK)
    assert metrics(tmp_path / "file") == metrics(tmp_path / "folder")
    assert same(weights(tmp_path / "file"), weights(tmp_path / "folder"))
    tiny.rename(tiny.with_name("gone"))  # all of the policy is in the checkpoint
    rlobj.resume(tmp_path / "file", settings={"training.steps": 2})
    tiny.with_name("gone").rename(tiny)


@pytest.mark.parametrize("base", ["adapters", "a reference"])
@pytest.mark.parametrize("fate", ["changed", "gone"])
def test_a_run_that_still_needs_the_file_is_resumed_only_with_the_same_one(
    base: str, fate: str, tiny, rows, tmp_path
):
    file = tmp_path / "m.gguf"
    shutil.copy(tiny, file)
    lora = {"model.lora.rank": 2, "training.learning_rate": 1e-2}
    more = lora if base == "adapters" else {"objective.penalties": [{"kind": "kl"}]}
    run = tmp_path / "run"
    rlobj.train("grpo", model=str(file), data=rows, out=run, settings={**QUICK, **more})
    digest = read_run_config(run).model.digest
    if fate == "changed":
        save_gguf(file, seed=1)
    else:
        file.unlink()
    reason = "it has changed since" if fate == "changed" else "it is not there any more"
    expected = rf"model\.name: .*m\.gguf is not the model with the digest {digest}: {reason}\. Put"
    with pytest.raises(ConfigError, match=expected):
        rlobj.resume(run, settings={"training.steps": 2})
    shutil.copy(tiny, file)
    assert rlobj.resume(run, settings={"training.steps": 2}).steps == 2


def test_a_teacher_from_the_same_file_scores_as_the_policy(tiny, tmp_path):
    scores = {"teacher": {"model": str(tiny)}}
    config = tiny_config(
        tiny,
        "dapo-loss",
        model={"name": str(tiny), "chat_template": False},
        scores=scores,
        objective={"shape": "advantage + 0.3 * clip(teacher_gap, -5, 5)"},
        training={"steps": 1},
    )
    result = rlobj.train(config, out=tmp_path / "run")
    assert result.history[-1]["score/teacher/gap"] == pytest.approx(0, abs=1e-6)
    assert read_run_config(tmp_path / "run").scores["teacher"].digest


def test_an_evaluation_of_the_file_is_one_of_any_folder_with_its_weights(tiny, tmp_path):
    folder = tmp_path / "folder"
    AutoModelForCausalLM.from_pretrained(dense_folder(str(tiny))).save_pretrained(folder)
    AutoTokenizer.from_pretrained(dense_folder(str(tiny))).save_pretrained(folder)
    first, second = (
        evaluate(str(model), on=ROWS, n=2, max_tokens=3, template="{prompt}", seed=1)
        for model in (tiny, folder)
    )
    assert first.rows == second.rows
    assert differences(first.settings, second.settings) == []
