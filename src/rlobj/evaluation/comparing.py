"""Compare two evaluations, benchmark by benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.evaluation.identity import differences
from rlobj.evaluation.paired import Comparison, compare_benchmark
from rlobj.evaluation.records import GradedBenchmark
from rlobj.evaluation.report import comparison_markdown
from rlobj.evaluation.result import EvaluationResult
from rlobj.evaluation.samples import Samples
from rlobj.reporting import escaped


@dataclass(frozen=True)
class EvaluationComparison:
    """A minus B on every benchmark that both have. A notebook shows it as a table.

    Attributes:
        a: name of one side: its folder, or its model.
        b: name of the other side.
        benchmarks: the paired comparisons.
        settings: (setting, value in A, value in B) of settings that differ, the model aside.
    """

    a: str
    b: str
    benchmarks: tuple[Comparison, ...]
    settings: tuple[tuple[str, object, object], ...]

    def to_markdown(self) -> str:
        """The differences, the problems that changed sides, and settings that differ."""
        text = f"A: {self.a}\n\nB: {self.b}\n\n" + comparison_markdown(self.benchmarks)
        settings = [f"- {escaped(f'{n}: {a!r} in A, {b!r} in B')}" for n, a, b in self.settings]
        return "\n".join([text, "Settings that differ:\n", *settings, ""]) if settings else text

    _repr_markdown_ = to_markdown


def compare(
    a: EvaluationResult | Path | str, b: EvaluationResult | Path | str
) -> EvaluationComparison:
    """Compare two evaluations of the same problems, problem by problem: A minus B.

    Args:
        a: folder of an evaluation, or a result.
        b: the other one.

    Raises:
        ConfigError: a folder without an evaluation, or no benchmark that both have.
        DataError: benchmarks of the same name with other problems.
    """
    name_a, settings_a, graded_a = _side(a)
    name_b, settings_b, graded_b = _side(b)
    shared = [name for name in graded_a if name in graded_b]
    if not shared:
        lists = " and ".join(", ".join(each) for each in (graded_a, graded_b))
        raise ConfigError(f"{name_a} and {name_b} have no benchmark in common: {lists}")
    found = tuple(compare_benchmark(graded_a[name], graded_b[name]) for name in shared)
    changed = [each for each in differences(settings_a, settings_b) if each[0][:6] != "model."]
    return EvaluationComparison(name_a, name_b, found, tuple(changed))


def _side(
    side: EvaluationResult | Path | str,
) -> tuple[str, Mapping[str, Any], dict[str, GradedBenchmark]]:
    """Name, settings, and graded responses by benchmark."""
    if isinstance(side, EvaluationResult):
        graded = {name: each.graded for name, each in side.benchmarks.items()}
        return str(side.path or side.model), side.settings, graded
    samples = Samples.open(side)
    graded = {name: samples.graded(name, those) for name, those in samples.problems().items()}
    return str(samples.path), samples.settings(), graded
