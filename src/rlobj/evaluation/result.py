"""The result of an evaluation.

Callbacks: objects that receive the events of an evaluation.

From graded responses to a result, and its files: results.json, results.md, report.html.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlobj.answers import verifier_version
from rlobj.base.errors import ConfigError
from rlobj.base.files import nearby
from rlobj.evaluation.estimators import Interval
from rlobj.evaluation.grade_changes import Regrading
from rlobj.evaluation.report import results_json, results_markdown, write_page
from rlobj.evaluation.samples import Samples
from rlobj.evaluation.summary import BenchmarkResult, MacroAverage, macro_average, summarise
from rlobj.rewards import MathVerifier

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationResult:
    """Accuracies or mean rewards, intervals and graded responses of one model. A notebook shows it
    as a table.

    Attributes:
        benchmarks: name -> summary, graded responses and settings.
        settings: everything that changes a number, and where it ran, as in settings.json.
        path: the folder with the files; None if the evaluation was kept in memory.
        regrading: what `regrade` changed; None if nothing was graded again.
    """

    benchmarks: Mapping[str, BenchmarkResult]
    settings: Mapping[str, Any] = field(repr=False)
    path: Path | None = None
    regrading: Regrading | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        means = {name: each.summary.estimate.mean for name, each in self.benchmarks.items()}
        found = {name: round(mean, 4) for name, mean in means.items()}
        what = "accuracies" if self._says_right else "rewards"
        return f"EvaluationResult(model={self.model!r}, {what}={found}, path={self.path})"

    @property
    def model(self) -> str:
        """The model's name."""
        return self.settings["model"]["name"]

    @property
    def accuracies(self) -> dict[str, float]:
        """Benchmark -> avg@n in [0, 1]; nan where nothing says which responses are right."""
        return {name: each.summary.accuracy for name, each in self.benchmarks.items()}

    @property
    def average(self) -> MacroAverage:
        """The mean over benchmarks, each counting once, with its errors and interval."""
        return macro_average([each.summary for each in self.benchmarks.values()])

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
        return all(each.summary.says_right for each in self.benchmarks.values())

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
                "id": each.problem.id,
                "prompt": each.problem.prompt,
                "gold": each.problem.answer,
                "accuracy": each.share if benchmark.summary.says_right else math.nan,
                "correct": [grade.correct for grade in each.grades],
                "rewards": [grade.reward for grade in each.grades],
                "answers": [grade.answer for grade in each.grades],
                "responses": [response.text for response in each.responses],
            }
            for name, benchmark in self.benchmarks.items()
            for each in benchmark.graded.problems
        ]

    @property
    def unfinished(self) -> str:
        """Which benchmarks lack responses, and how many; empty if none does."""
        missing = []
        for name, each in self.benchmarks.items():
            expected = each.settings["problems"] * each.settings["samples"]
            if each.summary.responses < expected:
                so_far = f"{each.summary.responses:,} of {expected:,} responses"
                missing.append(f"{name}: {so_far}")
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


class EvaluationCallback:
    """Receives the events of an evaluation. Override the methods you need."""

    def started(self, name: str) -> None:
        """Problems and settings are read, and the model with this name is loaded next."""

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """The embedded policy is trained on its first use; `done` of `total` steps."""

    def ready(self, facts: Mapping[str, str]) -> None:
        """Sampling or grading begins. `facts` are short texts by name: policy, device, folder."""

    def noted(self, text: str, *, warning: bool = False) -> None:
        """Something that the user should know. It is logged if the method is not overridden."""
        logger.log(logging.WARNING if warning else logging.INFO, "%s", text)

    def sampled(self, benchmark: str, responses: int) -> None:
        """More responses were sampled and stored; they are graded later."""

    def graded(self, benchmark: str, done: int, total: int, accuracy: float) -> None:
        """`done` of `total` responses are graded.

        `accuracy` is the share of right ones; nan before the first verdict, and where nothing says
        which responses are right.
        """

    def interrupted(self, stored: int, total: int) -> None:
        """Ctrl-C; `stored` of `total` responses are stored."""

    def finished(self, result: EvaluationResult) -> None:
        """The result is known, and its files, if any, are written."""


COMPARE_SECONDS = 1.0
"""Time to compare two wrong answers; after it they count as two."""
COMPARE_ALL_SECONDS = 60.0
"""For all of them."""


def summarise_folder(
    path: Path | str, *, callback: EvaluationCallback | None = None
) -> EvaluationResult:
    """Summarise the evaluation in a folder, finished or not, and write its results again.

    Raises:
        ConfigError: the folder holds no evaluation, or nothing is graded yet.
        RunError: the disk refused.
    """
    return publish(Samples.open(path), callback or EvaluationCallback())


def publish(
    samples: Samples, callback: EvaluationCallback, regrading: Regrading | None = None
) -> EvaluationResult:
    """Summarise what is graded; in a folder, write results.json, results.md and report.html.

    Of several processes, the first writes.

    Raises:
        ConfigError: nothing is graded yet.
        RunError: the disk refused.
    """
    settings = samples.settings()
    benchmarks = _benchmark_results(samples, settings["benchmarks"])
    result = EvaluationResult(benchmarks, settings, samples.path, regrading)
    if samples.path is not None and not samples.rank:
        text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
        samples.write("results.json", text + "\n")
        samples.write("results.md", result.to_markdown())
        write_page(samples.path / "report.html", list(benchmarks.values()), result.about)
        current = verifier_version()
        found = {name for each in benchmarks.values() for name in each.graded.verifiers}
        if others := found - {current}:
            callback.noted(
                f"Grades are of another version of the verifier ({', '.join(sorted(others))}) than "
                f"the present one ({current}). To grade the stored responses again: rlobj eval "
                f"regrade {nearby(samples.path)}",
                warning=True,
            )
    callback.finished(result)
    return result


def _benchmark_results(
    samples: Samples, benchmarks: Mapping[str, Any]
) -> dict[str, BenchmarkResult]:
    """The benchmarks with graded responses."""
    problems = samples.problems()
    math = {n for n, own in benchmarks.items() if own["reward"]["kind"] in ("math", "math_verify")}
    found = {}
    with _same_answer() if math else contextlib.nullcontext() as equal:
        for name, own in benchmarks.items():
            graded = samples.graded(name, problems.get(name, ()))
            if graded.problems:
                summary = summarise(graded, equal=equal if name in math else None)
                verifier = {"verifier": ", ".join(graded.verifiers)}
                found[name] = BenchmarkResult(graded, summary, without_empty({**own, **verifier}))
    if not found:
        where = samples.path or "the evaluation"
        raise ConfigError(
            f"{where} has no graded responses yet; {len(samples.responses):,} are sampled"
        )
    return found


@contextlib.contextmanager
def _same_answer() -> Iterator[Callable[[str, str], bool]]:
    """Whether two wrong answers are equal as mathematics, for the majority vote."""
    left = COMPARE_ALL_SECONDS
    with MathVerifier(COMPARE_SECONDS) as verifier:

        def equal(a: str, b: str) -> bool:
            nonlocal left
            if left <= 0:
                return False
            verdict = verifier.compare(a, b)
            left -= verdict.seconds
            return verdict.correct is True

        yield equal
    if left <= 0:
        logger.warning(
            "comparing wrong answers took over %d s; the remaining ones are compared as text",
            COMPARE_ALL_SECONDS,
        )
