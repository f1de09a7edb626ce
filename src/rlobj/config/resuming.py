"""What may change when a run is resumed, and which code of a run is used."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import ConfigError
from rlobj.base.files import path_of
from rlobj.base.targets import PYTHON_OBJECT
from rlobj.config.layers import flattened
from rlobj.config.presets import difference
from rlobj.samplers.vllm.auth import KEY_VARIABLE, is_local

RESUMABLE_SETTINGS = (
    "training.steps",
    "training.strategy",
    "training.offload",
    "training.micro_batch_tokens",
    "training.packed",
    "training.skip_inactive",
    "training.balance",
    "training.gradient_checkpointing",
    "training.threads",
    "training.hang_timeout",
    "training.max_skipped",
    "training.stop_on",
    "environment.workers",
    "environment.max_failures",
    "rewards.max_failures",
    "rewards.concurrency",
    "rewards.server",
    "rewards.device",
    "rewards.batch_tokens",
    "sampling.batch_tokens",
    "sampling.vllm",
    "sampling.server",
    "sampling.max_logprob_gap",
    "scores.*.server",
    "checkpoint",
    "output",
)
"""Settings that do not change the results of the steps already asked for, and `training.steps`. A
name also stands for all settings below it."""
RECORDED_SETTINGS = (
    "training.learning_rate",
    "training.max_grad_norm",
    "evaluation",
    "sampling.engine",
    "sampling.dynamic",
)
"""Settings that change the results of later steps: the run records each change."""


def refuse_changes(run: Path | str, changes: Iterable[str]) -> None:
    """Check that every changed setting may change when a run is resumed.

    Args:
        run: the run, for the message.
        changes: dotted names of settings. The option that set one may stand before it, as in
            `--set seed`.

    Raises:
        ConfigError: a setting that would change the run's results; the message lists all of them.

    Example:
        >>> refuse_changes("runs/stapo", ["training.steps", "checkpoint.every"])
    """
    allowed = (*RESUMABLE_SETTINGS, *RECORDED_SETTINGS)
    wrong = [name for name in changes if not _within(name.rpartition(" ")[2], *allowed)]
    if wrong:
        raise ConfigError(
            f"{run} is resumed with the settings it was started with. What may change: the number "
            f"of processes; without other results, {', '.join(RESUMABLE_SETTINGS)}; and recorded "
            f"in the run, {', '.join(RECORDED_SETTINGS)}. A new run may change everything: rlobj "
            f"train --from {run}. Leave out: {', '.join(wrong)}"
        )


def _within(path: str, *names: str) -> bool:
    """Whether a setting is one of those, or in a section among them; of several rewards, any."""
    path = re.sub(r"^rewards\.of\.[^.]+\.", "rewards.", path)
    return any(fnmatch(f"{path}.", f"{name}.*") for name in names)


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings (before, now) by name that differ."""
    return {path: (a, b) for path, a, b in difference(_by_name(before), _by_name(now))}


def _by_name(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with the list of several rewards as a mapping of names, and their order."""
    rewards = settings.get("rewards")
    if not isinstance(rewards, Mapping) or not rewards.get("of"):
        return settings
    named = {str(each["name"]): each for each in rewards["of"]}
    return {**settings, "rewards": {**rewards, "of": named, "order": [*named]}}


def recorded(changes: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Those of the changed settings that may change results."""
    return {path: pair for path, pair in changes.items() if not _within(path, *RESUMABLE_SETTINGS)}


def code_digest(settings: Mapping[str, Any]) -> str:
    """The digest of the files of rewards, columns, environments and tools that settings name.

    Modules that these files import are not in it.
    """
    named = named_code({name: settings.get(name) for name in ("rewards", "columns", "environment")})
    files = [path_of(target.rpartition(":")[0]) for target in named]
    digest = hashlib.sha256()
    for file in sorted({file for file in files if file.is_file()}):
        digest.update(f"{file}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def named_code(settings: Mapping[str, Any]) -> list[str]:
    """The code that settings name by its path, and the code of a model's repository.

    Example:
        >>> named_code({"rewards": {"kind": "custom", "target": "mine.py:score"}})
        ['mine.py:score']
    """
    found, target = [], str(settings.get("target"))
    if settings.get("kind") == "custom" and not target.startswith(PYTHON_OBJECT):
        found.append(target)
    if settings.get("trust_remote_code") is True:
        found.append("model.trust_remote_code=true")
    for name, value in settings.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):  # data.columns are names in a file
                own = {**each, "columns": None} if name in ("data", "source") else each
                found += named_code(own)
        if not isinstance(value, Mapping):
            continue
        if name == "environment":
            named = map(str, [value.get("target"), *(value.get("tools") or ())])
            found += [x for x in named if ":" in x and not x.startswith(PYTHON_OBJECT)]
        elif name == "columns":
            found += [source for source in map(str, value.values()) if ":" in source]
        elif name == "extra":  # of vLLM, which imports what many of its arguments name
            texts = {key: each for key, each in value.items() if not isinstance(each, int | float)}
            found += [f"sampling.vllm.extra.{key}={each}" for key, each in texts.items()]
    return list(dict.fromkeys(found))


def trust_option(settings: Mapping[str, Any]) -> str:
    """What a command about a run needs if its settings name code: " --trust"; else ""."""
    return " --trust" if named_code(settings) else ""


def require_named(source: object, settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that the caller names all code that settings of a file or run name.

    Args:
        source: the file or run, for the message.
        settings: of the file or run, with the caller's above them.
        given: the caller's.

    Raises:
        ConfigError: they name other code.
    """
    named = named_code(given)
    if untrusted := [code for code in named_code(settings) if code not in named]:
        environment = settings.get("environment") or {}
        owners = {
            "reward=FILE.py:NAME": {"rewards": settings.get("rewards")},
            "environment=FILE.py:CLASS": {"environment": {**environment, "tools": ()}},
            "tools=NAMES": {"environment": {**environment, "target": None}},
        }
        again = [text for text, own in owners.items() if {*named_code(own)} & {*untrusted}]
        raise ConfigError(
            f"the settings of {source} name code: {', '.join(untrusted)}. It would be imported, "
            "and could do whatever you can. If you trust it, add trust=True"
            + (f". Or name it again: {', '.join(again)}" if again else "")
        )


def require_trust(run: Path | str, settings: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that the caller names all code and all other machines that a run's settings name.

    The arguments are those of `require_named`.

    Raises:
        ConfigError: the run names other code, or servers that would get the caller's key.
    """
    require_named(run, settings, given)
    flat = flattened(settings)
    servers: dict[str, Any] = {}
    if flat.get("sampling.engine") == "vllm-server":
        urls = flat.get("sampling.server.url", ())
        servers["sampling.server.url"] = [urls] if isinstance(urls, str) else urls
    for name, score in (settings.get("scores") or {}).items():
        if isinstance(score, Mapping) and score.get("server"):
            servers[f"scores.{name}.server"] = [str(score["server"])]
    rewards = settings.get("rewards")
    several = rewards.get("of") or [rewards] if isinstance(rewards, Mapping) else ()
    servers["rewards.server"] = [str(each["server"]) for each in several if each.get("server")]
    for setting, urls in servers.items():
        away = [url for url in urls if not is_local(urlsplit(url).hostname)]
        if away and setting not in flattened(given):
            raise ConfigError(
                f"the settings of {run} name a server on another machine: {', '.join(away)}. It "
                f"would get your key, {KEY_VARIABLE}. Expected an address of this machine, such as "
                "http://127.0.0.1:8000. If the server is yours, name it again: set "
                f"{setting}={away[0]}; or add trust=True"
            )
