"""Runs of SmolLM2 that are as short as a run of a real model can be: sums, with two examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlobj.settings.building import compose
from rlobj.settings.presets import merge
from rlobj.settings.run_config import RunConfig

EXAMPLES = "3 + 14 = 17\n25 + 36 = 61\n"
ROWS = [{"prompt": f"{a} + {b}", "answer": str(a + b)} for a in (53, 17, 86) for b in (35, 58)]
REWARD = '''
import re


def first_number(response, answer, **_):
    """1 for the answer, else the share of digits: hardly two are equal in a group."""
    number = re.match(r"\\s*(\\d+)", response)
    right = number is not None and number[1] == answer
    return 1.0 if right else sum(map(str.isdigit, response)) / (len(response) + 1)
'''


def short_run(policy: Path, folder: Path, preset: str = "grpo", **sections: Any) -> RunConfig:
    """Three steps of two prompts with four responses of six tokens; sections override.

    Args:
        policy: its folder.
        folder: where the problems and the reward are written.
        preset: whose objective is used.
        sections: settings above those of the short run.
    """
    data, reward = folder / "sums.jsonl", folder / "reward.py"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    reward.write_text(REWARD)
    usual = {
        "model": {"name": str(policy), "chat_template": False, "dtype": "float32"},
        "data": {"source": str(data), "template": f"{EXAMPLES}{{prompt}} ="},
        "rewards": {"kind": "custom", "target": f"{reward}:first_number"},
        "sampling": {
            "engine": "transformers",
            "prompts_per_step": 2,
            "group_size": 4,
            "max_tokens": 6,
        },
        "training": {"steps": 3, "learning_rate": 1e-5, "threads": 1, "updates_per_step": 1},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"tables_every": 1},
    }
    return compose(preset, [("test", merge(usual, sections))])
