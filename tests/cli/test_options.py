"""Messages of the library name arguments of Python; the program shows its options instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from rlobj_cli.app import app
from rlobj_cli.screen.errors import as_typed, options_of

LIBRARY = Path(__file__).parents[2] / "src" / "rlobj"


@pytest.mark.parametrize(
    ("command", "message", "typed"),
    [
        ("train", "choose another folder with out=DIR", "choose another folder with --out DIR"),
        ("train", "add trust=True.", "add --trust."),
        ("train", "from_run=a: no. Or set x.y=3", "--from a: no. Or --set x.y=3"),
        ("train", "sampling.seed=3 and my-out=4", "sampling.seed=3 and my-out=4"),
        ("doctor", "out=DIR", "out=DIR"),
    ],
)
def test_a_message_names_what_the_command_takes(command: str, message: str, typed: str) -> None:
    program: Any = typer.main.get_command(app)
    assert as_typed(message, options_of(program.commands[command])) == typed


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
