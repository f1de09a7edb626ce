"""A session of `rlobj eval`: open or continue a folder, sample and grade what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.evaluation import EvaluationDirectory, sample_and_grade
from rlobj.evaluation.identity import fingerprint, may_continue
from rlobj.evaluation.protocols import Protocol
from rlobj.evaluation.provenance import environment, model_identity, text_digest
from rlobj.evaluation.samples import Key
from rlobj.rewards import Graded
from rlobj_cli.evaluate.engines import Engine, opened
from rlobj_cli.evaluate.requests import Benchmark, Target
from rlobj_cli.evaluate.results import publish
from rlobj_cli.screen.console import facts_grid, working

__all__ = ["Bar", "run"]

BLOCK = {"transformers": 256}
"""Responses between two writes; engines with a scheduler of their own get more at a time."""
LARGE = 2048


def run(console: Console, target: Target, out: Path | None, protocol: Protocol | None) -> None:
    """Evaluate a target into a folder.

    Args:
        console: the screen.
        target: policy and benchmarks.
        out: the folder; None = one under evals/ that belongs to these settings.
        protocol: to be recorded.
    """
    first = target.benchmarks[0].config
    console.print(Text.assemble(("rlobj eval", "bold"), " ", (target.name, "bold cyan")))
    with Bar(console, "first use: supervised start of the embedded policy") as bar:
        source = target.locate(lambda done, total, _: bar.move(done, total))
    if out is not None:
        _refuse_foreign(out)
    with contextlib.ExitStack() as stack:
        with working(console, f"loading {target.name}"):
            engine = stack.enter_context(opened(first, source))
        benchmarks = [_fitted(console, each, engine) for each in target.benchmarks]
        settings = _settings(target, source, engine, benchmarks, protocol)
        if out is None:
            out = Path("evals") / _folder_name(target.name, settings)
        console.print(facts_grid({**engine.facts, "folder": str(out)}))
        directory = EvaluationDirectory(out)
        with directory.locked():
            _begin(console, directory, settings, benchmarks)
            try:
                for each in benchmarks:
                    _evaluate_one(console, directory, engine, each)
            except KeyboardInterrupt:
                total = sum(
                    len(each.problems) * each.config.evaluation.samples for each in benchmarks
                )
                kept = f"{len(directory.responses):,} of {total:,} responses are kept in {out}"
                console.print(Text(f"\n{kept}; the same command goes on from there"))
                raise
    publish(console, directory)


def _refuse_foreign(out: Path) -> None:
    """A folder that holds something else, a model or a run, is no place for an evaluation."""
    taken = out.is_dir() and any(name.name != ".lock" for name in out.iterdir())
    if taken and not (out / "settings.json").exists():
        raise ConfigError(f"{out} holds something that is no evaluation. Choose another --out DIR")


def _fitted(console: Console, benchmark: Benchmark, engine: Engine) -> Benchmark:
    """Every prompt is encoded once, to see that it can be asked before a folder is made.

    A length limit that nobody chose is lowered to what the model's context leaves.

    Raises:
        ConfigError: a prompt that does not fit.
    """
    config = benchmark.config
    encode = engine.encoder(config.data.template)
    lengths = {problem.id: len(encode(problem)) for problem in benchmark.problems}
    if engine.context is None:
        return benchmark
    worst = max(lengths, key=lambda name: lengths[name])
    room = engine.context - lengths[worst]
    if room >= config.sampling.max_tokens:
        return benchmark
    if room < 1 or not benchmark.fitted:
        raise ConfigError(
            f"{benchmark.name}: the prompt of problem {worst} has {lengths[worst]} tokens; with "
            f"{config.sampling.max_tokens} for the response that is beyond the {engine.context} "
            f"positions of this model. Give --max-tokens {max(room, 0)} or less"
        )
    note = f"  {benchmark.name}: at most {room} tokens a response, all that the context leaves"
    console.print(Text(note, style="dim"))
    sampling = config.sampling.model_copy(update={"max_tokens": room})
    changed = config.model_copy(update={"sampling": sampling})
    return dataclasses.replace(benchmark, config=changed)


def _settings(
    target: Target,
    source: str,
    engine: Engine,
    benchmarks: Sequence[Benchmark],
    protocol: Protocol | None,
) -> dict[str, Any]:
    """Everything that changes a number, as settings.json keeps it."""
    template = getattr(engine.tokenizer, "chat_template", None) if engine.chat else None
    prompts = {
        "chat": engine.chat,
        "chat_template": None if template is None else text_digest(str(template)),
    }
    return {
        "model": {"name": target.name, "source": source, **model_identity(source)},
        "engine": engine.settings,
        "benchmarks": {
            each.name: {
                "source": each.source,
                "problems": len(each.problems),
                "data": each.data_digest,
                "samples": each.config.evaluation.samples,
                "protocol": each.under(protocol),
                "seed": each.config.seed,
                **each.settings.model_dump(mode="json"),
                "template": each.config.data.template,
                **prompts,
                "reward": each.config.rewards.model_dump(mode="json", exclude={"workers"}),
                "notes": list(each.notes),
            }
            for each in benchmarks
        },
    }


def _folder_name(model: str, settings: Mapping[str, Any]) -> str:
    """The same for the same settings, readable, and another one for others."""
    stem = "".join(c if c.isalnum() or c in ".-_" else "-" for c in model.strip("./~"))
    names = "+".join(settings["benchmarks"])
    names = names if len(names) <= 40 else f"{len(settings['benchmarks'])}-benchmarks"
    short = "".join(c if c.isalnum() or c in "+.-_" else "-" for c in names)
    return f"{stem}-{short}-{fingerprint(settings)[:8]}"


def _begin(
    console: Console,
    directory: EvaluationDirectory,
    settings: Mapping[str, Any],
    benchmarks: Sequence[Benchmark],
) -> None:
    """Settings and problems into the folder; what it holds already is read.

    Raises:
        ConfigError: it holds an evaluation with other settings.
    """
    there = directory.settings()
    if there:
        directory.mend()
        directory.read()
    if directory.responses:
        may_continue(directory.path, there, settings)
    else:  # nothing was drawn under the settings there
        there = {}
    sessions = there.get("sessions", [])
    now = environment()
    if sessions and sessions[-1]["versions"] != now["versions"]:
        changed = [
            f"{name} {sessions[-1]['versions'].get(name)} -> {number}"
            for name, number in now["versions"].items()
            if sessions[-1]["versions"].get(name) != number
        ]
        text = f"goes on under other versions, both are recorded: {', '.join(changed)}"
        console.print(Text(text, style="yellow"))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    merged = {**there.get("benchmarks", {}), **settings["benchmarks"]}
    problems: dict[str, Sequence[Problem]] = dict(directory.problems()) if there else {}
    problems |= {each.name: each.problems for each in benchmarks}
    directory.write_problems(problems)
    session = {"started": started, **now}
    directory.write_settings(
        {"format": 1, **settings, "benchmarks": merged, "sessions": [*sessions, session]}
    )


def _evaluate_one(
    console: Console, directory: EvaluationDirectory, engine: Engine, benchmark: Benchmark
) -> None:
    config = benchmark.config
    count = config.evaluation.samples
    total = len(benchmark.problems) * count
    drawn = sum(name == benchmark.name for name, _, _ in directory.responses)
    graded = sum(name == benchmark.name for name, _, _ in directory.grades)
    if drawn:
        text = f"  {benchmark.name}: {drawn:,} of {total:,} responses are there already"
        console.print(Text(text, style="dim"))
    if graded >= total:
        return
    if config.evaluation.temperature == 0 and count > 1:
        text = f"  {benchmark.name}: at temperature 0 the {count} responses of a problem are one"
        console.print(Text(text, style="yellow"))
    tally = _Tally(graded)
    with config.rewards.open() as grader, Bar(console, benchmark.name) as bar:
        bar.move(graded, total)

        def told(grades: Mapping[Key, Graded]) -> None:
            tally.add(grades)
            bar.move(tally.done, total, tally.text)

        sample_and_grade(
            engine.sampler,
            engine.encoder(config.data.template),
            benchmark.problems,
            grader,
            benchmark.settings,
            count=count,
            seed=config.seed,
            benchmark=benchmark.name,
            samples=directory,
            block=BLOCK.get(engine.settings["name"], LARGE),
            progress=told,
            drawn=bar.drew,
        )


class _Tally:
    """How this session goes, for the bar."""

    def __init__(self, done: int) -> None:
        self.done = done
        self._right = self._decided = 0

    def add(self, grades: Mapping[Key, Graded]) -> None:
        self.done += len(grades)
        self._right += sum(grade.correct is True for grade in grades.values())
        self._decided += sum(grade.correct is not None for grade in grades.values())

    @property
    def text(self) -> str:
        share = self._right / self._decided if self._decided else math.nan
        return f"{share:.1%} right"


class Bar:
    """A bar that appears with its first move; on no terminal, a line now and then."""

    EVERY = 30.0
    """Seconds between two lines where there is no terminal."""

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._drawn = 0
        self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def drew(self, more: int) -> None:
        """So many more responses are drawn; they count as done when they are graded."""
        self._drawn += more
        self._tell(f"{self._drawn:,} responses drawn")

    def _tell(self, text: str) -> None:
        """A line now and then where there is no terminal."""
        if self._console.is_interactive or time.monotonic() - self._told < self.EVERY:
            return
        self._told = time.monotonic()
        self._console.print(Text(f"  {self._name}: {text}"))

    def move(self, done: int, total: int, note: str = "") -> None:
        """So many are done."""
        if not self._bar.task_ids:
            self._bar.add_task(self._name, total=total, note=note)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        self._tell(f"{done:,}/{total:,}  {note}")
