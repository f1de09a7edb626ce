"""Where a model can be: a folder, a GGUF file, or an id on the Hugging Face hub."""

import contextlib
from importlib.util import find_spec
from pathlib import Path

from rlobj.base.digests import MODEL_FILES, model_digest
from rlobj.base.errors import ConfigError, MissingExtra, nearest
from rlobj.base.paths import path_of
from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.runs.layout import is_run
from rlobj.settings.run_config import ModelConfig


def require_model(name: str) -> None:
    """Check that a name can be a model, without loading it.

    A name that looks like a path must be a folder, and one that ends in .gguf a file. Any other
    name is taken as a hub id.

    Raises:
        ConfigError: the name is another file, a run, or a folder or file that is not there or has
            no model.
        MissingExtra: it is a GGUF file, and the package gguf is not installed.
    """
    path = path_of(name)
    gguf = is_gguf(path)
    if path.is_file():
        if not gguf:
            raise ConfigError(f"{name} is a file; a model is a folder, a GGUF file or a hub id")
        if find_spec("gguf") is None:
            raise MissingExtra("gguf", "gguf", f"reading {path}")
        return
    if is_run(path):
        newest = newest_checkpoint(path)
        advice = f"name {newest / 'model'}" if newest else "it has no checkpoint yet"
        raise ConfigError(f"{name} is a run, not a model: {advice}")
    if path.is_dir():
        if not (path / "config.json").is_file():
            what = f"{name} is a folder without config.json"
            raise ConfigError(f"{what}; a model is one of save_pretrained, or a GGUF file")
        return
    local = gguf or name.startswith((".", "~", "/")) or len(path.parts) > 2
    if not local and (len(path.parts) == 1 or not path.parent.is_dir()):
        return
    siblings = map(str, path.parent.glob("*.gguf" if gguf else "*/"))
    kind = "GGUF file" if gguf else "run or model folder"
    advice = nearest(str(path), siblings, spell_out=False)
    raise ConfigError(f"there is no {kind} '{name}'.{advice}")


def on_hub(name: str | None) -> bool:
    """Whether a model is fetched from the hub, because it is not on this machine.

    Raises:
        ConfigError: it is not there either, or the hub does not answer.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if name is None or path_of(name).exists():
        return False
    with contextlib.suppress(ValueError):  # a name that no hub has
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return False
    try:
        HfApi().model_info(name, timeout=10)
    except RepositoryNotFoundError as error:
        text = f"there is no model '{name}', here or on the hub. If it is private: hf auth login"
        raise ConfigError(text) from error
    except Exception as error:  # its type depends on the HTTP package
        what = f"the model '{name}' is not on this machine, and the hub does not answer"
        raise ConfigError(f"{what}. Name a folder, or type: hf download {name}") from error
    return True


def is_gguf(path: Path) -> bool:
    """Whether the path of a model is that of a GGUF file, which is there or not."""
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def gguf_digest(model: ModelConfig) -> str | None:
    """`recorded_digest` of a policy that is a GGUF file; None = it is no such file."""
    path = path_of(model.name or "")
    return recorded_digest("model.name", path, model.digest) if is_gguf(path) else None


def recorded_digest(setting: str, path: Path, recorded: str | None) -> str | None:
    """The digest of a model's folder or file; None = there is none.

    Raises:
        ConfigError: `recorded`, which was its digest when the run began, is another one.
    """
    digest = model_digest(path, (*MODEL_FILES, ".model", ".py"))
    if recorded not in (None, digest):
        what = "it has changed since" if digest else "it is not there any more"
        what = f"{path} is not the model with the digest {recorded}: {what}"
        new = f"in a new run, use {setting.rpartition('.')[0]}.digest=null"
        raise ConfigError(f"{setting}: {what}. Put the old one back; {new}")
    return digest
