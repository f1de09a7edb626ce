"""Options: what they set, and the words of the library for which they stand on the screen."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from screens import printed

from rlobj.base.errors import Argument, ConfigError, Message, Setting
from rlobj.settings.building import compose
from rlobj.settings.layers import nested
from rlobj.settings.schema import setting_meanings
from rlobj_cli.app import app
from rlobj_cli.screen.errors import options_of, typed

LIBRARY = Path(__file__).parents[2] / "src" / "rlobj"


def parameters(*words: str) -> dict[str, Any]:
    """The parameters of a command, by their options."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return {each.opts[0]: each for each in command.params}


def settings(module: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, str]:
    """What the options of a command set; the command ends without work."""
    seen: dict[str, str] = {}

    def note(options: dict[str, tuple[str, Any]]) -> list[Any]:
        seen.update({option: setting for option, (setting, _) in options.items()})
        return []

    monkeypatch.setattr(importlib.import_module(f"rlobj_cli.{module}"), "setting_layers", note)
    printed(*words, code=2)
    return seen


@pytest.mark.parametrize(
    ("module", "command", "words", "count"),
    [
        ("train", ["train"], ["train"], 14),
        ("resume", ["resume"], ["resume", "no/run/here"], 4),
        ("evaluate", ["eval", "<model>"], ["eval", "no/model/here"], 12),
    ],
)
def test_options_set_settings_within_their_bounds(module, command, words, count, monkeypatch):
    options, known = parameters(*command), setting_meanings()
    found = settings(module, monkeypatch, *words)
    assert len(found) == count
    for option, setting in found.items():
        parameter = options[option]
        assert setting in known, option
        assert parameter.default is None, option  # else it would replace that of a preset
        for bound, beyond in ((parameter.min, -1), (parameter.max, 1)):
            if bound is not None:
                compose("grpo", [(option, nested(setting, bound))])
                with pytest.raises(ConfigError):
                    compose("grpo", [(option, nested(setting, bound + beyond))])


@pytest.mark.parametrize(
    ("command", "option", "setting"),
    [
        (["train"], "--max-turns", "environment.max_turns"),
        (["eval", "<model>"], "--max-turns", "environment.max_turns"),
        (["eval", "<model>"], "--temperature", "evaluation.temperature"),
        (["eval", "<model>"], "--seed", "seed"),
    ],
)
def test_the_default_in_the_help_is_that_of_the_setting(command, option, setting) -> None:
    default: Any = compose("grpo")
    for name in setting.split("."):
        default = getattr(default, name)
    told = re.search(r"Default: .*?(\d+)\.$", parameters(*command)[option].help)
    assert told is not None
    assert float(told[1]) == default


@pytest.mark.parametrize(
    ("command", "part", "text"),
    [
        ("train", Argument("out", "DIR"), "--out DIR"),
        ("train", Argument("from_run", "runs/a b"), "--from 'runs/a b'"),
        ("train", Argument("trust"), "--trust"),
        ("train", Argument("processes", 2), "--processes 2"),
        ("train", Setting("sampling.group_size", 8), "--set sampling.group_size=8"),
        ("train", Setting("training.offload", None), "--set training.offload=null"),
        ("train", Setting("objective.drop", "prob < 0.1"), "--set 'objective.drop=prob < 0.1'"),
        ("inspect", Argument("run", "RUN"), "run=RUN"),  # an argument of the command
        ("doctor", Argument("out", "DIR"), "out=DIR"),  # no option of the command
    ],
)
def test_a_message_names_what_the_command_takes(
    command: str, part: Setting | Argument, text: str
) -> None:
    program: Any = typer.main.get_command(app)
    options = options_of(program.commands[command])
    assert typed(Message("use ", part, "."), options) == f"use {text}."


def test_no_error_of_the_library_names_an_option() -> None:
    found = []
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                texts = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant)]
                text = "".join(each for each in texts if isinstance(each, str))
                whole_command = r"(rlobj [a-z]+|torchrun|vllm serve) [^.;:)]*"
                text = re.sub(whole_command, "", text)
                if re.search(r"(?<!\w)--[a-z]", text):
                    found.append(f"{path.name}: {text[:100]}")
    assert not found
