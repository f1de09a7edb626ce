"""A tiny chat policy, with one token for each character, and the program."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{{ '<eos>' if m.role == 'assistant' else ';' }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def save_chat_policy(folder: Path) -> Path:
    """The embedded architecture, in which the ends of turns are likely and special tokens not."""
    import torch
    from benchmarks.embedded_policy import build_policy, build_tokenizer

    alphabet = string.digits + string.ascii_lowercase + "+=:; "
    policy, tokenizer = build_policy(0, alphabet), build_tokenizer(alphabet)
    with torch.no_grad():
        policy.get_input_embeddings().weight.mul_(3)
    tokenizer.chat_template = TEMPLATE
    policy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def program(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """What `rlobj *words` does, in an environment with verifiers."""
    paths = [ROOT / "src", ROOT / "cli", Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "rlobj_cli", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
