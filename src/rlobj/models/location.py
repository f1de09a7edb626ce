"""Where a model can be: a folder, or an id on the Hugging Face hub. Where the models of scores are.

manifest.json of a checkpoint: size in bytes and CRC-32 of every file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, nearest, reported
from rlobj.base.files import (
    MODEL_FILES,
    located,
    model_digest,
    parse_json,
    path_of,
    read_whole,
    refuse_others,
    step_of,
)
from rlobj.base.targets import require_file
from rlobj.config.resuming import named_code
from rlobj.config.run_config import RunConfig, settings_of
from rlobj.config.run_folder import is_run, named_checkpoint, newest_checkpoint, read_settings
from rlobj.config.scores import ScoreConfig, is_template
from rlobj.config.starting import refuse_senseless
from rlobj.data import Problem, load_problems
from rlobj.data.sources import require_source, source_names
from rlobj.data.tasks import TASKS
from rlobj.data.templates import Templates

logger = logging.getLogger(__name__)

_BLOCK = 1 << 24  # bytes read at a time
_REQUIRED = ("state.json", "model/config.json", "model/*.safetensors", "optimizer/*", "random/*")
"""What every checkpoint has; without moments AdamW would start anew."""
_TRIED = 1000
"""Problems for which a prompt is filled in before a run."""
_READ: set[tuple[str, int, int, int]] = set()
"""Files that this process has read and found intact: path, time of the last change, size, CRC."""


def write_manifest(place: Path) -> None:
    """Write the manifest of the files in a folder."""
    own = place / "manifest.json"
    files = sorted(file for file in place.rglob("*") if file.is_file() and file != own)
    listed = {str(file.relative_to(place)): [file.stat().st_size, _crc(file)] for file in files}
    own.write_text(json.dumps(listed, indent=1), encoding="utf-8")


def require_sound(checkpoint: Path, within: str = "") -> None:
    """Check the files of a checkpoint, or of a folder `within` it.

    Raises:
        ConfigError: one is damaged.
    """
    if (problem := damage(checkpoint, within)) is not None:
        raise ConfigError(f"{checkpoint} is damaged ({problem}): name another checkpoint")


def damage(checkpoint: Path, within: str = "") -> str | None:
    """Describe the first damaged file of a checkpoint; None if all files are intact."""
    try:
        listed = parse_json(read_whole(checkpoint / "manifest.json"))
        for pattern in _REQUIRED:
            if not fnmatch.filter(listed, pattern):
                return f"manifest.json lists no {pattern}"
        for name in fnmatch.filter(listed, f"{within}*"):
            (size, crc), file = listed[name], checkpoint / name
            if not file.is_file():
                return f"{name} is missing"
            found = file.stat()
            stamp = (str(file), found.st_mtime_ns, found.st_size, crc)
            if stamp not in _READ and (found.st_size != size or _crc(file) != crc):
                return f"{name} has changed since it was written"
            _READ.add(stamp)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"manifest.json: {error}"
    return None


def _crc(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            total = zlib.crc32(block, total)
    return total


def require_inputs(config: RunConfig) -> None:
    """Check what a run is about to learn from, without loading a model or problems.

    Raises:
        ConfigError: as `refuse_senseless` and `require_model`.
        DataError: as `require_source`.
    """
    refuse_senseless(config)
    models = [(f"scores.{name}.model", score.model) for name, score in config.scores.items()]
    models += [("model.name", config.model.name)]
    models += [("rewards.model", name) for name in config.rewards.models]
    for setting, name in models:
        if name not in (None, "policy"):
            with reported(ConfigError, setting, ConfigError):
                require_model(name)
    for source in (*source_names(config.data.source), *source_names(config.data.test)):
        require_source(source)
    settings = settings_of(config)
    sections = ("rewards", "columns", "environment")
    for target in named_code({name: settings[name] for name in sections}):
        if ".py:" in target:
            require_file(target)


def require_model(name: str) -> None:
    """Check that a name can be a model, without loading it.

    A name that looks like a path must be a folder. Any other name is taken as a hub id.

    Raises:
        ConfigError: the name is a file, a run, or a folder that is not there or has no model.
    """
    path = path_of(name)
    if path.exists() and not path.is_dir():
        what = "a file" if path.is_file() else "a pipe or a device"
        raise ConfigError(f"{name} is {what}; a model is a folder or a hub id")
    if is_run(path):
        newest = newest_checkpoint(path)
        folder = f"has its model in {newest / 'model'}" if newest else "has no checkpoint yet"
        raise ConfigError(f"{name} is a run, not a model: it {folder}")
    if path.is_dir() and not (path / "config.json").is_file():
        raise ConfigError(
            f"{name} is a folder without config.json; a model is one that save_pretrained wrote"
        )
    refuse_others(path)
    local = name.startswith((".", "~", "/")) or len(path.parts) > 2
    beside = path.parent if len(path.parts) > 1 else None
    if path.is_dir() or not (local or (beside is not None and beside.is_dir())):
        return
    siblings = [str(x) for x in path.parent.iterdir()] if path.parent.is_dir() else []
    advice = nearest(name, siblings, spell_out=False)
    raise ConfigError(f"there is no run or model folder '{name}'.{advice}")


def require_weights(name: str | None) -> None:
    """Check that a folder has the model's weights, and not its config.json alone.

    Raises:
        ConfigError: it has none.
    """
    path = path_of(name or "")
    if not (path / "config.json").is_file() or any(
        next(path.glob(pattern), None) for pattern in ("*.safetensors", "*.bin")
    ):
        return
    raise ConfigError(
        f"{name} has a config.json and no weights: expected *.safetensors or *.bin beside it. "
        "Without weights, a model can only be estimated; name a folder that has them, or a hub id"
    )


def resolved_score(name: str, score: ScoreConfig) -> ScoreConfig:
    """The score as a new run records it: its template's text, its checkpoint's step, its digest.

    Raises:
        ConfigError: there is no such file, run or checkpoint, or none with its digest.
    """
    found: dict[str, Any] = {}
    if score.prompt is not None and not is_template(score.prompt):
        found["prompt"] = _read_template(name, score.prompt)
    if score.model is not None and not score.is_policy:
        found["model"] = located(score.model, Path.cwd())
        found["digest"] = _model_digest(name, score)
    if score.run is not None:
        path = path_of(score.run).absolute()
        with reported(ConfigError, f"scores.{name}.run", ConfigError):
            read_settings(path)  # which says what else it is
        checkpoint = _checkpoint(name, score.model_copy(update={"run": str(path)}))
        found |= {"run": str(path), "checkpoint": str(step_of(checkpoint))}
        found["digest"] = _digest(checkpoint)
    return score.model_copy(update=found)


def check_prompts(config: RunConfig) -> None:
    """Check the prompts of scores, without a model.

    They are filled in for the first problems, if these need no download.

    Raises:
        ConfigError: as `Templates.check` and `Templates.fill`; a file that cannot be read.
        DataError: the problems cannot be read.
    """
    prompts = {
        name: prompt if is_template(prompt) else _read_template(name, prompt)
        for name, score in config.scores.items()
        if (prompt := score.prompt) is not None
    }
    if not prompts:
        return
    names = source_names(config.data.source)
    problems: Sequence[Problem] = ()
    if names and all(name in TASKS or Path(name).expanduser().exists() for name in names):
        answers = config.objective.reads_rewards and config.rewards.needs_answers
        problems = load_problems(config.data, "train", answers=answers)[:_TRIED]
    with Templates() as templates:
        for name, prompt in prompts.items():
            read = templates.check(f"scores.{name}.prompt", prompt)
            more = [each for each in read if each not in ("prompt", "answer", "feedback")]
            if more and not problems:
                logger.warning(
                    "scores.%s.prompt reads %s: the problems must have it", name, ", ".join(more)
                )
            for problem in problems:
                templates.fill(f"scores.{name}.prompt", prompt, problem)


def _read_template(name: str, prompt: str) -> str:
    """The template in a file."""
    what = f"scores.{name}.prompt is {prompt[:80]!r}, which is no file that can be read"
    expected = ". Expected a file, or a template such as '{{ prompt }} The answer is {{ answer }}.'"
    with reported(ConfigError, what, OSError, ValueError, advice=expected):
        text = read_whole(path_of(prompt), 1 << 20).decode()
    if not is_template(text):
        raise ConfigError(f"scores.{name}.prompt: {prompt} has no {{{{ prompt }}}} in it")
    return text


def _digest(checkpoint: Path) -> str:
    """The digest of a checkpoint's manifest, which lists the digests of its files."""
    return hashlib.sha256(read_whole(checkpoint / "manifest.json")).hexdigest()[:16]


