"""Whose code is imported.

What a person names on the command line or in Python is his: a preset or a configuration file with
all that it builds on, a reward, a setting. `train` and `eval` import the code that it names, and
say so in their header.

What is read from a folder is not his: runs and evaluations are passed around. Their settings may
name code, and servers that would get the caller's key. `resume`, `train --from`, `eval RUN` and
`eval regrade` use them only if the caller names them again, or says `trust=True`, on the command
line `--trust`; so does `replay` if the recorded objective names code (`require_trust`).

What only reads settings imports nothing and never asks: `presets`, `explain`, `estimate`,
`inspect`, `report` and `diagnose` (`rlobj.base.targets.without_imports`). `--dry-run` imports
nothing that a file names; it tries the reward of the command line itself.

Data, models and records name no code; that of a model's repository is a setting of the run,
`model.trust_remote_code`.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import Argument, ConfigError, Message, Setting
from rlobj.base.paths import nearby
from rlobj.base.targets import PYTHON_OBJECT, importable, importing, reads_only
from rlobj.samplers.vllm.auth import KEY_VARIABLE, is_local
from rlobj.settings.presets import flattened


def named_code(settings: Mapping[str, Any]) -> list[str]:
    """The code that settings name by its path, and the code of a model's repository.

    Example:
        >>> named_code({"rewards": {"kind": "custom", "target": "mine.py:score"}})
        ['mine.py:score']
        >>> named_code({"objective": {"drop": "(prob < 0.1) & custom('mine.py:Rare')"}})
        ['mine.py:Rare']
    """
    found, target = [], str(settings.get("target"))
    if settings.get("kind") == "custom" and not target.startswith(PYTHON_OBJECT):
        found.append(target)
    if settings.get("trust_remote_code"):  # also 1 or "true", which pydantic takes for true
        found.append("model.trust_remote_code=true")
    for name, value in settings.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Mapping):  # data.columns are names in a file
                own = {**each, "columns": None} if name in ("data", "source") else each
                found += named_code(own)
        if name == "objective":
            found += _code_of_rules(value)
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


def _code_of_rules(value: Any) -> Iterator[str]:
    """What rules and numbers name as custom("mine.py:Rare"), in all texts of an objective."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _code_of_rules(each)
    if not isinstance(value, str):
        return
    try:
        tree = ast.parse(" ".join(value.split()), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # no rule either
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("custom"), [ast.Constant(str(target)), *_]):
                yield target


def imports(settings: Mapping[str, Any]) -> str:
    """The line of a header: which code is imported and which is not; "" = there is none."""
    names = {code: str(nearby(Path(code))) for code in named_code(settings)}
    there = ", ".join(name for code, name in names.items() if importable(code))
    absent = ", ".join(name for code, name in names.items() if not importable(code))
    told = [there and f"imports {there}", absent and f"does not import {absent}"]
    return "; ".join(filter(None, told))


def trust_option(settings: Mapping[str, Any]) -> str:
    """What a command that uses the settings of a run needs: " --trust", or "" if nothing."""
    return " --trust" if named_code(settings) or any(_other_machines(settings)) else ""


def _other_machines(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The servers on other machines that settings name, by the setting."""
    flat = flattened(settings)
    servers: dict[str, list[str]] = {}
    if flat.get("sampling.engine") == "vllm-server":
        urls = flat.get("sampling.server.url", ())
        servers["sampling.server.url"] = [urls] if isinstance(urls, str) else list(urls)
    for name, score in (settings.get("scores") or {}).items():
        if isinstance(score, Mapping) and score.get("server"):
            servers[f"scores.{name}.server"] = [str(score["server"])]
    rewards = settings.get("rewards")
    several = (rewards.get("of") or [rewards]) if isinstance(rewards, Mapping) else rewards
    graders = [each for each in several or () if isinstance(each, Mapping)]
    servers["rewards.server"] = [str(each["server"]) for each in graders if each.get("server")]
    for setting, urls in servers.items():
        if away := [url for url in urls if not is_local(urlsplit(url).hostname)]:
            yield setting, away


def require_trust(
    source: Path | str, settings: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Check that the caller names all code and all other machines that settings of a folder name.

    Args:
        source: the folder, for the message.
        settings: of the folder, with the caller's above them, as `settings_of` writes them: what
            a person typed has several forms.
        given: the caller's.

    Raises:
        ConfigError: they name other code, or servers that would get the caller's key.
    """
    named = named_code(given)
    if untrusted := [code for code in named_code(settings) if code not in named]:
        environment = settings.get("environment") or {}
        owners = {
            Argument("reward", "FILE.py:NAME"): {"rewards": settings.get("rewards")},
            Argument("environment", "FILE.py:CLASS"): {"environment": {**environment, "tools": ()}},
            Argument("tools", "NAMES"): {"environment": {**environment, "target": None}},
        }
        again = [text for text, own in owners.items() if {*named_code(own)} & {*untrusted}]
        raise ConfigError(
            f"the settings of {source} name code: {', '.join(untrusted)}. It would be imported, "
            "and could do whatever you can. If you trust it, add ",
            Argument("trust"),
            *((". Or name it again: ", Message.joined(", ", again)) if again else ()),
        )
    for setting, urls in _other_machines(settings):
        if setting not in flattened(given):
            raise ConfigError(
                f"the settings of {source} name a server on another machine: {', '.join(urls)}. It "
                f"would get your key, {KEY_VARIABLE}. Expected an address of this machine, such as "
                "http://127.0.0.1:8000. If the server is yours, name it again: ",
                Setting(setting, urls[0]),
                "; or add ",
                Argument("trust"),
            )


@contextlib.contextmanager
def trusted(
    source: Path | str, settings: Mapping[str, Any], given: Mapping[str, Any], trust: bool
) -> Iterator[None]:
    """Check settings of a folder as `require_trust`, and inside import only what is trusted.

    A dry run, which imports nothing that a folder names and calls no server, needs no trust.
    """
    if trust or reads_only():
        yield
        return
    require_trust(source, settings, given)
    with importing(named_code(given)):
        yield
