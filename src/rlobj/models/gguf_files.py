"""GGUF files: models with quantized weights, as llama.cpp runs them.

    dense_folder("SmolLM2.Q4_1.gguf") -> model folder in the user's cache, made on first use

The weights in it are dense and float32, so everything that takes a model folder takes the file.
"""

from pathlib import Path
from typing import Any

from rlobj.base.digests import model_digest
from rlobj.base.errors import ConfigError, RunError, reported, warn
from rlobj.base.files import remove, settle
from rlobj.base.folders import lock_folder
from rlobj.base.paths import path_of
from rlobj.base.weights import load_complete
from rlobj.models.location import is_gguf, require_model

_OTHER_DISK = ". Choose a disk with room: XDG_CACHE_HOME=/tmp/cache in the environment"


def dense_folder(name: str) -> str:
    """The model folder with the dense weights of a GGUF file; another model's name as it is.

    The first use makes it, which takes a minute or more and 4 bytes per parameter on the disk. Its
    name has the digest of the file and the version of transformers. Other processes wait meanwhile.

    Raises:
        ConfigError: as `require_model`; transformers cannot read the file.
        MissingExtra: as `require_model`.
        RunError: the folder cannot be written.
    """
    if not is_gguf(file := path_of(name)):
        return name
    require_model(name)
    import transformers
    from platformdirs import user_cache_path

    root = user_cache_path("rlobj", appauthor=False) / "gguf"
    stem = file.stem.encode()[:100].decode(errors="ignore")  # a name has at most 255 bytes
    folder = root / f"{stem}-{model_digest(file)}-{transformers.__version__}"
    if folder.is_dir():  # it appears when it is complete
        return str(folder)
    with reported(RunError, f"cannot write {root}", OSError, advice=_OTHER_DISK):
        root.mkdir(parents=True, exist_ok=True)
    with lock_folder(root, "writing to", wait=True):
        if not folder.is_dir():
            warn("first use of %s: its weights are made dense in %s", file, folder)
            made = root / ".unfinished"
            remove(made)  # of a process that was killed
            try:
                _make_dense(file.absolute(), made)
                settle(made, folder)
            finally:
                remove(made)
    return str(folder)


def pretrained(name: str) -> dict[str, Any]:
    """The arguments of `from_pretrained` for a model's name, which may be that of a GGUF file."""
    if not is_gguf(file := path_of(name)):
        return {"pretrained_model_name_or_path": name}
    file = file.absolute()
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": str(file)}


def _make_dense(file: Path, folder: Path) -> None:
    """Write a GGUF file as a model folder in float32, with its tokenizer.

    Raises:
        ConfigError: transformers cannot read the file, or misreads its tokenizer.
        RunError: the folder cannot be written.
    """
    import torch
    import transformers
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlobj.models.loading import loading

    source = pretrained(str(file))
    options: dict[str, Any] = {"gguf_file": source["gguf_file"], "dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # else a GPU's kernels may keep them quantized
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # No random number is used up: the first run is like later ones.
    with loading(str(file)), torch.random.fork_rng(devices=[]):
        tokenizer: Any = AutoTokenizer.from_pretrained(**source)
        with reported(ConfigError, str(file), ConfigError):
            model = load_complete(AutoModelForCausalLM, str(file.parent), **options)
    _require_tokenizer(file, tokenizer, model.config)
    # It counts as quantized, which save_pretrained refuses.
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        vars(model).pop(name, None)
    vars(model.config).pop("quantization_config", None)
    errors = (OSError, SafetensorError)
    with reported(RunError, f"cannot write {folder}", *errors, advice=_OTHER_DISK):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _require_tokenizer(file: Path, tokenizer: Any, config: Any) -> None:
    """Check that a tokenizer was read as the file has it, which older transformers do not.

    Raises:
        ConfigError: it has other tokens, or another end token.
    """
    import transformers

    ends, end = config.eos_token_id, tokenizer.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    if len(tokenizer) > config.vocab_size or (end not in ends and ends != [None]):
        what = f"transformers {transformers.__version__} misreads the tokenizer of {file}"
        raise ConfigError(f"{what}. Install a newer one: pip install -U transformers")
