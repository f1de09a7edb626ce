"""docs/recipes.md: a dry run accepts its commands, with the settings of its tables."""

import functools
import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from rlobj.models.checking import check_model
from rlobj_cli.app import app

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import recipes

TEXT = Path(recipes.__file__).with_suffix(".md").read_text(encoding="utf-8")
ADAPTERS = " --set model.lora.rank=32 --set training.learning_rate=1e-5"


def test_a_dry_run_accepts_every_command(tmp_path, monkeypatch):
    only_config = functools.partial(check_model, tokenizers=False)
    monkeypatch.setattr("rlobj.models.checking.check_model", only_config)
    commands = re.findall(r"^rlobj (train --preset .*?)\n```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(commands) == 3
    assert ADAPTERS.strip() in TEXT
    for command in [*commands, *(each + ADAPTERS for each in commands[1:])]:
        words = shlex.split(command.replace("\\\n", " "))
        place = words.index("--model") + 1
        name = words[place]
        given = recipes.settings(name, 8).items()  # those of the table
        assert {f"{key}={value}".replace("'", "") for key, value in given} <= {*words}
        words[place] = str(recipes.write_config(name, tmp_path))
        for preset in recipes.PRESETS:
            words[words.index("--preset") + 1] = preset
            done = CliRunner().invoke(app, [*words, "--dry-run"])
            assert done.exit_code == 0, done.output
            assert "dry run: nothing was written" in done.output
            assert "activations" in done.output
