"""Whose code is imported.

What a person names on the command line or in Python is his: a preset or a configuration file with
all that it builds on, a reward, a setting. `train` and `eval` execute the code that it names, and
say so in their header.

What is read from a folder is not his: runs and evaluations are passed around. Their settings may
name code, the tool `python`, which executes what the policy writes, and servers that would get the
caller's key. `resume`, `train --from`, `eval RUN` and `eval regrade` use them only if the caller
names them again, or says `trust=True`, on the command line `--trust`; so does `replay` if the
recorded objective names code (`require_trust`).

What only reads settings imports nothing and never asks: `presets`, `explain`, `estimate`,
`inspect`, `report` and `diagnose` (`rlobj.base.targets.without_imports`). `--dry-run` imports
nothing that a file names; it tries the reward of the command line itself.

Data, models and records name no code; that of a model's repository is a setting of the run,
`model.trust_remote_code`.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import Argument, ConfigError, Message, Setting
from rlobj.base.paths import nearby
from rlobj.base.targets import importable, importing, is_object_text, reads_only, without_imports
from rlobj.samplers.vllm.auth import KEY_VARIABLE, is_local
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer, merged
from rlobj.settings.presets import flattened
from rlobj.settings.run_config import settings_of

PROGRAMS = "environment.tools=python"
"""The tool that executes programs which the policy writes."""


def named_code(settings: Mapping[str, Any]) -> list[str]:
    """The code that settings name by its path, of a model's repository, and that a policy writes.

    Example:
        >>> named_code({"rewards": {"kind": "custom", "target": "mine.py:score"}})
        ['mine.py:score']
        >>> named_code({"objective": {"drop": "(prob < 0.1) & custom('mine.py:Rare')"}})
        ['mine.py:Rare']
    """
    code, target = [], settings.get("target")
    if settings.get("kind") == "custom" and not is_object_text(target):
        code.append(str(target))
    if settings.get("trust_remote_code"):  # also 1 or "true", which pydantic takes for true
        code.append("model.trust_remote_code=true")
    for name, value in settings.items():
        for entry in value if isinstance(value, list | tuple) else [value]:
            if isinstance(entry, Mapping):  # data.columns are names in a file
                section = {**entry, "columns": None} if name in ("data", "source") else entry
                code += named_code(section)
        if name == "objective":
            code += _code_of_rules(value)
        if not isinstance(value, Mapping):
            continue
        if name == "environment":
            tools = value.get("tools") or ()
            code += [PROGRAMS] if isinstance(tools, list | tuple) and "python" in tools else []
            tools = tools if isinstance(tools, list | tuple) else [tools]
            named = map(str, [value.get("target"), *tools])
            code += [target for target in named if ":" in target and not is_object_text(target)]
        elif name == "columns":
            code += [source for source in map(str, value.values()) if ":" in source]
        elif name == "extra":  # of vLLM, which imports what many of its arguments name
            texts = {key: text for key, text in value.items() if not isinstance(text, int | float)}
            code += [f"sampling.vllm.extra.{key}={text}" for key, text in texts.items()]
    return list(dict.fromkeys(code))


def _code_of_rules(value: Any) -> Iterator[str]:
    """What rules and numbers name as custom("mine.py:Rare"), in all texts of an objective."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _code_of_rules(part)
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
    """The line of a header: which code is executed and which is not; "" = there is none."""
    names = {code: str(nearby(Path(code))) for code in named_code(settings)}
    there = ", ".join(name for code, name in names.items() if importable(code))
    absent = ", ".join(name for code, name in names.items() if not importable(code))
    clauses = [there and f"executes {there}", absent and f"does not execute {absent}"]
    return "; ".join(filter(None, clauses))


def trust_option(settings: Mapping[str, Any]) -> str:
    """What a command that uses the settings of a run needs: " --trust", or "" if nothing."""
    return " --trust" if named_code(settings) or any(_other_machines(settings)) else ""


