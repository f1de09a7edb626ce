"""From graded responses to a result, and its files: results.json, results.md, report.html."""

import json
from dataclasses import replace
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.base.paths import nearby
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.graded import GradedBenchmark
from rlobj.evaluation.report.page import write_page
from rlobj.evaluation.result import EvaluationResult, without_empty
from rlobj.runs.evaluation_samples import Samples


def summarise_folder(
    path: Path | str, *, callback: EvaluationCallback | None = None
) -> EvaluationResult:
    """Summarise the evaluation in a folder, finished or not. Nothing is written.

    Raises:
        ConfigError: the folder holds no evaluation, or nothing is graded yet.
    """
    return publish(Samples.open(path), callback or EvaluationCallback(), write=False)


def publish(
    samples: Samples, callback: EvaluationCallback, *, write: bool = True
) -> EvaluationResult:
    """Summarise what is graded; in a folder, write results.json, results.md and report.html.

    Of several processes, the first writes.

    Raises:
        ConfigError: nothing is graded yet.
        RunError: the disk refused.
    """
    settings = samples.settings()
    problems, benchmarks = samples.problems(), dict[str, GradedBenchmark]()
    for name, recorded in settings["benchmarks"].items():
        graded = GradedBenchmark.of(samples, name, problems.get(name, ()))
        if graded.problems:
            kept = without_empty({**recorded, "verifier": ", ".join(graded.verifiers)})
            benchmarks[name] = replace(graded, settings=kept)
    if not benchmarks:
        raise ConfigError(f"{samples.path or 'the evaluation'} has no graded responses yet")
    result = EvaluationResult(benchmarks, settings, samples.path)
    folder = samples.path if write and not samples.rank else None
    if folder is not None:
        text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
        samples.write("results.json", text + "\n")
        samples.write("results.md", result.to_markdown())
        write_page(folder / "report.html", list(benchmarks.values()), result.about)
    callback.finished(result)
    if folder is not None:
        callback.noted(f"wrote results.json, results.md and report.html to {nearby(folder)}")
    return result
