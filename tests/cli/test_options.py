"""Options: what they set, and the words of the library for which they stand on the screen."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from setting_names import setting_meanings

from rlobj.base.errors import Argument, Message, Setting
from rlobj_cli.app import app
from rlobj_cli.screen.console import options_of, typed
from rlobj_cli.screen.options import SETTINGS

LIBRARY = Path(__file__).parents[2] / "src" / "rlobj"


@pytest.mark.parametrize("command", ["train", "resume", "eval"])
def test_options_stand_for_settings_and_replace_none_of_a_preset(command: str) -> None:
    program: Any = typer.main.get_command(app)
    named = program.commands[command]
    named = getattr(named, "commands", {}).get("<model>", named)
    options = [
        option for option in named.params if option.opts[0][2:].replace("-", "_") in SETTINGS
    ]
    assert len(options) > 2
    for option in options:
        assert SETTINGS[option.name] in setting_meanings()
        assert option.default is None


@pytest.mark.parametrize(
    ("command", "part", "text"),
    [
        ("train", Argument("out", "DIR"), "--out DIR"),
        ("train", Argument("from_run", "runs/a b"), "--from 'runs/a b'"),
        ("train", Argument("trust"), "--trust"),
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
