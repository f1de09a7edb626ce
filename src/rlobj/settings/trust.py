"""Whose code is imported.

What a person names on the command line or in Python is his: a preset or a configuration file with
all that it builds on, a reward, a setting. `train` and `eval` execute the code that it names, and
say so in their header.

What is read from a folder is not his: runs and evaluations are passed around. Their settings may
name code, the tool `python`, which executes what the policy writes, and servers that would get the
caller's key. `resume`, `train --from`, `eval RUN`, `eval regrade` and `replay` use them only with
`trust=True`, on the command line `--trust` (`require_trust`).

What only reads settings imports nothing and never asks: `presets`, `estimate`, `inspect` without a
rule, `report` and `diagnose` (`rlobj.base.targets.without_imports`).
`--dry-run` imports nothing that a file names; it tries the reward of the command line itself.

Data, models and records name no code; that of a model's repository is a setting of the run,
`model.trust_remote_code`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlobj.base.errors import Argument, ConfigError
from rlobj.base.paths import nearby
from rlobj.base.targets import importable, reads_only, without_imports
from rlobj.data.sources import source_names
from rlobj.data.verifiers import is_verifiers
from rlobj.samplers.vllm.auth import KEY_VARIABLE, is_local
from rlobj.settings.building import build_config
from rlobj.settings.layers import Layer
from rlobj.settings.presets import flattened, merge
from rlobj.settings.run_config import RunConfig, settings_of

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
    code: list[str] = []
    for path, value in _leaves({**settings, "data": None}):  # columns of data are names in a file
        section, name, text = path[0], path[-1], str(value)
        if section == "objective":
            code += _code_of_rules(text)
        if name == "trust_remote_code" and value:  # also 1 or "true", which pydantic takes for true
            code.append("model.trust_remote_code=true")
        elif "extra" in path and not isinstance(value, int | float):
            code.append(f"{'.'.join(path)}={text}")  # vLLM imports what many of them name
        elif path == ("environment", "tools") and text == "python":
            code.append(PROGRAMS)
        elif ":" in text and (name in ("target", "tools") or section == "columns"):
            code.append(text)
    data = flattened({"data": settings.get("data")})
    sources = [*source_names(data.get("data.source")), data.get("data.test")]
    return list(dict.fromkeys([*code, *filter(is_verifiers, sources)]))


def _leaves(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values of settings with the names above them; entries of a list have that of the list."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _leaves(value, (*path, str(name)))
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from _leaves(value, path)
    else:
        yield path, settings


def _code_of_rules(text: str) -> Iterator[str]:
    """What a rule or a number names as custom("mine.py:Rare")."""
    try:
        tree = ast.parse(" ".join(text.split()), mode="eval")
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
    return " --trust" if named_code(settings) or any(_far_servers(settings)) else ""


def _far_servers(settings: Mapping[str, Any]) -> Iterator[str]:
    """The servers on other machines that settings use."""
    sampled = flattened(settings).get("sampling.engine") == "vllm-server"
    for path, value in _leaves(settings):
        scores = path[0] == "scores" and path[-1] == "server"
        used = scores or (sampled and path == ("sampling", "server", "url"))
        if used and value and not is_local(urlsplit(str(value)).hostname):
            yield str(value)


def require_trust(
    source: Path | str, settings: Mapping[str, Any], caller: Mapping[str, Any], code: bool = True
) -> None:
    """Check that settings of a folder use no code and no other machine but those of the caller.

    Args:
        source: the folder, for the message.
        settings: of the folder, with the caller's above them.
        caller: the settings of the caller alone.
        code: check also code, and not only machines.

    Raises:
        ConfigError: they name other code, or servers that would get the caller's key.
    """
    trusted = named_code(caller)
    if untrusted := [name for name in named_code(settings) if code and name not in trusted]:
        raise ConfigError(
            f"the settings of {source} name code: {', '.join(untrusted)}. If you trust it, add ",
            Argument("trust"),
        )
    own_servers = {*_far_servers(merge(caller, {"sampling": {"engine": "vllm-server"}}))}
    if far := [url for url in _far_servers(settings) if url not in own_servers]:
        raise ConfigError(
            f"the settings of {source} name a server on another machine: {', '.join(far)}, which "
            f"would get your key, {KEY_VARIABLE}. If it is yours, add ",
            Argument("trust"),
        )


def trusted_config(
    source: Path | str, layers: Sequence[Layer], caller: Mapping[str, Any], trust: bool
) -> RunConfig:
    """The configuration of a folder's settings, if the caller trusts what they name.

    A dry run imports nothing that a folder names, so only servers are judged there.

    Args:
        source: the folder, for the message.
        layers: its settings, and above them those of the caller.
        caller: the settings of the caller alone.
        trust: the caller trusts the folder: check nothing, and import all that it names.

    Raises:
        ConfigError: as `require_trust`, or as `build_config`.
    """
    if trust:
        return build_config(layers)
    with without_imports(named_code(caller)):
        config = build_config(layers)
    require_trust(source, settings_of(config), caller, code=not reads_only())
    return config
