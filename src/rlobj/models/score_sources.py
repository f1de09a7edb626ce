"""Where the models and the prompts of scores are, and whether they are what they were."""

import hashlib
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, reported
from rlobj.base.paths import located, path_of, step_of
from rlobj.models.gguf_files import dense_folder
from rlobj.models.location import recorded_digest
from rlobj.runs.checkpoints import named_checkpoint, require_sound
from rlobj.runs.configuration import read_settings
from rlobj.settings.scores import RoutedConfig, ScoreConfig, ValueConfig, is_template


def resolved_score(name: str, score: Any) -> Any:
    """The score as a new run records it: its template's text, its checkpoint's step, its digest.

    Raises:
        ConfigError: there is no such file, run or checkpoint, or none with its digest.
    """
    changes: dict[str, Any] = {}
    if isinstance(score, RoutedConfig):
        models = {k: resolved_score(f"{name}.models.{k}", x) for k, x in score.models.items()}
        return score.model_copy(update={"models": models})
    if score.prompt is not None and not is_template(score.prompt):
        changes["prompt"] = _read_template(name, score.prompt)
    if score.model is not None and not score.is_policy:
        changes["model"] = located(score.model, Path.cwd())
        changes["digest"] = _checked_digest(name, score)
    if score.run is not None:
        path = path_of(score.run).absolute()
        with reported(ConfigError, f"scores.{name}.run", ConfigError):
            read_settings(path)  # which says what else it is
        checkpoint = _checkpoint(name, score.model_copy(update={"run": str(path)}))
        changes |= {"run": str(path), "checkpoint": str(step_of(checkpoint))}
        changes["digest"] = _digest(checkpoint)
    return score.model_copy(update=changes)


def score_folder(name: str, score: ScoreConfig | ValueConfig) -> str:
    """The folder or hub id of a frozen model.

    Raises:
        ConfigError: its run has no such checkpoint any more, or its folder or file is not there any
            more, or there is another one in its place; as `dense_folder`.
    """
    if score.run is None:
        if score.digest is not None:
            _checked_digest(name, score)
        return dense_folder(str(score.model))
    return str(_checkpoint(name, score) / "model")


def _read_template(name: str, prompt: str) -> str:
    """The template in a file."""
    what = f"scores.{name}.prompt is {prompt[:80]!r}, which is no file that can be read"
    expected = ". Expected a file, or a template with {{ prompt }}"
    with reported(ConfigError, what, OSError, ValueError, advice=expected):
        text = path_of(prompt).read_text(encoding="utf-8")
    if not is_template(text):
        raise ConfigError(f"scores.{name}.prompt: {prompt} has no {{{{ prompt }}}} in it")
    return text


def _digest(checkpoint: Path) -> str:
    """The digest of a checkpoint's manifest, which lists the digests of its files."""
    return hashlib.sha256((checkpoint / "manifest.json").read_bytes()).hexdigest()[:16]


def _checkpoint(name: str, score: Any) -> Path:
    """The checkpoint of a score's run; its files are those that its digest stands for."""
    with reported(ConfigError, f"scores.{name}.run", ConfigError):
        checkpoint = named_checkpoint(Path(str(score.run)), score.checkpoint)
        require_sound(checkpoint, "model/")
    if score.digest not in (None, _digest(checkpoint)):
        what = f"{checkpoint} has not the digest {score.digest}: it has changed since"
        raise ConfigError(f"scores.{name}.run: {what}. Put it back; in a new run, use digest=null")
    return checkpoint


def _checked_digest(name: str, score: ScoreConfig | ValueConfig) -> str | None:
    """The digest of a score's folder or file, the recorded one; None = the model is a hub id."""
    folder = Path(str(score.model)).expanduser()
    return recorded_digest(f"scores.{name}.model", folder, score.digest)
