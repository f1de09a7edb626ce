"""What an evaluation was measured with, and whether two evaluations were measured alike.

Settings are {"model": {...}, "engine": {...}, "benchmarks": {name: {...}}}, as in settings.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlobj.base.digests import files_digest
from rlobj.base.errors import Argument, ConfigError
from rlobj.data.problems import digest
from rlobj.settings.layers import flattened
from rlobj.settings.presets import difference

MODEL_FILES = ("*.json", "*.model", "*.jinja", "*.txt")
"""Files of a model folder that say how weights and tokens are used."""
NOT_COMPARED = {"source", "notes", "protocol", "reward.deadline"}
"""Recorded settings of a benchmark that change no number; the problems have a hash."""


def model_identity(source: str) -> dict[str, str | None]:
    """Identify the weights of a folder or hub id.

    Returns:
        `weights`: a digest of a folder's weight files: every byte of a file up to 1 GiB, 1 MiB at
        1024 positions of a larger one. `settings`: a digest of its configuration and tokenizer.
        Both are None for a hub id. `revision`: the hub's commit in the local cache, or None.
    """
    folder = Path(source)
    if not folder.is_dir():
        return {"weights": None, "settings": None, "revision": _revision(source)}
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    others = sorted(file for pattern in MODEL_FILES for file in folder.glob(pattern))
    digests = {"weights": files_digest(weights), "settings": files_digest(others)}
    return {**digests, "revision": None}


def module_identity(model: Any) -> dict[str, str | None]:
    """`model_identity` of a torch module in memory: `weights` is a digest of its tensors."""
    from rlobj.samplers.weights import digest as weight_digest

    sums = {name: weight_digest(tensor).placed for name, tensor in model.state_dict().items()}
    weights = digest(json.dumps(sums, sort_keys=True))[:16]
    return {"weights": weights, "settings": None, "revision": None}


def require_same(path: object, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse to continue an evaluation under other settings than the stored ones.

    Raises:
        ConfigError: with each difference.
    """
    if changes := differences(stored, settings):
        lines = "\n".join(f"  {name}: {was!r} there, {new!r} now" for name, was, new in changes)
        what = f"{path} has an evaluation with other settings:\n{lines}\n"
        raise ConfigError(what, "Choose another folder with ", Argument("out", "DIR"))


def differences(
    stored: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """(setting, stored value, asked value) of each difference that changes numbers.

    More samples are not a difference, nor are benchmarks that only one side has: an evaluation may
    be extended by both. Without stored settings there are no differences.
    """
    before, after = _compared(stored) if stored else {}, _compared(settings)
    both = [{part: side[part] for part in before if part in after} for side in (before, after)]
    return [change for change in difference(*both) if not _more_samples(*change)]


def fingerprint(settings: Mapping[str, Any]) -> str:
    """The same 16 digits for settings that give the same numbers."""
    return digest(json.dumps(_compared(settings), sort_keys=True, default=str))[:16]


def _compared(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """model, engine and each benchmark -> the settings that change numbers, by dotted name."""
    model = flattened(settings.get("model", {}))
    model.pop("name", None)
    if model.get("weights") is not None:  # the same weights elsewhere are the same model
        model.pop("source", None)
    compared = {"model": model, "engine": flattened(settings.get("engine", {}))}
    for name, benchmark in settings.get("benchmarks", {}).items():
        compared[name] = {k: v for k, v in flattened(benchmark).items() if k not in NOT_COMPARED}
    return compared


def _more_samples(name: str, was: object, new: object) -> bool:
    whole = isinstance(was, int) and isinstance(new, int) and was < new
    return whole and name.endswith(".samples")


def _revision(identifier: str) -> str | None:
    """The commit of a hub id in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    try:
        file = try_to_load_from_cache(identifier, "config.json")
    except ValueError:  # not a hub id
        return None
    return Path(file).parent.name if isinstance(file, str) else None
