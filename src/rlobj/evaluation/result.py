"""The result of an evaluation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlobj.evaluation.estimators import Interval, MacroAverage, macro_average
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.results import results_json, results_markdown


@dataclass(frozen=True)
class EvaluationResult:
    """Accuracies or mean rewards, intervals and graded responses of one model. A notebook shows it
    as a table.

    Attributes:
        benchmarks: name -> graded responses, settings and numbers.
        settings: everything that changes a number, and where it ran, as in settings.json.
        path: the folder with the files; None if the evaluation was kept in memory.
    """

    benchmarks: Mapping[str, GradedBenchmark]
    settings: Mapping[str, Any] = field(repr=False)
    path: Path | None = None

    def __repr__(self) -> str:
        rounded = {name: round(of.estimate.mean, 4) for name, of in self.benchmarks.items()}
        what = "accuracies" if self._says_right else "rewards"
        return f"EvaluationResult(model={self.model!r}, {what}={rounded}, path={self.path})"

    @property
    def model(self) -> str:
        """The model's name."""
        return self.settings["model"]["name"]

    @property
    def accuracies(self) -> dict[str, float]:
        """Benchmark -> avg@n in [0, 1]; nan where nothing says which responses are right."""
        return {name: benchmark.accuracy for name, benchmark in self.benchmarks.items()}

    @property
    def average(self) -> MacroAverage:
        """The mean over benchmarks, each counting once, with its errors and interval."""
        return macro_average([benchmark.estimate for benchmark in self.benchmarks.values()])

    @property
    def accuracy(self) -> float:
        """avg@n in [0, 1]; of several benchmarks the mean, each counting once. nan where nothing
        says which responses are right."""
        return self.average.mean if self._says_right else math.nan

    @property
    def reward(self) -> float:
        """The mean reward where nothing says which responses are right, else nan; of several
        benchmarks the mean, each counting once."""
        return math.nan if self._says_right else self.average.mean

    @property
    def _says_right(self) -> bool:
        return all(benchmark.says_right for benchmark in self.benchmarks.values())

    @property
    def interval(self) -> Interval:
        """The 95% interval of `accuracy`, or else of `reward`, for problems like these."""
        return self.average.interval

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict for each problem, with the texts, answers and verdicts of its responses.

        `accuracy` is the share of right responses; nan where nothing says which are right. In
        `correct`, None stands for an undecided response, which counts as wrong, or for one of which
        nothing says it. In `rewards`, nan stands for an undecided response.
        """
        return [
            {
                "benchmark": name,
                "id": problem.problem.id,
                "prompt": problem.problem.prompt,
                "gold": problem.problem.answer,
                "accuracy": problem.value(True) if benchmark.says_right else math.nan,
                "correct": [grade.correct for grade in problem.grades],
                "rewards": [grade.reward for grade in problem.grades],
                "answers": [grade.answer for grade in problem.grades],
                "responses": [response.text for response in problem.responses],
            }
            for name, benchmark in self.benchmarks.items()
            for problem in benchmark.problems
        ]

    @property
    def unfinished(self) -> str:
        """Which benchmarks lack responses, and how many; empty if none does."""
        missing = []
        for name, benchmark in self.benchmarks.items():
            expected = benchmark.settings["problems"] * benchmark.settings["samples"]
            if (graded := len(benchmark.responses)) < expected:
                missing.append(f"{name}: {graded:,} of {expected:,} responses")
        return "; ".join(missing)

    @property
    def about(self) -> dict[str, Any]:
        """The model, and what it was sampled with; if it was graded again, with what."""
        model = without_empty(self.settings["model"])
        engine = without_empty(self.settings["engine"])
        about = {"model": model.pop("name"), **model, "engine": engine}
        for session in self.settings.get("sessions", []):  # the last one of each kind
            if "started" in session:
                about |= {**session, "started": about.get("started", session["started"])}
            else:
                about["graded again"] = session
        return about | ({"unfinished": self.unfinished} if self.unfinished else {})

    def to_dict(self) -> dict[str, Any]:
        """Every number with its standard error and settings, as in results.json."""
        return results_json(list(self.benchmarks.values()), self.about)

    def to_markdown(self) -> str:
        """A table with notes, as in results.md."""
        return results_markdown(list(self.benchmarks.values()), self.about)

    _repr_markdown_ = to_markdown


def without_empty(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without empty values."""
    return {name: value for name, value in settings.items() if value not in (None, [], {}, "")}
