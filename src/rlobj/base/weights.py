"""Transformers models whose files have all tensors; others would get random numbers in silence."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rlobj.base.errors import ConfigError, warn_once
from rlobj.base.text import visible

logger = logging.getLogger(__name__)

_SHOWN = 5
"""Names of tensors in a message."""
_LOGGERS = ("transformers.modeling_utils", "transformers.integrations.peft")
_ROW = re.compile(r"^(\S.*?) *\| *(?:\x1b\[\d+m)?(?:MISSING|MISMATCH)", re.MULTILINE)
"""A tensor that a report of transformers says has random numbers."""


def config_dict(pretrained_model_name_or_path: str, **settings: Any) -> dict[str, Any]:
    """The config.json of a model that computes with code of transformers.

    Args:
        pretrained_model_name_or_path: hub id or folder.
        **settings: of `PretrainedConfig.get_config_dict`, whose errors are raised, too.

    Raises:
        ConfigError: it names a kernel of the hub, which would be executed.
    """
    from transformers import PretrainedConfig

    source = pretrained_model_name_or_path
    whole = PretrainedConfig.get_config_dict(source, **settings)[0]
    parts: list[Any] = [whole]
    for part in parts:
        for key, value in part.items() if isinstance(part, dict) else ():
            if key.endswith("_implementation") and "/" in str(value):
                raise ConfigError(
                    f"the config.json of '{source}' has {key} = {value!r:.80}, code that would be "
                    "downloaded and executed. Delete it there, or name sdpa or eager"
                )
            parts.append(value)
    return whole


def load_complete(kind: Any, source: str, **settings: Any) -> Any:
    """A model of transformers, all of whose weights are in its files.

    Tied weights may be there once, and buffers that are not saved are computed. A tensor that the
    model does not use is warned about.

    Args:
        kind: a class with `from_pretrained`, such as AutoModelForCausalLM.
        source: hub id or folder.
        **settings: of `from_pretrained`.

    Raises:
        ConfigError: the files lack a tensor, or have one of another shape. Other errors are those
            of `from_pretrained`.
    """
    with _reports() as reports:
        try:
            model, loading = kind.from_pretrained(
                source, output_loading_info=True, ignore_mismatched_sizes=True, **settings
            )
        except RuntimeError as error:
            if reports and "above report" in str(error):
                raise ConfigError(
                    f"the tensors of '{source}' cannot be converted to those of its model: "
                    f"{_readable(reports[-1])}"
                ) from error
            raise
    missing = loading["missing_keys"]
    if getattr(model, "_hf_peft_config_loaded", False):  # then `loading` is about adapters alone
        missing = {*missing, *(name for report in reports for name in _ROW.findall(report))}
    _require_all(source, missing, loading["mismatched_keys"])
    warn_unused(source, loading["unexpected_keys"])
    return model


def _require_all(
    source: str, missing: Iterable[str], mismatched: Iterable[tuple[str, Any, Any]]
) -> None:
    """Check that no tensor is missing or has another shape than the model's.

    Raises:
        ConfigError: one is, or has.
    """
    problems: list[str] = []
    if missing := sorted(missing):
        problems.append(f"its files lack {_named(missing)}")
    if others := sorted(mismatched):
        shapes = [f"{name} {[*file]} instead of {[*model]}" for name, file, model in others]
        problems.append(f"its files have other shapes: {_named(shapes)}")
    if problems:
        raise ConfigError(
            f"'{source}' has not the weights that its config.json describes: {'; '.join(problems)}."
            " They would be random numbers. Expected a tensor for each weight: copy or download "
            "the model again, or correct its config.json"
        )


def warn_unused(source: str, names: Iterable[str]) -> None:
    """Name in one line the tensors of a model's files that the model does not use."""
    if names := sorted(names):
        warn_once(f"'{source}' has tensors that its model does not use: {_named(names)}")


def _named(names: list[str]) -> str:
    """The first names, and how many there are more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(visible, names[:_SHOWN])) + more


def _readable(report: str) -> str:
    """The lines of a report without its colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", report).split("\n")
    return "\n".join(map(visible, lines))


@contextlib.contextmanager
def _reports() -> Iterator[list[str]]:
    """Collect transformers' tables of tensors instead of showing them."""
    reports: list[str] = []

    def other(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if is_report := "LOAD REPORT" in text:
            reports.append(text)
        return not is_report and record.levelno >= shown[record.name]

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [source.level for source in loggers]
    shown = {source.name: source.getEffectiveLevel() for source in loggers}
    for source in loggers:
        source.addFilter(other)
        if shown[source.name] > logging.WARNING:  # the level of a report
            source.setLevel(logging.WARNING)
    try:
        yield reports
    finally:
        for source, level in zip(loggers, levels, strict=True):
            source.removeFilter(other)
            source.setLevel(level)