def _checkpoint(name: str, score: ScoreConfig) -> Path:
    """The checkpoint of a score's run; its files are those that its digest stands for."""
    with reported(ConfigError, f"scores.{name}.run", ConfigError):
        checkpoint = named_checkpoint(Path(str(score.run)), score.checkpoint)
        require_sound(checkpoint, "model/")
    if score.digest not in (None, _digest(checkpoint)):
        raise ConfigError(
            f"scores.{name}.run: {checkpoint} is not the checkpoint with the digest "
            f"{score.digest}: it has changed since. Put the old one back, or start a new run with "
            f"scores.{name}.digest=null"
        )
    return checkpoint


def _model_digest(name: str, score: ScoreConfig) -> str | None:
    """The digest of a score's folder, which is the recorded one; None = the model is a hub id."""
    folder = Path(str(score.model)).expanduser()
    found = model_digest(folder, (*MODEL_FILES, ".model", ".py"))
    if score.digest not in (None, found):
        what = "it has changed since" if found else "there is no such folder any more"
        raise ConfigError(
            f"scores.{name}.model: {folder} is not the model with the digest {score.digest}: "
            f"{what}. Put the old one back, or start a new run with scores.{name}.digest=null"
        )
    return found


def score_folder(name: str, score: ScoreConfig) -> str:
    """The folder or hub id of a frozen model.

    Raises:
        ConfigError: its run has no such checkpoint any more, or its folder is not there any more,
            or there is another one in its place.
    """
    if score.run is None:
        if score.digest is not None:
            _model_digest(name, score)
        return str(score.model)
    return str(_checkpoint(name, score) / "model")
