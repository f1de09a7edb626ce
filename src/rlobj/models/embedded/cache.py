"""The embedded policy as a model folder in the user's cache, made on first use."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from pathlib import Path

import torch
import transformers
from platformdirs import user_cache_path

from rlobj.base.errors import ConfigError, RunError, nearest
from rlobj.data.problems import digest
from rlobj.data.tasks import TASKS
from rlobj.models.bars import no_bars
from rlobj.models.embedded.architecture import build_policy
from rlobj.models.embedded.tokenizer import build_tokenizer
from rlobj.models.embedded.warm_start import RECIPES, Progress, WarmStart, warm_start

logger = logging.getLogger(__name__)

_CODE = ("architecture.py", "tokenizer.py", "warm_start.py")
"""Files whose text is part of the hash in a folder's name."""


def embedded_policy(
    task: str,
    *,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the Hugging Face model folder, with tokenizer, of the policy for a built-in task.

    The first call trains the policy, which takes seconds; later calls return at once. The folder's
    name contains a hash of everything that changes the weights: recipe, problems, seed, the code,
    versions of torch and transformers, and the vector width of the CPU. Several processes may call
    this at the same time: each trains, and the first complete folder is used.

    Args:
        task: name of a task in `RECIPES`.
        seed: of the random weights and of the training.
        cache_dir: folder for policies; default: `rlobj` in the user's cache folder.
        progress: called with (steps done, number of steps, loss) during the training.

    Raises:
        ConfigError: no embedded policy for this task.
        RunError: the folder cannot be written.
    """
    if task not in RECIPES:
        raise ConfigError(f"there is no embedded policy for '{task}'.{nearest(task, RECIPES)}")
    recipe, pairs = RECIPES[task], TASKS[task].demonstrations()
    root = user_cache_path("rlobj", appauthor=False) if cache_dir is None else Path(cache_dir)
    folder = root / f"{task}-{_key(recipe, pairs, seed)}"
    if folder.is_dir():  # it appears when it is complete
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".warm-start-", dir=root) as scratch:
            made = Path(scratch) / "policy"
            tokenizer = build_tokenizer(recipe.alphabet)
            model = build_policy(seed, recipe.alphabet, recipe.layers, recipe.width)
            warm_start(model, tokenizer, pairs, recipe, seed=seed, progress=progress)
            with no_bars():
                model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            _publish(made, folder)
    except OSError as error:
        raise RunError(
            f"cannot write the embedded policy to {root}: {error}. Choose a writable folder, "
            "for example XDG_CACHE_HOME=/tmp/cache in the environment."
        ) from error
    logger.info("the embedded policy for %s is in %s", task, folder)
    return folder


def _key(recipe: WarmStart, pairs: list[tuple[str, str]], seed: int) -> str:
    """16 hexadecimal digits of a hash of everything that changes the weights."""
    code = [Path(__file__).with_name(name).read_text("utf-8") for name in _CODE]
    facts = {
        "recipe": dataclasses.asdict(recipe),
        "problems": pairs,
        "seed": seed,
        "code": code,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    return digest(json.dumps(facts, sort_keys=True))[:16]


def _publish(made: Path, folder: Path) -> None:
    """Move a finished folder to its final path, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