def _other_machines(settings: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The servers on other machines that settings name, by the setting."""
    flat = flattened(settings)
    servers: dict[str, list[str]] = {}
    if flat.get("sampling.engine") == "vllm-server":
        urls = flat.get("sampling.server.url", ())
        urls = urls if isinstance(urls, list | tuple) else [urls]
        servers["sampling.server.url"] = [*map(str, urls)]
    scores = settings.get("scores")
    for name, score in scores.items() if isinstance(scores, Mapping) else ():
        if isinstance(score, Mapping) and score.get("server"):
            servers[f"scores.{name}.server"] = [str(score["server"])]
    servers["rewards.server"] = list(_servers_of(settings.get("rewards")))
    for setting, urls in servers.items():
        if away := [url for url in urls if not is_local(urlsplit(url).hostname)]:
            yield setting, away


def _servers_of(rewards: Any) -> Iterator[str]:
    """The servers of a reward, of a list of rewards, and of those of which one is made."""
    if isinstance(rewards, Mapping):
        if rewards.get("server"):
            yield str(rewards["server"])
        yield from _servers_of(rewards.get("of"))
    elif isinstance(rewards, list | tuple):
        for reward in rewards:
            yield from _servers_of(reward)


def require_trust(
    source: Path | str, settings: Mapping[str, Any], caller: Mapping[str, Any]
) -> None:
    """Check that the caller names all code and all other machines that settings of a folder name.

    Args:
        source: the folder, for the message.
        settings: of the folder, with the caller's above them.
        caller: the settings of the caller alone.

    Raises:
        ConfigError: they name other code, or servers that would get the caller's key.
    """
    _require_named_code(source, settings, caller)
    _require_named_servers(source, settings, caller)


def _require_named_code(
    source: Path | str, settings: Mapping[str, Any], caller: Mapping[str, Any]
) -> None:
    named = named_code(caller)
    if untrusted := [code for code in named_code(settings) if code not in named]:
        environment = settings.get("environment")
        environment = environment if isinstance(environment, Mapping) else {}
        owners = {
            Argument("reward", "FILE.py:NAME"): {"rewards": settings.get("rewards")},
            Argument("environment", "FILE.py:CLASS"): {"environment": {**environment, "tools": ()}},
            Argument("tools", "NAMES"): {"environment": {**environment, "target": None}},
        }
        again = [text for text, section in owners.items() if {*named_code(section)} & {*untrusted}]
        raise ConfigError(
            f"the settings of {source} name code: {', '.join(untrusted)}. It would be executed, "
            "and could do whatever you can. If you trust it, add ",
            Argument("trust"),
            *((". Or name it again: ", Message.joined(", ", again)) if again else ()),
        )


def _require_named_servers(
    source: Path | str, settings: Mapping[str, Any], caller: Mapping[str, Any]
) -> None:
    graders = {*_servers_of(caller.get("rewards"))}
    for setting, urls in _other_machines(settings):
        named = graders >= {*urls} if setting == "rewards.server" else setting in flattened(caller)
        if not named:
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
    source: Path | str, layers: Sequence[Layer], caller: Mapping[str, Any], trust: bool
) -> Iterator[None]:
    """Check settings of a folder as `require_trust`, and inside import only what is trusted.

    They are judged as they are written, and as a run would read them: one setting has several
    forms in YAML. A dry run imports nothing that a folder names, so only servers are judged.

    Args:
        source: the folder, for the message.
        layers: its settings, and above them those of the caller.
        caller: the settings of the caller alone.
        trust: the caller trusts the folder: check nothing, and import all that it names.

    Raises:
        ConfigError: as `require_trust`, or as `build_config`.
    """
    if trust:
        yield
        return
    require = _require_named_servers if reads_only() else require_trust
    named = named_code(caller)
    require(source, merged(layers), caller)
    with without_imports(named):
        settings = settings_of(build_config(layers))
    require(source, settings, caller)
    with importing(named):
        yield
