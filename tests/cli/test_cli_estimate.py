"""`rlobj estimate`: its tables, its choices, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import Qwen3Config
from typer.testing import CliRunner

from rlobj_cli.app import app

runner = CliRunner(env={"COLUMNS": "100", "TERM": "dumb"})


def output(*words: object, code: int = 0) -> str:
    result = runner.invoke(app, ["estimate", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the config.json of Qwen3-8B-Base."""
    folder = tmp_path_factory.mktemp("models") / "Qwen3-8B-Base"
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    words = {"vocab_size": 151936, "tie_word_embeddings": False}
    config = Qwen3Config(**sizes, **heads, **words, max_position_embeddings=32768)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    return folder


def test_a_newcomer_sees_memory_hours_and_choices_that_fit(eight: Path) -> None:
    text = output("--model", eight, "--gpus", "8x80", "--preset", "stapo")
    assert "Qwen3-8B-Base, 8,190.7 million parameters, on 8 x 80 GiB (H100)" in text
    shown = {line[:36].strip(): line[36:].split() for line in text.splitlines()}
    assert shown["weights"] == ["3.8"] * 4
    assert shown["moments"] == ["7.6"] * 4
    assert max(map(float, shown["together"])) <= 0.92 * 80
    words = " ".join(text.split())
    assert "2,048 responses; assumed: 7,680 tokens of a response and 256 of a prompt" in words
    assert "by arithmetic and not measured" in words
    for setting in ("engine=vllm", "strategy=fsdp2", "gradient_checkpointing=true"):
        assert setting in words


def test_choices_can_be_given_to_a_run(eight: Path) -> None:
    words = ("--model", eight, "--gpus", "8x80", "--preset", "stapo")
    text = output(*words)
    memory, facts = text.partition("Qwen3-8B-Base")[::2]
    chosen = re.findall(r"((?:training|sampling)\.\S+=\S+): ", facts)
    assert len(chosen) > 4
    again = output(*words, *(word for choice in chosen for word in ("--set", choice)))
    assert "chosen" in facts
    assert "chosen" not in again
    assert again.partition("Qwen3-8B-Base")[0] == memory


def test_a_run_that_does_not_fit_shows_what_to_type(eight: Path) -> None:
    words = ("--model", eight, "--gpus", "80", "--preset", "stapo")
    text = output(*words, code=2)
    advice = text.partition("It fits with one of these:")[2]
    assert "--set model.lora.rank=16" in advice
    assert "--set training.strategy=fsdp2" in advice
    assert " --processes 4: " in advice
    assert "," not in advice
    lora = next(line for line in advice.splitlines() if "lora" in line)
    output(*words, *lora.strip().rpartition(": ")[0].split(), code=0)


def test_bad_input_is_one_sentence(eight: Path) -> None:
    for words, message in (
        (("--gpus", "many"), "expected the number of GPUs"),
        (("--gpus", "8x0.0000001"), "from 1 to 10000"),
        (("--gpus", "8x80x2"), "such as 8x80"),
    ):
        assert message in " ".join(output("--model", eight, *words, code=2).split())


@pytest.mark.parametrize("value", ["many", float("nan")])
def test_what_is_no_number_is_refused_by_name(value: Any, eight: Path, tmp_path: Path) -> None:
    key = "num_attention_heads"
    config = json.loads((eight / "config.json").read_text()) | {key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = " ".join(output("--model", tmp_path, "--gpus", "80", code=2).split())
    assert "transformers cannot read the config.json of" in text
    assert f"Field '{key}' expected int" in text


COMMANDS = (
    ("estimate", "--gpus", "80"),
    ("train", "--dry-run", "--preset", "grpo", "--data", "addition"),
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RepositoryNotFoundError("404", response=Mock()),
            "there is no model 'nobody/none', here or on the hub",
        ),
        (
            ConnectionError("no route"),
            "'nobody/none' is not on this machine, and the hub does not answer",
        ),
    ],
    ids=["missing", "no hub"],
)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_model_that_nobody_has_is_refused(
    command: tuple[str, ...], error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HfApi, "model_info", Mock(side_effect=error))
    result = runner.invoke(app, [*command, "--model", "nobody/none"])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_without_a_gpu_the_estimate_has_memory_and_no_hours(
    eight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlobj_cli.screen.estimating.own_card", lambda: None)
    for words in ((), ("--gpus", "cpu")):
        text = " ".join(output("--model", eight, *words).split())
        assert "this machine, for each process" in text
        assert "sampling.engine=transformers: there is no GPU" in text
        assert "hours" not in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_context_without_room_for_a_prompt_is_refused(
    command: tuple[str, ...], eight: Path
) -> None:
    words = [*command, "--model", str(eight), "--set", "sampling.max_tokens=32768"]
    result = runner.invoke(app, words)
    assert result.exit_code == 2
    assert "leaves no room for a prompt: the model's context is 32768" in result.output
